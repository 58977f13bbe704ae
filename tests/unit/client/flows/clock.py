"""Time that a test has chosen."""

from __future__ import annotations


class FakeClock:
    """Stands still until it is told to go on."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return round(self.seconds * 1000)
