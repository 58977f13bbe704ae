"""Unit tests of what the drivers know about this machine."""
