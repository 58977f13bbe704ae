"""Checks that option classes share. Each error names the option and its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_at_least(smallest: int, name: str, value: float) -> None:
    """Refuse a number below the smallest allowed one, and NaN."""
    if not value >= smallest:  # NaN compares as false
        raise OptionError(f"{name}={value} is less than {smallest}")


def check_positive(name: str, seconds: float) -> None:
    """Refuse a time span that is not above 0 and finite."""
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{name}={seconds} must be a time span in seconds, above 0")


def check_one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a value that is not one of the allowed ones."""
    choices = list(allowed)
    if value not in choices:
        raise OptionError(f"{name}={value!r} must be one of {', '.join(map(str, choices))}")
