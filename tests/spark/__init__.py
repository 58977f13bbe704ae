"""Tests with a real Spark on this machine."""
