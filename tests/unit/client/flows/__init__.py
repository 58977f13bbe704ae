"""Unit tests of downrange/client/flows."""
