"""Drivers run flows on sockets, threads and event loops; no other part of the client uses these."""
