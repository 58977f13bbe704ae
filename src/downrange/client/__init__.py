"""The client: public classes, the flows behind them, and the drivers that run the flows.

Import the classes from `downrange`. `_async` is written by hand, `_sync` is generated from it.
"""
