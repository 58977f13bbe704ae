"""Unit tests of the wire layer."""
