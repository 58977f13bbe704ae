"""Tests on a real Spark, in this machine's cores."""
