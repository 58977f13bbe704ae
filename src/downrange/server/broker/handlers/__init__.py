"""Handlers: one module per family of requests."""
