"""Unit tests of the Spark data source: what it decides without Spark."""
