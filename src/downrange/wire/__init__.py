"""The protocol: bytes to commands to messages, and back. Pure: no sockets, threads or clocks.

From the outside in: `link` (one connection), `frames` (length-prefixed frames), `command` (one
frame's header and body), `headers` (typed header fields), `bodies` (typed JSON bodies), `records`
(stored messages). On bad input, this package raises only `WireError`. `system_names` and `limits`
hold the reserved names and the limits of the protocol for all packages.
"""
