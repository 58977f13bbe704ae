"""Unit tests of downrange/server/access."""
