"""The `rocketmq` data source for Spark."""
