"""The only client code that knows sockets, threads and event loops."""
