"""Runs of a broker with a simulated clock, network, disk and threads, all driven by one seed.

Everything else is the real code: connections, dispatcher, broker loop with its flushes and saved
tables, the broker and its store.
"""
