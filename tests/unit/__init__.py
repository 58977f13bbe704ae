"""Unit tests: they mirror the package, and need no socket, thread or sleep."""
