"""One behaviour suite, run with both front ends (sync, async) on every server (ours, Apache)."""
