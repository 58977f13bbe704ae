"""The message store: the same files, names and bytes as the store folder of an Apache broker.

From the bottom up: `files` (the only module that touches a disk), `segments` (chains of files of
equal size), `log` (records), `queue_index` and `key_index` (how they are found), `checkpoint` and
`recovery` (opening a store), `retention` (deleting old segments), `message_store` (all together).
The code blocks; time and options are arguments.
"""
