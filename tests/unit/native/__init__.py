"""Each native function beside its twin in Python."""
