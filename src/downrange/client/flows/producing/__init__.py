"""Flows of producers: prepare, send, retry, batch, transactions, request-reply, trace."""
