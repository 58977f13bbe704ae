"""Writing: rows become messages, and every one is acknowledged before a task ends."""
