"""The logs of servers and the console: text or JSON lines on standard error, levels by logger."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from downrange.errors import OptionError
from downrange.options.hints import similar_names

if TYPE_CHECKING:
    from collections.abc import Iterable

LogFormat: TypeAlias = Literal["text", "json"]

LEVELS: Final = ("debug", "info", "warning", "error")
#: The loggers of servers and of the console, by the last part of their names.
LOGGERS: Final = ("access", "broker", "console", "metrics", "nameserver", "server")
#: Loggers whose whole name has no dot: all of ours, and those of packages that these processes use.
_WITHOUT_DOT: Final = ("asyncio", "downrange", "uvicorn")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PREFIX: Final = "downrange."


def levels_of(texts: Iterable[str]) -> dict[str, int]:
    """Return levels by the name of their logger; "" is that of all others.

    Args:
        texts: Each is a level, or name=level; a short name such as "access" means
            "downrange.access". A name with a dot may be that of any package.

    Raises:
        OptionError: A level or a name is unknown.
    """
    found = {"": logging.INFO}
    for text in texts:
        name, is_named, level = text.rpartition("=")
        if level.lower() not in LEVELS:
            raise OptionError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
        if is_named and not name:
            raise OptionError(f"{text!r} names no logger; write name=level, such as access=debug")
        if name in LOGGERS:
            name = f"{_PREFIX}{name}"
        elif name and "." not in name and name not in _WITHOUT_DOT:
            raise OptionError(f"logger {name!r} is unknown; {_known(name)}")
        found[name] = logging.getLevelNamesMapping()[level.upper()]
    return found


def _known(name: str) -> str:
    likely = similar_names(name, (*LOGGERS, *_WITHOUT_DOT))
    if likely:
        return f"did you mean {likely[0]}?"
    return f"there are {', '.join(LOGGERS)}; write another package's with its dots"


def set_up_logs(texts: Iterable[str], form: LogFormat) -> None:
    """Send logs to standard error.

    Args:
        texts: Levels; see `levels_of`.
        form: Lines for people, or JSON objects.

    Raises:
        OptionError: A level or a name is unknown.
    """
    levels = levels_of(texts)
    # The console's web server tells of its own start and stop at INFO.
    levels.setdefault("uvicorn", max(levels[""], logging.WARNING))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines(_TEXT))
    logging.basicConfig(level=levels.pop(""), handlers=[handler])
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class TextLines(logging.Formatter):
    """Formats each record as one line, and its traceback, if any, as indented lines.

    Texts of clients are in messages, such as client ids. Line breaks and other control characters
    are escaped, so that no text looks like a line of its own or controls the terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (name of logging)
        """Return the line, without a traceback."""
        return _printable(super().formatMessage(record).rstrip())

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return the lines of a traceback."""
        return "\n".join(
            f"  {_printable(line)}" for line in super().formatException(ei).split("\n")
        )


def _printable(text: str) -> str:
    """Return a text on one line, with escape sequences as Python has them."""
    if text.isprintable():
        return text
    return "".join(
        [each if each.isprintable() else each.encode("unicode_escape").decode() for each in text]
    )


class JsonLines(logging.Formatter):
    """Formats each record as a JSON object on a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: time in UTC, level, logger, message, and the traceback, if any."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
