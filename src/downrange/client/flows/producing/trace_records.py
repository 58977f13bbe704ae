r"""Trace records: what happened to a message, as one line of text in the trace topic.

A trace message's body is any number of records in UTF-8. The first field of a record is its type,
`\x01` stands between fields and `\x02` after each record; Java's `TraceDataEncoder` sets the truth:

    Pub             time_ms region group topic message_id tags keys address body_bytes cost_ms
                    message_type offset_id is_success
    SubBefore       time_ms region group request_id message_id retry_count keys
    SubAfter        request_id message_id cost_ms is_success keys result time_ms group
    EndTransaction  time_ms region group topic message_id tags keys address message_type
                    transaction_id state is_from_check
    Recall          time_ms region group topic message_id is_success

One rule: a class lists its fields in the order of the wire, so the class is the codec. A text that
Java does not have reads `null` there and is None here; a tag that is really called "null" is lost
that way. Nothing in a trace is worth an error: what cannot be understood is an `UnknownTrace`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_BETWEEN_FIELDS: Final = "\x01"
_AFTER_RECORD: Final = "\x02"
_ABSENT: Final = "null"
#: Fields of a `Pub` from before offset ids were traced; `is_success` stands in their place.
_PUB_FIELDS_WITHOUT_OFFSET_ID: Final = 13
_OFFSET_ID_AT: Final = 12


class PubTrace(msgspec.Struct, array_like=True, tag="Pub", kw_only=True, gc=False):
    """A producer sent a message, or a batch, and the broker answered.

    Attributes:
        time_ms: When it began.
        region: Where the broker says it stands.
        group: The producer's.
        topic: The topic, without a namespace.
        message_id: The unique id; for a batch, those of its messages, joined by commas.
        tags: Of the message.
        keys: Of the message, joined by blanks.
        address: The broker's.
        body_bytes: How long the body was on the wire, so after compression.
        cost_ms: How long it took.
        message_type: A `MessageType`.
        offset_id: The broker's own id.
        is_success: Whether it was stored without complaint.
        client_host: Who sent it; only very old producers say so.
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
    """A consumer is about to handle a message.

    Attributes:
        time_ms: When.
        region: Where the broker says it stands.
        group: The consumer's.
        request_id: The same in the `SubAfterTrace` of this delivery.
        message_id: The unique id.
        retry_count: How often the group had given it back.
        keys: Of the message, joined by blanks.
    """

    time_ms: int
    region: str | None
    group: str | None
    request_id: str | None
    message_id: str | None
    retry_count: int
    keys: str | None = None


class SubAfterTrace(msgspec.Struct, array_like=True, tag="SubAfter", kw_only=True, gc=False):
    """A consumer has handled a message.

    Attributes:
        request_id: The same as in the `SubBeforeTrace` of this delivery.
        message_id: The unique id.
        cost_ms: How long it took.
        is_success: Whether it is done with.
        keys: Of the message, joined by blanks.
        result: 0 success, 1 timed out, 2 exception, 3 returned nothing, 4 failed.
        time_ms: When; not said by old releases and consumers of a cloud.
        group: The consumer's; see `time_ms`.
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
    """A producer told the broker how a transaction ended.

    Attributes:
        time_ms: When.
        region: Where the broker says it stands.
        group: The producer's.
        topic: The topic, without a namespace.
        message_id: The unique id of the half message.
        tags: Of the message.
        keys: Of the message, joined by blanks.
        address: The broker's.
        message_type: `MessageType.COMMIT`, whatever the end was.
        transaction_id: Of the transaction.
        state: Java's name of the end: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        is_from_check: Whether the broker had asked.
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
    """A producer took a timed message back (5.x).

    Attributes:
        time_ms: When.
        region: Where the broker says it stands.
        group: The producer's.
        topic: The topic, without a namespace.
        message_id: The unique id.
        is_success: Whether it was in time.
    """

    time_ms: int
    region: str | None
    group: str | None
    topic: str | None
    message_id: str | None
    is_success: bool


class UnknownTrace(msgspec.Struct):
    """A record of a type we do not know, or one that is not what its type says.

    Attributes:
        fields: Its texts as they stand there, the type first.
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

# Consumers of a cloud end a SubAfter with `result \x01`, and 4.9 then forgets the mark: the type of
# the next record stands where the time would.
_STUCK: Final = re.compile(rf"(?<=\x01\d)\x01(?=(?:{'|'.join(_KINDS)})\x01)")


def encode_contexts(records: Iterable[TraceRecord]) -> bytes:
    """Write records as the body of a trace message, in the bytes that Java writes."""
    # Java writes a question mark for half a surrogate pair, too.
    return "".join([_encode(record) for record in records]).encode(errors="replace")


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Read the body of a trace message of any release; never raises."""
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
    """Return what a trace should be found by: the ids of its messages, and their keys.

    Java finds the trace of a batch only by all of its ids in one text; here it is each of them.
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
        values.pop()  # the client's host, which nobody writes any more
    texts = [
        # lower: Java's booleans are true and false
        value if type(value) is str else _ABSENT if value is None else str(value).lower()
        for value in values
    ]
    return _BETWEEN_FIELDS.join(texts) + _AFTER_RECORD


def _decode(line: str) -> TraceRecord:
    # As Java splits: empty texts at the end do not count.
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
