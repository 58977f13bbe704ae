"""Unit tests of downrange/server/net."""
