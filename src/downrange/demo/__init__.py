"""The demonstration: a cluster, a believable workload, and what Spark makes of it."""
