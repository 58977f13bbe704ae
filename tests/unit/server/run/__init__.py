"""Unit tests of downrange/server/run."""
