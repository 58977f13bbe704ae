"""Tests of Downrange."""
