"""Test bed with the real Apache RocketMQ servers and the real Java client."""
