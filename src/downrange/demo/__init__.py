"""The demo: a small shop on a cluster of two brokers, one of which dies, seen through Spark."""
