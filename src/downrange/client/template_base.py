"""The part of `MessageTemplate` and `AsyncMessageTemplate` that never waits: values to messages.

One rule: a template holds no resources; its producer is started and closed by the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Required, TypedDict, TypeVar, Unpack, cast, overload

from downrange.checks import (
    check_optional_text,
    check_text,
    check_type,
    iterated,
    wrong_type,
)
from downrange.client.converters import CONTENT_TYPE, Converter, Converters
from downrange.errors import OptionError
from downrange.model import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from downrange.model import ReceivedMessage

ValueT = TypeVar("ValueT")
#: Spring's prefix of the names of RocketMQ's own headers; both forms are accepted.
_HEADER_PREFIX: Final = "rocketmq_"
_FLAGS: Final = {"true": True, "false": False}


class Details(TypedDict, total=False):
    """What a message can have besides destination and payload; all as in `Message`.

    Attributes:
        keys: Words to look the message up by.
        properties: Your own names and values.
        delay_level: Deliver after the delay of this level.
        deliver_in: Deliver after so many seconds.
        deliver_at: Deliver at this time.
    """

    keys: Iterable[str]
    properties: Mapping[str, str] | None
    delay_level: int | None
    deliver_in: float | None
    deliver_at: datetime | None


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload with headers, as Spring's `Message`; a template takes it in place of a payload.

    Attributes:
        payload: The value to convert into the body.
        headers: Names and values. KEYS (a text, or several keys), TAGS, FLAG (a number) and
            WAIT_STORE_MSG_OK (a bool) become the fields of the message; so do these names with the
            prefix `rocketmq_`. All others become properties: numbers and bools as text, None is
            left out. Arguments of the call and the tag of the destination have precedence.

    Example:
        ```python
        template.convert_and_send("orders:paid", Envelope(order, {"KEYS": "o-7", "shop": 12}))
        ```
    """

    payload: object
    headers: Mapping[str, object] = field(default_factory=dict[str, object])


class _Headers(TypedDict, total=False):
    """The fields of a message that headers of an envelope set."""

    tags: str
    keys: Iterable[str]
    flag: int
    wait_stored: bool
    properties: Required[dict[str, str]]


class TemplateBase:
    """Converters and the default topic of a template."""

    def __init__(self, converters: Iterable[Converter], default_topic: str | None) -> None:
        check_optional_text("default_topic", default_topic)
        self._converters = Converters(converters)
        self._default_topic = default_topic

    def message(self, destination: str, payload: object, **details: Unpack[Details]) -> Message:
        """Return the message that would be sent.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body, or an `Envelope` of it.
            details: Keys, properties, delay.

        Raises:
            OptionError: There is no topic, no converter takes the payload, or a detail is invalid.
        """
        check_text("destination", destination)
        topic, _, tag = destination.partition(":")
        topic = topic or self._default_topic or ""
        if not topic:
            raise OptionError(
                f"destination {destination!r} names no topic; write 'topic:tag', or give the "
                "template a default_topic"
            )
        given = details.get("properties")
        if given is not None:
            check_type("properties", given, Mapping, "a dict of str to str")
        if isinstance(payload, Envelope):
            headers = _opened(payload)
            payload = payload.payload
            tag = tag or headers.get("tags", "")
            if "keys" in headers:
                details.setdefault("keys", headers["keys"])
            own = {**headers["properties"], **(given or {})}
            flag, wait_stored = headers.get("flag", 0), headers.get("wait_stored", True)
        else:
            own, flag, wait_stored = dict(given or {}), 0, True
        body, details["properties"] = self._converted(payload, own)
        return Message(topic, body, tags=tag or None, flag=flag, wait_stored=wait_stored, **details)

    @overload
    def receive(self, message: ReceivedMessage, as_type: None = None) -> Any: ...
    @overload
    def receive(self, message: ReceivedMessage, as_type: type[ValueT]) -> ValueT: ...
    def receive(self, message: ReceivedMessage, as_type: Any = None) -> Any:
        """Return the value in the body of a message.

        Args:
            message: A message from any sender.
            as_type: The type to convert to. Without one, the message's `contentType` decides: JSON
                becomes plain values, text a str, everything else bytes.

        Raises:
            MalformedBody: The body does not hold such a value.
        """
        return self._converters.receive(message, as_type)

    def _converted(
        self, payload: object, properties: Mapping[str, str] | None = None
    ) -> tuple[bytes, dict[str, str]]:
        """Return the body of a value, and the properties with its content type."""
        body, content_type = self._converters.encode(payload)
        # A content type from the caller is more specific than the converter's.
        return body, {CONTENT_TYPE: content_type, **(properties or {})}

    def _messages(
        self, destination: str, payloads: Iterable[object], properties: Mapping[str, str] | None
    ) -> Iterator[Message]:
        if isinstance(payloads, str | bytes):  # its characters are hardly what is meant
            raise wrong_type("payloads", payloads, "a list of values", "write [payload]")
        values = iterated("payloads", payloads, "a list of values")
        return (self.message(destination, one, properties=properties) for one in values)

    def _reply(self, payload: object) -> tuple[bytes, dict[str, Any]]:
        """Return the body of a reply, and its tags, keys and properties."""
        if not isinstance(payload, Envelope):
            body, properties = self._converted(payload)
            return body, {"properties": properties}
        headers = cast("dict[str, Any]", _opened(payload))
        if refused := {"flag", "wait_stored"} & headers.keys():
            raise OptionError(f"a reply cannot have the headers of {' and '.join(sorted(refused))}")
        body, headers["properties"] = self._converted(payload.payload, headers["properties"])
        return body, headers


def _opened(envelope: Envelope) -> _Headers:
    """Return the fields of a message in the headers of an envelope.

    Raises:
        OptionError: Names the header whose value cannot be used.
    """
    fields: _Headers = {"properties": {}}
    check_type("headers", envelope.headers, Mapping, "a dict")
    for name, value in envelope.headers.items():
        check_text("each name of headers", name)
        if value is None:
            continue
        match name.removeprefix(_HEADER_PREFIX):
            case "KEYS":
                fields["keys"] = _keys(name, value)
            case "TAGS":
                fields["tags"] = _text(name, value)
            case "FLAG":
                fields["flag"] = _number(name, value)
            case "WAIT_STORE_MSG_OK":
                fields["wait_stored"] = _flag(name, value)
            case _:
                fields["properties"][name] = _text(name, value)
    return fields


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise OptionError(f"header {name!r} = {value!r} is not a text, number or bool")


def _keys(name: str, value: object) -> list[str]:
    if isinstance(value, list | tuple | set | frozenset):
        return [_text(name, key) for key in cast("Iterable[object]", value)]
    return _text(name, value).split()


def _number(name: str, value: object) -> int:
    text = _text(name, value)
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"header {name!r} = {value!r} is not a whole number") from None


def _flag(name: str, value: object) -> bool:
    flag = _FLAGS.get(_text(name, value).lower())
    if flag is None:
        raise OptionError(f"header {name!r} = {value!r} is not True or False")
    return flag
