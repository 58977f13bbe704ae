"""Writing: rows become messages, every one of them acknowledged."""
