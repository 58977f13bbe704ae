"""Flows of administration: clusters, topics, messages, network checks."""
