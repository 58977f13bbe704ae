"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Implements `Clock`; call it for its seconds, where a plain function is needed.

    Attributes:
        seconds: The time. Assign to it to let time pass.
    """

    def __init__(self, seconds: float = 100.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return round(self.seconds * 1000)
