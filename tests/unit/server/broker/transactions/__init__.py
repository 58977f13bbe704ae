"""Unit tests of downrange/server/broker/transactions."""
