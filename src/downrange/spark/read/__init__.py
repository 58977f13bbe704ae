"""Reading: the driver decides which messages a batch has, tasks turn them into rows."""
