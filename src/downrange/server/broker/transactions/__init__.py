"""Transactions: half messages, their outcomes and checks."""
