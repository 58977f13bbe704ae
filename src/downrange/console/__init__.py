"""The console in the browser: looks at a cluster and operates it, through the admin protocol.

`console/cluster` asks the cluster. The rest renders and serves.
"""
