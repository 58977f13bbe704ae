"""Conversations with a RocketMQ server, written once over `wire` alone.

Each is a function that sends requests, checks the replies, and uses only a `Scene`. It runs live
with the real servers (`tests/apache/test_conversations.py`), and without Java with the bytes that
were captured in such a run (`tests/golden/`): then our requests must equal the captured ones, byte
for byte.
"""
