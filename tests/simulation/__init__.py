"""Stories of a broker in a world made of one seed: clock, threads, network and disk are simulated.

All the rest is real: connections, dispatching, the run of a broker with its flushing and saving,
the broker itself and its store.
"""
