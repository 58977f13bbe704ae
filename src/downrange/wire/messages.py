"""Messages of the API as the protocol has them: properties and batches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from downrange.errors import Unencodable
from downrange.model import Message
from downrange.native import twin
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.properties import PropertyKey, encode_properties
from downrange.wire.records import encode_batch

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def properties_of(message: Message, unique_id: str) -> dict[str, str]:
    """Return all properties of a message: the user's, then those of the protocol."""
    properties = dict(message.properties)
    if message.keys:
        properties[PropertyKey.KEYS] = " ".join(message.keys)
    properties[PropertyKey.UNIQUE_KEY] = unique_id
    properties[PropertyKey.WAIT] = "true" if message.wait_stored else "false"
    if message.tags:
        properties[PropertyKey.TAGS] = message.tags
    if message.sharding_key:
        properties[PropertyKey.SHARDING_KEY] = message.sharding_key
    if message.delay_level:
        properties[PropertyKey.DELAY] = str(message.delay_level)
    if message.deliver_in:
        properties[PropertyKey.TIMER_DELAY_MS] = str(round(message.deliver_in * 1000))
    if message.deliver_at:
        since_epoch = message.deliver_at - _EPOCH
        properties[PropertyKey.TIMER_DELIVER_MS] = str(round(since_epoch.total_seconds() * 1000))
    return properties


def property_text(message: Message, unique_id: str) -> str:
    """Return the property string of a message: `encode_properties(properties_of(…))`, but faster.

    Raises:
        Unencodable: A name or value is empty or contains one of the two separators, or all of them
            are too long together.
    """
    own, keys, tags = message.properties, message.keys, message.tags
    is_special = (
        message.sharding_key or message.delay_level or message.deliver_in or message.deliver_at
    )
    wait = "true" if message.wait_stored else "false"
    text = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}\x02"
    if not (own or keys or tags or is_special):
        return text
    count = len(own) + 2
    if keys:
        text = f"KEYS\x01{' '.join(keys)}\x02{text}"
        count += 1
    if own:
        text = "".join([f"{name}\x01{value}\x02" for name, value in own.items()]) + text
    if tags:
        text += f"TAGS\x01{tags}\x02"
        count += 1
    if (
        is_special
        or text.count("\x01") != count
        or text.count("\x02") != count
        or "\x01\x02" in text
        or "" in own
    ):
        text = encode_properties(properties_of(message, unique_id))
    if len(text) > PROPERTIES_BYTES_MAX or not text.isascii():
        check_property_bytes(text)
    return text


def pure_usual_properties(message: Message, body_bytes_max: int, unique_id: str) -> str | None:
    """Return the property string of a message of the usual form, which needs no other check.

    None means that it needs a closer look, by `check_message` and `property_text`: it is not a
    plain `Message` with a body that is allowed, is delayed, or has a sharding key, a flag, a
    property that `usual_own_text` does not take, or other characters than ASCII. Its topic is not
    checked.
    """
    if (
        message.__class__ is not Message
        or message.flag
        or message.sharding_key is not None
        or message.delay_level is not None
        or message.deliver_in is not None
        or message.deliver_at is not None
        or message.body.__class__ is not bytes
        or not 0 < len(message.body) <= body_bytes_max
    ):
        return None
    text = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{'true' if message.wait_stored else 'false'}\x02"
    own, keys, tags = message.properties, message.keys, message.tags
    if not own and not keys and tags is None:
        return text
    if keys:
        joined = " ".join(keys)
        if not is_plain(joined):
            return None
        text = f"KEYS\x01{joined}\x02{text}"
    if own:
        own_text = usual_own_text(own)
        if own_text is None:
            return None
        text = own_text + text
    if tags is not None:
        if not is_plain(tags):
            return None
        text = f"{text}TAGS\x01{tags}\x02"
    return text if len(text) <= PROPERTIES_BYTES_MAX else None


def usual_own_text(own: dict[str, str]) -> str | None:
    """Return the user's properties as text, if all of them are of the usual form.

    The names of the protocol begin with a capital letter, a digit or "_". So a name that begins
    with a small letter is not one of them, and is not blank; nor is a value that begins with a
    visible character. None means that a property needs a closer look.
    """
    text = ""
    for name, value in own.items():
        if not (
            name.__class__ is str
            and value.__class__ is str
            and "a" <= name[:1] <= "z"
            and "!" <= value[:1] <= "~"
            and is_plain(name)
            and is_plain(value)
        ):
            return None
        text += f"{name}\x01{value}\x02"
    return text


def is_plain(text: str) -> bool:
    """Whether a text is in ASCII, not empty, and has no separator."""
    return bool(text) and text.isascii() and "\x01" not in text and "\x02" not in text


usual_properties: Final = twin(pure_usual_properties)


def check_property_bytes(text: str) -> None:
    """Check the bytes of a property string.

    Raises:
        Unencodable: There are too many, or a property has no form in UTF-8.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        name = text[: error.start].rpartition("\x02")[2].partition("\x01")[0]
        problem = "half a surrogate pair, which UTF-8 does not have"
        raise Unencodable(f"property {name!r}", problem) from error
    if size > PROPERTIES_BYTES_MAX:
        raise Unencodable(
            "keys, tags and properties together",
            f"{size} bytes, {PROPERTIES_BYTES_MAX} are allowed; put large values into the body",
        )


def pure_batch_of(messages: list[Message], ids: list[str]) -> bytes:
    """Write messages, each with its unique id, as the body of one batch.

    Raises:
        Unencodable: A property cannot be encoded, or a part does not fit its field.
    """
    return encode_batch(
        (message.flag, message.body, property_text(message, unique_id).encode())
        for message, unique_id in zip(messages, ids, strict=False)
    )


batch_of: Final = twin(pure_batch_of)
