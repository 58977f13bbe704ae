"""Benchmarks; each module is a command, and `make bench` runs them."""
