"""Downrange: RocketMQ for Python and Spark, on the native TCP protocol."""
