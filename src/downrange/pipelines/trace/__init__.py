"""The trace topic as tables, measures and a report that opens without a network."""
