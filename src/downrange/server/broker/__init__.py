"""The broker without sockets and clock: handlers, tables, delivery times, transactions."""
