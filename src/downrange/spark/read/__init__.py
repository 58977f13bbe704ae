"""Reading: which messages on the driver, their rows in tasks."""
