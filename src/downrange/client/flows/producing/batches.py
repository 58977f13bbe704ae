"""Batches: which messages may share one, and how to split a list of messages.

One rule: everything here is lazy. A list of any length, or an endless stream, is read one message
at a time, and at most one batch is kept in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from downrange.client.flows.validation import check_is_message, invalid
from downrange.errors import InvalidMessage, Unencodable
from downrange.model import CompressedMessage, Message
from downrange.native import twin
from downrange.wire.limits import BATCH_MESSAGES_MAX, PROPERTIES_BYTES_MAX
from downrange.wire.messages import is_plain, property_text, usual_own_text
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ItemT = TypeVar("ItemT")

#: Bytes of a message in a batch besides body and properties: five i32 and an i16 (wire/records.py).
_ITEM_BYTES: Final = 5 * 4 + 2
#: A separator follows the name of each property, and another one its value.
_MARK_BYTES: Final = 2
_KEYS_BYTES: Final = len("KEYS") + _MARK_BYTES
_TAGS_BYTES: Final = len("TAGS") + _MARK_BYTES
_SHARDING_KEY_BYTES: Final = len("__SHARDINGKEY") + _MARK_BYTES
#: The two properties of every message, without the unique id; "false" for WAIT is one byte longer.
_PROPERTY_BYTES_MIN: Final = len("UNIQ_KEY") + len("WAIT") + len("true") + 2 * _MARK_BYTES

#: Bytes of a message that has only a body, besides the body.
_BARE_BYTES: Final = _ITEM_BYTES + _PROPERTY_BYTES_MIN + 32


def split(
    items: Iterable[ItemT], bytes_max: int, size_of: Callable[[ItemT], int]
) -> Iterator[list[ItemT]]:
    """Split messages, or other items, into batches that fit, by bytes and by `BATCH_MESSAGES_MAX`.

    Args:
        items: Any iterable; it is read up to one item behind the batch that is yielded.
        bytes_max: The most bytes of a batch.
        size_of: Returns the bytes of an item in a batch; `size_in_batch` for messages.

    Raises:
        InvalidMessage: An item is larger than a batch. Items before it that were not yielded yet
            are dropped.
    """
    batch: list[ItemT] = []
    room = bytes_max
    for index, item in enumerate(items):
        size = size_of(item)
        if size > bytes_max:
            raise InvalidMessage(
                f"message {index} takes {size} bytes in a batch, more than the limit of "
                f"{bytes_max} (body_bytes_max)"
            )
        if size > room or len(batch) == BATCH_MESSAGES_MAX:
            yield batch
            batch, room = [], bytes_max
        batch.append(item)
        room -= size
    if batch:
        yield batch


def size_in_batch(message: Message, unique_id_bytes: int = 32) -> int:
    """Return how many bytes a message takes in a batch, usually without encoding it.

    Args:
        message: A message that may be in a batch, see `check_batch`.
        unique_id_bytes: The length of unique ids; 56 when they contain an IPv6 address.

    Raises:
        InvalidMessage: A property cannot be encoded; the whole batch would fail.
    """
    own = message.properties
    size = _PROPERTY_BYTES_MIN + unique_id_bytes + (not message.wait_stored)
    if not (own or message.keys or message.tags or message.sharding_key):
        return _ITEM_BYTES + len(message.body) + size
    size += _MARK_BYTES * len(own)
    text = "".join(own) + "".join(own.values())
    if message.keys:
        text += " ".join(message.keys)
        size += _KEYS_BYTES
    if message.tags:
        text += message.tags
        size += _TAGS_BYTES
    if message.sharding_key:
        text += message.sharding_key
        size += _SHARDING_KEY_BYTES
    size += len(text)
    if size > PROPERTIES_BYTES_MAX or not text.isascii() or "\x01" in text or "\x02" in text:
        # A rare case: encoding it gives the size, or the error.
        try:
            text = property_text(message, "0" * unique_id_bytes)
        except Unencodable as error:
            raise invalid(message, str(error)) from error
        size = len(text.encode())
    return _ITEM_BYTES + len(message.body) + size


def bare_bytes(message: Message, body_bytes_max: int) -> int | None:
    """Return how many bytes a message takes in a batch, if it is valid and has only a body.

    As `usual_batch_bytes` for one message, but faster. None means that it needs a closer look.
    """
    if message.__class__ is not Message:
        return None
    body = message.body
    if (
        body.__class__ is not bytes
        or message.properties
        or message.keys
        or message.tags is not None
        or message.sharding_key is not None
        or message.delay_level is not None
        or message.deliver_in is not None
        or message.deliver_at is not None
        or message.flag
        or not 0 < len(body) <= body_bytes_max
    ):
        return None
    return _BARE_BYTES + len(body) + (not message.wait_stored)


def pure_usual_batch_bytes(
    messages: list[Message], body_bytes_max: int, unique_id_bytes: int = 32
) -> int | None:
    """Return how many bytes messages take as one batch, if all of them are of the usual form.

    None means that they need a closer look: one breaks a rule of `check_batch` or `check_message`,
    or has a sharding key, a flag, a property that `usual_own_text` does not take, or other
    characters than ASCII. Their topic is not checked.

    Args:
        messages: The messages.
        body_bytes_max: The most bytes of a body.
        unique_id_bytes: The length of unique ids; 56 when they contain an IPv6 address.
    """
    whole = 0
    topic = wait_stored = None
    for message in messages:
        if topic is None and message.__class__ is Message:
            topic, wait_stored = message.topic, message.wait_stored
        if (
            message.__class__ is not Message
            or message.topic != topic
            or message.wait_stored is not wait_stored
            or message.sharding_key is not None
            or message.delay_level is not None
            or message.deliver_in is not None
            or message.deliver_at is not None
            or message.flag
            or message.body.__class__ is not bytes
            or not 0 < len(message.body) <= body_bytes_max
        ):
            return None
        size = _PROPERTY_BYTES_MIN + unique_id_bytes + (not wait_stored)
        if message.properties:
            own = usual_own_text(message.properties)
            if own is None:
                return None
            size += len(own)
        if message.keys:
            text = " ".join(message.keys)
            size += _KEYS_BYTES + len(text)
            if not is_plain(text):
                return None
        if message.tags is not None:
            size += _TAGS_BYTES + len(message.tags)
            if not is_plain(message.tags):
                return None
        if size > PROPERTIES_BYTES_MAX:
            return None
        whole += _ITEM_BYTES + len(message.body) + size
    return whole


usual_batch_bytes: Final = twin(pure_usual_batch_bytes)


def check_batch(messages: Sequence[Message]) -> None:
    """Check that messages can share a batch, before any of them is sent.

    Raises:
        InvalidMessage: Names the first message that cannot, see `checked`.
    """
    if not messages:
        return
    first = messages[0]
    check_is_message(first, "message 0")
    topic, wait_stored = first.topic, first.wait_stored
    is_retry = topic.startswith(RETRY_PREFIX)
    for index, message in enumerate(messages):
        if message.__class__ is not Message:
            check_is_message(message, f"message {index}")
        # The same conditions as in `_problem_with`, which words the error.
        if (
            message.topic != topic
            or message.wait_stored != wait_stored
            or message.delay_level
            or message.deliver_in
            or message.deliver_at
            or type(message) is CompressedMessage
            or is_retry
        ):
            raise InvalidMessage(f"message {index} {_problem_with(message, first)}")


def checked(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages of a stream while they can share a batch.

    All must have the same topic and `wait_stored`, because a request has one value of each for all
    its messages. Brokers do not delay batches, and do not accept them for retry topics.

    Raises:
        InvalidMessage: Names the first message that breaks a rule.
    """
    first: Message | None = None
    for index, message in enumerate(messages):
        if message.__class__ is not Message:
            check_is_message(message, f"message {index}")
        if first is None:
            first = message
        problem = _problem_with(message, first)
        if problem is not None:
            raise InvalidMessage(f"message {index} {problem}")
        yield message


def is_delayed(message: Message) -> bool:
    """Return whether a message is to be delivered later, by level, delay or time."""
    return bool(message.delay_level or message.deliver_in or message.deliver_at)


def _problem_with(message: Message, first: Message) -> str | None:
    if message.topic != first.topic:
        return (
            f"is for topic {message.topic!r}, but the first one for {first.topic!r}; a batch has "
            "one topic"
        )
    if message.wait_stored != first.wait_stored:
        return (
            f"has wait_stored={message.wait_stored}, but the first one {first.wait_stored}; it "
            "must be the same in a batch"
        )
    if is_delayed(message):
        return "is to be delivered later, but batches cannot be delayed; send it separately"
    if type(message) is CompressedMessage:
        return "is compressed already, but batches are not compressed; send it separately"
    if message.topic.startswith(RETRY_PREFIX):
        return (
            f"is for retry topic {message.topic!r}, which does not accept batches; send it "
            "separately"
        )
    return None
