"""What a client decides: routes, queues, retries, batches. Pure; drivers act on it.

One rule: between two yields a flow is atomic, whoever runs it, so nothing here holds a lock.
"""
