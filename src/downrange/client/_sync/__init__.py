# Generated from client/_async/__init__.py by scripts/generate_sync.py; do not edit.
"""The public classes for threads, generated from `_sync/`.

One rule: a method makes a flow and has the client run it; there is no logic here.
"""
