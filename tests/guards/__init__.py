"""Budgets without a clock: what an operation may cost in calls, instructions and bytes."""
