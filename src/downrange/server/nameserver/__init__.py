"""A name server's decisions: which brokers live and which topics they hold. Pure.

`registry` holds what brokers told, `key_values` what administrators stored, `handlers` answer
requests from both.
"""
