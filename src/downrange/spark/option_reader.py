"""Options as Spark gives them: texts with case-insensitive names, each taken once.

An option that no code takes is unknown, and an unknown option is an error with a hint: a typo must
not change what a job reads or writes.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.errors import OptionError
from downrange.options.hints import similar_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_SECONDS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}
#: Option names of other connectors and of Spark itself -> a hint.
_HINTS: Final = {
    "path": "name topics with subscribe, subscribePattern or assign",
    "kafka.bootstrap.servers": "the address of a name server goes into nameServer",
    "namesrvaddr": "the option is called nameServer",
    "pushdown": "filters are not pushed down, because Spark then mixes up results; use queueIds, "
    "brokers, tags, startingTimestamp",
    "topics": "use subscribe to read, topic to write",
    "subexpression": "the option is called tags",
}


class OptionReader:
    """Turns the options of one `load` or `save` into typed values.

    Args:
        options: The options as Spark gives them.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): (name, str(value)) for name, value in options.items()}
        self._known: list[str] = []

    def has(self, name: str) -> bool:
        """Whether an option is given."""
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None, *, env: str | None = None) -> str | None:
        """Take a text, from an environment variable if it is not given."""
        self._known.append(name)
        given = self._given.pop(name.lower(), None)
        # An empty variable counts as not set; an empty option is a mistake.
        value = (os.environ.get(env) or None if env else None) if given is None else given[1]
        if value is None:
            return default
        value = value.strip()
        if not value:
            raise OptionError(f"option {name} is empty; leave it out")
        return value

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        """Take one of several words."""
        text = (self.text(name, default) or default).lower()
        if text not in choices:
            raise OptionError(f"option {name}={text!r} is not one of {', '.join(choices)}")
        return text

    def boolean(self, name: str, default: bool) -> bool:
        """Take true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in _BOOLEANS:
            raise OptionError(f"option {name}={text!r} is neither true nor false")
        return _BOOLEANS[text.lower()]

    def number(self, name: str, default: int, *, least: int = 1) -> int:
        """Take a whole number."""
        found = self.number_or_none(name, least=least)
        return default if found is None else found

    def number_or_none(self, name: str, *, least: int = 1) -> int | None:
        """Take a whole number that may be left out."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            raise OptionError(f"option {name}={text!r} is not a whole number") from None
        if number < least:
            raise OptionError(f"option {name}={number} is less than {least}")
        return number

    def milliseconds(self, name: str, default: int, *, least: int = 1) -> float:
        """Take a number of milliseconds, as seconds."""
        return self.number(name, default, least=least) / 1000

    def duration(self, name: str, default: float) -> float:
        """Take a duration such as "15m" or "200 ms"; a bare number is seconds."""
        text = self.text(name)
        if text is None:
            return default
        match = _DURATION.fullmatch(text.lower())
        if match is None or match[2] not in _SECONDS:
            raise OptionError(f"option {name}={text!r} is not a duration; write 500ms, 30s or 15m")
        return float(match[1]) * _SECONDS[match[2]]

    def words(self, name: str) -> tuple[str, ...]:
        """Take words separated by commas; an empty tuple if the option is not given."""
        text = self.text(name)
        if text is None:
            return ()
        found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        if not found:
            raise OptionError(f"option {name}={text!r} holds no name")
        return found

    def json(self, name: str) -> Any:
        """Take a JSON object, or None."""
        text = self.text(name)
        if text is None:
            return None
        return json_object(name, text)

    def similar(self, names: Iterable[str]) -> str | None:
        """Return a hint if a given option resembles one of these names, else None."""
        known = tuple(names)
        for given, _ in self._given.values():
            for name in similar_names(given, known, likeness=0.75):
                return f"{given!r}; did you mean {name}?"
        return None

    def reject_unknown(self) -> None:
        """Reject options that were not taken.

        Raises:
            OptionError: An option is unknown; suggests a similar name if there is one.
        """
        for lower, (name, _) in self._given.items():
            raise OptionError(f"unknown option {name!r}{_hint(lower, self._known)}")


def json_object(name: str, text: str) -> dict[str, Any]:
    """Decode the JSON object that an option holds.

    Raises:
        OptionError: It is not JSON, or not an object.
    """
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise OptionError(f"option {name} is not JSON: {error}; given: {text[:200]!r}") from error
    if not isinstance(found, dict):
        raise OptionError(f"option {name} is not a JSON object: {text[:200]!r}")
    return found


def _hint(lower: str, known: Iterable[str]) -> str:
    if lower in _HINTS:
        return f": {_HINTS[lower]}"
    names = {name.lower(): name for name in known}.values()
    for name in similar_names(lower, names):
        return f"; did you mean {name}?"
    return f"; known are {', '.join(sorted(names))}"
