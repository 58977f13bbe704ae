"""The part of `MessageTemplate` and `AsyncMessageTemplate` that never waits: values to messages.

One rule: a template holds no resources; its producer is started and closed by the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from downrange.client.converters import CONTENT_TYPE, Converter, Converters
from downrange.errors import OptionError
from downrange.model import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from downrange.model import ReceivedMessage

ValueT = TypeVar("ValueT")


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


class TemplateBase:
    """Converters and the default topic of a template."""

    def __init__(self, converters: Iterable[Converter], default_topic: str | None) -> None:
        self._converters = Converters(converters)
        self._default_topic = default_topic

    def message(self, destination: str, payload: object, **details: Unpack[Details]) -> Message:
        """Return the message that would be sent.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body.
            details: Keys, properties, delay.

        Raises:
            OptionError: There is no topic, no converter takes the payload, or a detail is invalid.
        """
        topic, _, tag = destination.partition(":")
        topic = topic or self._default_topic or ""
        if not topic:
            raise OptionError(
                f"destination {destination!r} names no topic; write 'topic:tag', or give the "
                "template a default_topic"
            )
        body, properties = self._converted(payload, details.get("properties"))
        details["properties"] = properties
        return Message(topic, body, tags=tag or None, **details)

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
        return (self.message(destination, one, properties=properties) for one in payloads)
