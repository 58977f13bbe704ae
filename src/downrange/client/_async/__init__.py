"""The public classes for asyncio, written by hand; `_sync/` is generated from them.

One rule: a method makes a flow and has the client run it; there is no logic here.
"""
