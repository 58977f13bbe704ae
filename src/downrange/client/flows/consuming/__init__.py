"""Flows of consumers: pulls, buffers, offsets."""
