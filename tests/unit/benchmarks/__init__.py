"""Unit tests of the parts of benchmarks that measure nothing."""
