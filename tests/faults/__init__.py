"""Faults with real sockets and processes: kills, full disks, hostile clients, cut connections."""
