"""Bytes to commands to messages and back. Pure: no sockets, threads or clocks.

From the outside in: `link` (one connection), `frames` (length-prefixed frames), `command` (one
frame's header and body), `headers` (typed header fields), `bodies` (typed JSON bodies), `records`
(stored messages). Everything here raises only `WireError` on bad input.
"""
