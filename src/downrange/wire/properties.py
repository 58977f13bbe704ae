r"""The property string of a message: `name \x01 value \x02`, repeated.

Releases differ in whether the last `\x02` is written; readers accept both. Java drops a property
without a value when it reads. The two separators cannot be escaped. So a name or value with one of
them raises an error, instead of giving a string that reads as something else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from downrange.errors import Unencodable

if TYPE_CHECKING:
    from collections.abc import Mapping


class PropertyKey(StrEnum):
    """Names of the protocol's own properties (Java: `MessageConst`)."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
    UNIQUE_KEY = "UNIQ_KEY"
    INSTANCE_ID = "INSTANCE_ID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    TRANSACTION_ID = "__transactionId__"
    CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    RETRY_TOPIC = "RETRY_TOPIC"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    CLUSTER = "CLUSTER"
    MESSAGE_TYPE = "MSG_TYPE"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    SHARDING_KEY = "__SHARDINGKEY"
    POP_CHECKPOINT = "POP_CK"
    POP_CHECKPOINT_OFFSET = "POP_CK_OFFSET"
    FIRST_POP_TIME = "1ST_POP_TIME"
    ORIGIN_GROUP = "ORIGIN_GROUP"
    INNER_COUNT = "INNER_NUM"
    INNER_BASE = "INNER_BASE"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    DEAD_LETTER_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
    DEAD_LETTER_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
    BORN_TIMESTAMP = "BORN_TIMESTAMP"
    BORN_HOST = "__BORNHOST"
    RECORD_CRC = "__CRC32#"


#: Name -> the bytes before its value in a property string, if it is not the first one.
_MARKS: Final = {key.value: f"\x02{key}\x01".encode() for key in PropertyKey}


def encode_properties(properties: Mapping[str, str]) -> str:
    """Write a property string, with the last separator, as releases from 5.2 on do.

    Raises:
        Unencodable: A name or value is empty or contains one of the two separators.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    # A valid string has one separator of each kind per property, and no empty part.
    count = len(properties)
    if (
        text.count("\x01") != count
        or text.count("\x02") != count
        or "" in properties
        or "" in properties.values()
    ):
        raise _unencodable(properties)
    return text


def decode_properties(text: str) -> dict[str, str]:
    """Read a property string as Java does: items without a name or value are dropped."""
    properties: dict[str, str] = {}
    for item in text.split("\x02"):
        name, _, value = item.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def index_properties(data: bytes) -> tuple[str | None, str | None, str | None]:
    """Return the values of UNIQ_KEY, KEYS and TAGS: those that the indexes of a store need.

    They are the same as in `decode_properties`, at half the cost.

    Args:
        data: The bytes of a property string; those that are not UTF-8 become U+FFFD.
    """
    data = b"\x02" + data  # now each name is between two separators
    _, unique_found, rest = data.rpartition(b"\x02UNIQ_KEY\x01")
    unique = rest.partition(b"\x02")[0]
    _, keys_found, rest = data.rpartition(b"\x02KEYS\x01")
    keys = rest.partition(b"\x02")[0]
    _, tags_found, rest = data.rpartition(b"\x02TAGS\x01")
    tags = rest.partition(b"\x02")[0]
    if (unique_found and not unique) or (keys_found and not keys) or (tags_found and not tags):
        # An empty value does not count, but an earlier one of the same name may.
        known = decode_properties(data.decode("utf-8", "replace"))
        return known.get("UNIQ_KEY"), known.get("KEYS"), known.get("TAGS")
    return (
        unique.decode("utf-8", "replace") if unique_found else None,
        keys.decode("utf-8", "replace") if keys_found else None,
        tags.decode("utf-8", "replace") if tags_found else None,
    )


def find_property(data: bytes, key: str) -> str | None:
    """Return the value of one property: that of `decode_properties`, without the other ones.

    Args:
        data: The bytes of a property string; those that are not UTF-8 become U+FFFD.
        key: The name of a property of the protocol.
    """
    mark = _MARKS[key]
    _, found, rest = data.rpartition(mark)
    if not found:
        if not data.startswith(mark[1:]):
            return None
        rest = data[len(mark) - 1 :]
    value = rest.partition(b"\x02")[0]
    if not value:  # it does not count, but an earlier one of the same name may
        return decode_properties(data.decode("utf-8", "replace")).get(key)
    return value.decode("utf-8", "replace")


def _unencodable(properties: Mapping[str, str]) -> Unencodable:
    bad = next(
        (name, value)
        for name, value in properties.items()
        if not name or not value or {"\x01", "\x02"} & {*name, *value}
    )
    return Unencodable(
        f"property {bad[0]!r}", f"name or value is empty or contains a separator: {bad[1][:80]!r}"
    )
