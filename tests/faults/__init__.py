"""Servers as processes of their own, and producers between them, with real sockets, maltreated."""
