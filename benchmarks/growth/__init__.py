"""Measures values that must not grow: the cost of a send, and the start time after a crash.

    python -m benchmarks.growth [--quick] [--only AXIS …] [--store]

`downrange serve` runs in its own process, Apache 5.5.0 in another where that is practical, and
`loader`, a third process, loads one of them over real sockets. Four things grow: the number of
topics, the stored bytes, the number of connections, and the log at the time of a crash.

`servers` starts, pauses and kills servers; `measures` runs the rounds of a plan; `report` stores,
compares and prints the results; `charts` defines the plots. `inside` measures the store alone, in
its own process, to find causes.
"""
