"""The Java client and mqadmin of both releases against our servers."""
