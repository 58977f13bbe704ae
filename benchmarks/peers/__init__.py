"""Downrange beside the other Python clients of RocketMQ, on the same Apache server."""
