"""What users hold: each class beside its asyncio twin, a method of one to three lines a call."""
