"""Cost limits without a clock: calls, instructions and bytes per operation."""
