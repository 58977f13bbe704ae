"""Unit tests of what users hold."""
