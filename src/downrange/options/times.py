"""Times as people write them: a time of the calendar, or an age such as 15m."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from downrange.errors import OptionError

if TYPE_CHECKING:
    from datetime import tzinfo

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_time(
    option: str, text: str, now: datetime, others: str = "", zone: tzinfo | None = None
) -> datetime:
    """Parse a time or an age.

    Args:
        option: The name of the setting, for the error.
        text: The text.
        now: What an age is counted from.
        others: Other valid forms, for the error.
        zone: The zone of a time that has none; that of this machine unless given.

    Raises:
        OptionError: It is neither; names the option and the valid forms, `others` first.
    """
    word = text.strip()
    try:
        if (ago := _AGO.fullmatch(word.lower())) is not None:
            return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        found = datetime.fromisoformat(word)
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise OptionError(
            f"{option} {text!r} is not one of: {others}a time such as 2026-01-31T12:00, or an age "
            "such as 15m"
        ) from None
