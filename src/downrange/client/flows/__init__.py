"""The decisions of a client: routes, queues, retries, batches. Pure; drivers perform the effects.

One rule: between two yields a flow is atomic under every driver, so nothing here holds a lock.
"""
