"""A source of numbers that a test chooses."""

from __future__ import annotations


class FakeRandomness:
    """Returns the given numbers in turn, then zeros; each number is taken modulo the limit."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.limits: list[int] = []

    def below(self, limit: int) -> int:
        self.limits.append(limit)
        return self.numbers.pop(0) % limit if self.numbers else 0

    def uuid(self) -> str:
        return "00000000-0000-0000-0000-000000000000"
