"""Unit tests of downrange/server/broker/scheduled."""
