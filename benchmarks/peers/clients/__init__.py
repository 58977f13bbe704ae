"""The clients of the comparison, one module each; each runs in an environment of its own.

A module has a class `Client` with `one`, which sends one message at a time, and `many`, which keeps
`IN_FLIGHT` of them in flight. Both send until a time, and return the number of acknowledged
messages. Everything but "stored" is an error.
"""

#: Messages in flight. A client without futures or callbacks uses as many threads.
IN_FLIGHT = 256
