r"""Trace records: events in the life of a message, each one line of text in the trace topic.

The body of a trace message is any number of records in UTF-8. The first field of a record is its
type, `\x01` separates fields, and `\x02` ends a record, as in Java's `TraceDataEncoder`:

    Pub             time_ms region group topic message_id tags keys address body_bytes cost_ms
                    message_type offset_id is_success
    SubBefore       time_ms region group request_id message_id retry_count keys
    SubAfter        request_id message_id cost_ms is_success keys result time_ms group
    EndTransaction  time_ms region group topic message_id tags keys address message_type
                    transaction_id state is_from_check
    Recall          time_ms region group topic message_id is_success

One rule: a class lists its fields in the order of the wire, so the class is the codec. Java writes
a missing text as `null`, which is None here; a tag that is really called "null" becomes None, too.
Decoding never raises an error: a malformed record is an `UnknownTrace`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_BETWEEN_FIELDS: Final = "\x01"
_AFTER_RECORD: Final = "\x02"
_ABSENT: Final = "null"
#: Fields of an old `Pub` without an offset id; `is_success` is in its place.
_PUB_FIELDS_WITHOUT_OFFSET_ID: Final = 13
_OFFSET_ID_AT: Final = 12


class PubTrace(msgspec.Struct, array_like=True, tag="Pub", kw_only=True, gc=False):
    """A producer sent a message, or a batch, and the broker answered.

    Attributes:
        time_ms: When it began.
        region: The broker's region.
        group: The producer's group.
        topic: The topic, without a namespace.
        message_id: The unique id; for a batch, the ids of its messages, joined by commas.
        tags: Tags of the message.
        keys: Keys of the message, joined by blanks.
        address: The broker's address.
        body_bytes: The size of the body in the request, after compression.
        cost_ms: How long it took.
        message_type: A `MessageType`.
        offset_id: The broker's id of the message.
        is_success: Whether the status was SEND_OK.
        client_host: The sender's host; only very old producers write it.
    """

    time_ms: int
    region: str | None
    group: str | None
    topic: str | None
    message_id: str | None
    tags: str | None
    keys: str | None
    address: str | None
    body_bytes: int
    cost_ms: int
    message_type: int
    offset_id: str | None = None
    is_success: bool = True
    client_host: str | None = None


class SubBeforeTrace(msgspec.Struct, array_like=True, tag="SubBefore", kw_only=True, gc=False):
    """A consumer begins to handle a message.

    Attributes:
        time_ms: When.
        region: The broker's region.
        group: The consumer's group.
        request_id: The same in the `SubAfterTrace` of this delivery.
        message_id: The unique id.
        retry_count: How many retries came before this delivery.
        keys: Keys of the message, joined by blanks.
    """

    time_ms: int
    region: str | None
    group: str | None
    request_id: str | None
    message_id: str | None
    retry_count: int
    keys: str | None = None


class SubResult(IntEnum):
    """How the handler of a consumer ended (Java: ConsumeReturnType)."""

    SUCCESS = 0
    TIMED_OUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4


class SubAfterTrace(msgspec.Struct, array_like=True, tag="SubAfter", kw_only=True, gc=False):
    """A consumer has handled a message.

    Attributes:
        request_id: The same as in the `SubBeforeTrace` of this delivery.
        message_id: The unique id.
        cost_ms: How long it took.
        is_success: Whether the message was consumed.
        keys: Keys of the message, joined by blanks.
        result: A `SubResult`.
        time_ms: When; missing from old releases and from consumers of a cloud.
        group: The consumer's group; missing like `time_ms`.
    """

    request_id: str | None
    message_id: str | None
    cost_ms: int
    is_success: bool
    keys: str | None = None
    result: int = 0
    time_ms: int | None = None
    group: str | None = None


class EndTransactionTrace(
    msgspec.Struct, array_like=True, tag="EndTransaction", kw_only=True, gc=False
):
    """A producer sent the outcome of a transaction.

    Attributes:
        time_ms: When.
        region: The broker's region.
        group: The producer's group.
        topic: The topic, without a namespace.
        message_id: The unique id of the half message.
        tags: Tags of the message.
        keys: Keys of the message, joined by blanks.
        address: The broker's address.
        message_type: `MessageType.COMMIT` for every outcome.
        transaction_id: The id of the transaction.
        state: Java's name of the outcome: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        is_from_check: Whether it answers a check of the broker.
    """

    time_ms: int
    region: str | None
    group: str | None
    topic: str | None
    message_id: str | None
    tags: str | None
    keys: str | None
    address: str | None
    message_type: int
    transaction_id: str | None
    state: str | None
    is_from_check: bool


class RecallTrace(msgspec.Struct, array_like=True, tag="Recall", kw_only=True, gc=False):
    """A producer recalled a timed message (5.x).

    Attributes:
        time_ms: When.
        region: The broker's region.
        group: The producer's group.
        topic: The topic, without a namespace.
        message_id: The unique id.
        is_success: Whether the broker deleted the message.
    """

    time_ms: int
    region: str | None
    group: str | None
    topic: str | None
    message_id: str | None
    is_success: bool


class UnknownTrace(msgspec.Struct):
    """A record of an unknown type, or a malformed one.

    Attributes:
        fields: Its fields as text, the type first.
    """

    fields: list[str]


KnownTrace: TypeAlias = (
    PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace | RecallTrace
)
TraceRecord: TypeAlias = KnownTrace | UnknownTrace
_KINDS: Final[dict[str, type[KnownTrace]]] = {
    "Pub": PubTrace,
    "SubBefore": SubBeforeTrace,
    "SubAfter": SubAfterTrace,
    "EndTransaction": EndTransactionTrace,
    "Recall": RecallTrace,
}

# Consumers of a cloud end a SubAfter with `result \x01`, and 4.9 then omits the `\x02`: the type of
# the next record is in the place of the time.
_STUCK: Final = re.compile(rf"(?<=\x01\d)\x01(?=(?:{'|'.join(_KINDS)})\x01)")


def encode_contexts(records: Iterable[TraceRecord]) -> bytes:
    """Encode records as the body of a trace message, in the bytes that Java writes."""
    # Java, too, writes a question mark for half a surrogate pair.
    return "".join([_encode(record) for record in records]).encode(errors="replace")


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Decode the body of a trace message of any release; never raises."""
    records: list[TraceRecord] = []
    for line in body.decode(errors="replace").split(_AFTER_RECORD):
        if line:
            record = _decode(line)
            if isinstance(record, UnknownTrace) and _STUCK.search(line):
                records += map(_decode, _STUCK.split(line))
            else:
                records.append(record)
    return records


def index_keys(record: TraceRecord) -> list[str]:
    """Return the keys to find a trace by: the ids of its messages, and their keys.

    Java indexes the trace of a batch by all of its ids in one text; here each id is a key.
    """
    if isinstance(record, UnknownTrace):
        return []
    keys = record.message_id.replace(",", " ").split() if record.message_id else []
    if not isinstance(record, RecallTrace) and record.keys:
        keys += record.keys.split()
    return keys


def _encode(record: TraceRecord) -> str:
    if isinstance(record, UnknownTrace):
        return _BETWEEN_FIELDS.join(record.fields) + _AFTER_RECORD
    values: list[Any] = msgspec.to_builtins(record)
    if type(record) is PubTrace:
        values.pop()  # the client's host, which current releases do not write
    elif type(record) is SubAfterTrace and record.time_ms is None and record.group is None:
        values[-2:] = [""]  # as Java does for a cloud; it cannot read a time that is missing
    texts = [
        # lower: Java's booleans are true and false
        value if type(value) is str else _ABSENT if value is None else str(value).lower()
        for value in values
    ]
    return _BETWEEN_FIELDS.join(texts) + _AFTER_RECORD


def _decode(line: str) -> TraceRecord:
    # As in Java's split: empty texts at the end are dropped.
    fields = line.rstrip(_BETWEEN_FIELDS).split(_BETWEEN_FIELDS)
    kind = _KINDS.get(fields[0])
    if kind is None:
        return UnknownTrace(fields)
    values = [None if field == _ABSENT else field for field in fields]
    if kind is PubTrace and len(fields) == _PUB_FIELDS_WITHOUT_OFFSET_ID:
        values.insert(_OFFSET_ID_AT, None)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError:
        return UnknownTrace(fields)
