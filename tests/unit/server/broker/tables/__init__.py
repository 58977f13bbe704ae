"""Unit tests of downrange/server/broker/tables."""
