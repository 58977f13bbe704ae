"""The demo: a small shop on a cluster of two brokers, a broker crash, and Spark jobs."""
