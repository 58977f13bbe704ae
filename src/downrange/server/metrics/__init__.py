"""Metrics of servers as Prometheus text, under the names of Apache's exporter. Pure."""
