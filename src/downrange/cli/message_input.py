"""What `send` sends: from an argument, a file, lines or lines of JSON to messages.

One rule: a line that makes no message is an error of that line, and the next one is read.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from downrange.errors import OptionError, RocketMQError
from downrange.model import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: What `tail --json` says of a message and a new one cannot have; taken and passed over.
_OF_THE_PAST: Final = frozenset(
    {
        *("topic", "broker", "queue", "offset", "message_id", "offset_id", "system_properties"),
        *("born_at", "born_host", "stored_at", "delivery_attempts"),
    }
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input: its number, its bytes, and its message or why it makes none."""

    number: int
    byte_count: int
    outcome: Message | RocketMQError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What all messages of a command have in common; a line of JSON may say otherwise."""

    topic: str
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    sharding_key: str | None = None
    delay_level: int | None = None
    deliver_in: float | None = None

    def message(self, body: bytes | str, **own: Any) -> Message:
        """Make a message.

        Raises:
            OptionError: It breaks a rule.
        """
        settings: dict[str, Any] = {
            "tags": self.tags,
            "keys": self.keys,
            "sharding_key": self.sharding_key,
        }
        if not own.keys() & {"delay_level", "deliver_in", "deliver_at"}:
            settings |= {"delay_level": self.delay_level, "deliver_in": self.deliver_in}
        properties = {**dict(self.properties), **own.pop("properties", {})}
        return Message(self.topic, body, properties=properties, **{**settings, **own})


class JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    """A message as a line of JSON; one that `tail --json` printed is such a line.

    Attributes:
        body: A text; anything else is sent as JSON.
        body_base64: Any bytes, instead.
        tags: One word to filter by.
        keys: Words to look it up by.
        properties: Names and values.
        sharding_key: Messages with the same one keep their order.
        delay_level: The broker's level of delay.
        deliver_in: Seconds to wait.
        deliver_at: When to deliver, with a time zone.
    """

    body: Any = msgspec.UNSET
    body_base64: str | None = None
    tags: str | None = None
    keys: list[str] | str | None = None
    properties: dict[str, str] | None = None
    sharding_key: str | None = None
    delay_level: int | None = None
    deliver_in: float | None = None
    deliver_at: datetime | None = None


def messages_of(
    lines: Iterable[bytes], pattern: Pattern, form: Literal["text", "json"]
) -> Iterator[Line]:
    """Make a message of each line; empty lines are passed over, but counted."""
    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        outcome: Message | RocketMQError
        if not text.strip() if form == "json" else not text:
            continue
        try:
            outcome = pattern.message(text) if form == "text" else _of_json(text, pattern)
        except RocketMQError as error:
            outcome = error
        yield Line(number, len(line), outcome)


def _of_json(text: bytes, pattern: Pattern) -> Message:
    try:
        value = msgspec.json.decode(text)
        if isinstance(value, dict):
            value = {name: each for name, each in value.items() if name not in _OF_THE_PAST}
        line = msgspec.convert(value, JsonLine)
    except msgspec.MsgspecError as error:
        raise OptionError(f"no message in JSON: {error}") from error
    names = (*("tags", "keys", "properties", "sharding_key"), *_DELAYS)
    own = {name: each for name in names if (each := getattr(line, name)) is not None}
    return pattern.message(_body_of(line), **own)


_DELAYS: Final = ("delay_level", "deliver_in", "deliver_at")


def _body_of(line: JsonLine) -> bytes | str:
    if (line.body is msgspec.UNSET) == (line.body_base64 is None):
        raise OptionError("no message in JSON: it needs either 'body' or 'body_base64'")
    if line.body_base64 is not None:
        try:
            return base64.b64decode(line.body_base64, validate=True)
        except binascii.Error as error:
            raise OptionError(f"no message in JSON: body_base64 is not base64: {error}") from error
    if isinstance(line.body, str):
        return line.body
    return json.dumps(line.body, ensure_ascii=False, separators=(",", ":"))
