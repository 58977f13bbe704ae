"""Servers that run: event loop, threads, flushes, saved tables, registration."""
