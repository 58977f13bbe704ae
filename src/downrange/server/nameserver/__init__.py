"""A name server's decisions, without I/O: live brokers, their topics, and key-value config.

`registry` holds what brokers registered, `key_values` what administrators stored, and `handlers`
answer requests from both.
"""
