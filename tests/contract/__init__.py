"""One suite of behaviour, for each front end (sync, async) on each server (ours, Apache's)."""
