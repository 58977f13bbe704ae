"""The server as a process of its own, with real sockets and a real disk, treated badly."""
