"""What a broker decides: topics, groups, clients, delays, transactions; no socket, no clock."""
