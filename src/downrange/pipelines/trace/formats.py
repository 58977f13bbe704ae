"""Numbers, times and untrusted text, formatted for the page; all results are safe HTML."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from html import escape, unescape
from typing import Final

_SHOWN_CHARS_MAX: Final = 64
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
#: Between a number and its unit: a narrow no-break space.
_GAP: Final = "\u202f"
_TAG: Final = re.compile(r"<[^<>]*>")
NONE: Final = '<span class="none">\u2013</span>'


def safe(text: object) -> str:
    """Return untrusted text for a page; control characters become visible."""
    # The symbols for control characters begin at U+2400, in the order of their codes.
    shown = "".join(chr(0x2400 + ord(c)) if ord(c) < 32 else c for c in str(text))
    return escape(shown, quote=True)


def name(text: str | None, otherwise: str = "not named") -> str:
    """Return the name of a topic, group, broker or client, shortened if it is very long."""
    if text is None or text == "":
        return f'<span class="none">{safe(otherwise)}</span>'
    if len(text) <= _SHOWN_CHARS_MAX:
        return safe(text)
    return f'<span title="{safe(text)}">{safe(text[: _SHOWN_CHARS_MAX - 1])}…</span>'


def count(value: float | None) -> str:
    """Return a whole number: 12,345, and 1.23 M from ten millions on."""
    if value is None:
        return NONE
    if abs(value) < 10_000_000:
        return f"{round(value):,}"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{value / size:.3g}{_GAP}{unit}"
    return str(value)


def rate(value: float | None) -> str:
    """Return messages per second, with a useful number of digits."""
    if value is None:
        return NONE
    digits = 0 if value >= 100 or not value else 1 if value >= 1 else 2 if value >= 0.01 else 4
    return f"{value:,.{digits}f}{_GAP}/s"


def share(part: float | None) -> str:
    """Return a share as per cent; a small one never shows as 0."""
    if part is None:
        return NONE
    percent = part * 100
    if 0 < percent < 0.01:
        return f"&lt;0.01{_GAP}%"
    digits = 2 if 0 < percent < 1 or 99 < percent < 100 else 1
    text = f"{percent:.{digits}f}".rstrip("0").rstrip(".") if percent else "0"
    return f"{text}{_GAP}%"


def duration(milliseconds: float | None) -> str:
    """Return a duration: 12 ms, 3.4 s, 5.6 min, 7.8 h, 9.1 d.

    Traces have whole milliseconds, so 0 means less than one.
    """
    if milliseconds is None:
        return NONE
    if not milliseconds:
        return f"&lt;1{_GAP}ms"
    size = abs(milliseconds)
    if size < 1000:
        return f"{milliseconds:.3g}{_GAP}ms"
    for unit, length, most in (("s", 1000, _MINUTE_MS), ("min", _MINUTE_MS, _HOUR_MS)):
        if size < most:
            return f"{milliseconds / length:.3g}{_GAP}{unit}"
    if size < 2 * _DAY_MS:
        return f"{milliseconds / _HOUR_MS:.3g}{_GAP}h"
    return f"{milliseconds / _DAY_MS:,.3g}{_GAP}d"


def size(value: float | None) -> str:
    """Return a number of bytes, in units of 1024."""
    if value is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.3g}{_GAP}{unit}" if unit != "B" else f"{value:.0f}{_GAP}B"
        value /= 1024
    return NONE


def timestamp(ms: int | None, step_ms: int = 1000) -> str:
    """Return date and time in UTC; with milliseconds if times are not whole seconds apart."""
    if ms is None:
        return NONE
    at = datetime.fromtimestamp(ms / 1000, UTC)
    fraction = f".{ms % 1000:03d}" if step_ms % 1000 else ""
    return f'<time datetime="{at.isoformat()}">{at:%Y-%m-%d %H:%M:%S}{fraction}</time>'


def clock(ms: int, step_ms: int) -> str:
    """Return a time for an axis, as precise as its steps."""
    at = datetime.fromtimestamp(ms / 1000, UTC)
    if step_ms >= _DAY_MS:
        return f"{at:%d %b}" if step_ms < 300 * _DAY_MS else f"{at:%b %Y}"
    return f"{at:%H:%M:%S}" if step_ms < _MINUTE_MS else f"{at:%H:%M}"


def bare(html: str) -> str:
    """Return one of the texts above as plain text without tags, which is not safe HTML."""
    return unescape(_TAG.sub("", html))


def round_up(value: float) -> float:
    """Return the next number of the form 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((f * power for f in (1, 2, 2.5, 5) if f * power >= value * 0.999999), 10 * power)
