"""The durable log: the same files, names and bytes as an Apache broker's store folder.

From the bottom up: `files` (the only module that touches a disk), `segments` (chains of equal
files), `log` (records), `queue_index` and `key_index` (ways to find them), `checkpoint` and
`recovery` (what survives), `retention` (what goes). Blocking code; time and settings are arguments.
"""
