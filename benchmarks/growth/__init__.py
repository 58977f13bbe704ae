"""What must not grow: the cost of a send, and the time to start again after a crash.

    python -m benchmarks.growth [--quick] [--only AXIS …] [--store]

`downrange serve` runs in a process of its own, Apache 5.5.0 beside it where that is practical, and
`loading`, a third process, loads one of them over real sockets. Four things grow: topics, bytes
stored, connections, and the log that a crash leaves behind.

`servers` starts, pauses and kills; `measuring` runs the rounds of a plan; `report` keeps, compares
and shows what was found; `charts` says what is drawn of it. `inside` measures the store alone, in
its own process, for those who look for a cause.
"""
