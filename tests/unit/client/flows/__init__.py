"""Unit tests of what a client decides."""
