"""Access control: accounts, permissions and the file they are read from."""
