"""Parses the input of `send`: text or JSON lines become messages.

One rule: an invalid line is an error of that line only; parsing continues with the next line.
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

#: Fields that `tail --json` prints and a new message cannot have; they are ignored.
_RECEIVED_ONLY: Final = frozenset(
    {
        *("topic", "broker", "queue", "offset", "message_id", "offset_id", "system_properties"),
        *("born_at", "born_host", "stored_at", "delivery_attempts"),
    }
)


@dataclass(frozen=True, slots=True)
class InputLine:
    """One line of the input: its number, its size, and its message or the error."""

    number: int
    byte_count: int
    outcome: Message | RocketMQError


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDefaults:
    """Settings for all messages of a command; a JSON line can override them."""

    topic: str
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    sharding_key: str | None = None
    delay_level: int | None = None
    deliver_in: float | None = None

    def message(self, body: bytes | str, **own: Any) -> Message:
        """Return a message with these settings; `own` overrides them.

        Raises:
            OptionError: The message is invalid.
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
    """A message as a line of JSON; `tail --json` prints such lines.

    Attributes:
        body: A string is sent as text, anything else as JSON.
        body_base64: The body as base64, instead of `body`.
        tags: Tag to filter by.
        keys: Keys to find the message by.
        properties: User properties.
        sharding_key: Messages with the same key keep their order.
        delay_level: Delay level of the broker.
        deliver_in: Delay in seconds.
        deliver_at: Time of delivery, with a time zone.
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


def parse_lines(
    lines: Iterable[bytes], defaults: MessageDefaults, form: Literal["text", "json"]
) -> Iterator[InputLine]:
    """Parse each line; empty lines are skipped, but counted."""
    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        outcome: Message | RocketMQError
        if not text.strip() if form == "json" else not text:
            continue
        try:
            outcome = defaults.message(text) if form == "text" else _parse_json(text, defaults)
        except RocketMQError as error:
            outcome = error
        yield InputLine(number, len(line), outcome)


def _parse_json(text: bytes, defaults: MessageDefaults) -> Message:
    try:
        value = msgspec.json.decode(text)
        if isinstance(value, dict):
            value = {name: each for name, each in value.items() if name not in _RECEIVED_ONLY}
        line = msgspec.convert(value, JsonLine)
    except msgspec.MsgspecError as error:
        raise OptionError(f"invalid JSON line: {error}") from error
    names = (*("tags", "keys", "properties", "sharding_key"), *_DELAYS)
    own = {name: each for name in names if (each := getattr(line, name)) is not None}
    return defaults.message(_json_body(line), **own)


_DELAYS: Final = ("delay_level", "deliver_in", "deliver_at")


def _json_body(line: JsonLine) -> bytes | str:
    if (line.body is msgspec.UNSET) == (line.body_base64 is None):
        raise OptionError("invalid JSON line: it needs either 'body' or 'body_base64'")
    if line.body_base64 is not None:
        try:
            return base64.b64decode(line.body_base64, validate=True)
        except binascii.Error as error:
            raise OptionError(f"invalid JSON line: body_base64 is not base64: {error}") from error
    if isinstance(line.body, str):
        return line.body
    return json.dumps(line.body, ensure_ascii=False, separators=(",", ":"))
