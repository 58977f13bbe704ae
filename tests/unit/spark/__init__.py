"""Unit tests of the Spark data source, without Spark."""
