"""A clock whose time changes only when a test sets it."""

from __future__ import annotations


class FakeClock:
    """Implements `Clock`. An instance is also callable, where a plain function is needed.

    Attributes:
        seconds: The current time; assign to it to advance the clock.
    """

    def __init__(self, seconds: float = 100.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return round(self.seconds * 1000)
