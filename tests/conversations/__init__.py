"""Conversations with a RocketMQ server, written once over `wire` alone.

Each is a function that asks, checks the answers, and uses nothing but a `Scene`. It runs live
against the real servers (`tests/apache/test_conversations.py`), and without Java against the bytes
that were captured on such a run (`tests/golden/`): then what we send must be the captured bytes,
byte for byte.
"""
