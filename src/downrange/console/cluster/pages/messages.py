"""Messages: results of a search, one message in detail, and the live tail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.console.cluster.pages.common import Note

#: What the text of the search box was taken for. An empty text shows the newest messages.
SearchKind: TypeAlias = Literal["id", "key", "time", "offset", "newest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message in a list.

    Attributes:
        topic: Its topic.
        broker: The broker of its queue.
        queue: The number of its queue.
        offset: Its offset in the queue.
        message_id: Its unique id.
        offset_id: Its id by place; finds it without the index.
        tags: Its tag.
        keys: Its keys.
        stored_at: When the broker stored it.
        born_at: When the producer made it.
        body_bytes: Size of its body, decompressed; with a problem, as it is stored.
        preview: The start of its body as text, on one line; unprintable characters are replaced.
        problem: Why its body could not be decompressed for a list. Its own page may show it: there,
            it may be larger.
    """

    topic: str
    broker: str
    queue: int
    offset: int
    message_id: str
    offset_id: str
    tags: str | None
    keys: tuple[str, ...]
    stored_at: datetime
    born_at: datetime
    body_bytes: int
    preview: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        topic: The topic that was searched.
        text: The text of the search box.
        kind: What the text was taken for.
        meaning: The same as a sentence, such as "key 'o-1'" or "stored at 12:00:00 or later".
        messages: What was found, in the order of storing; the newest messages are the other way
            round.
        scanned: Messages that were read for it.
        stopped: Why it ended: "complete", "rows" (enough rows), "scanned" (`limits.SCAN_MAX`),
            "deadline", "bytes".
        notes: For example "scanned 5000, stopped because …".
    """

    topic: str
    text: str
    kind: SearchKind
    meaning: str
    messages: tuple[MessageRow, ...]
    scanned: int
    stopped: str
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A body in each form that it has.

    Attributes:
        size: Its bytes, decompressed.
        compression: How it was compressed on its way: "zlib", "lz4", "zstd"; None if it was not.
        text: As UTF-8 text; None if it is not text.
        json: As indented JSON; None if it is not JSON.
        hex: As lines of offset, hexadecimal bytes and text.
        is_cut: Whether it is longer than `limits.BODY_SHOWN_BYTES`, so that `text` and `hex` have
            its start only.
        problem: Why it could not be decompressed.
    """

    size: int
    compression: str | None
    text: str | None
    json: str | None
    hex: str
    is_cut: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One step in the life of a message, from trace records.

    Attributes:
        at: When it began.
        step: "send", "receive", "process", "end transaction" or "recall".
        group: The group of the client.
        client: The address of the client.
        seconds: How long it took; None when it is not known, or the step has no end.
        is_ok: Whether it succeeded; None when it is not known.
        detail: More in a few words, such as the queue, or "delivery 2".
    """

    at: datetime
    step: str
    group: str
    client: str
    seconds: float | None
    is_ok: bool | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTrace:
    """The trace of one message.

    Attributes:
        is_on: Whether the cluster has a trace topic.
        steps: The steps by time; empty when its clients do not trace, or records have expired.
        stopped: As in `SearchResult`.
        problem: Why it could not be read.
    """

    is_on: bool
    steps: tuple[TraceStep, ...] = ()
    stopped: str = "complete"
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Whether a group has consumed a message, by its committed offset.

    Attributes:
        group: The group.
        is_consumed: Whether its offset is past the message; None when it has none.
        members: Client ids of its connected members.
    """

    group: str
    is_consumed: bool | None
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDetail:
    """One message.

    Attributes:
        row: Its line of a list.
        born_host: The address of its producer.
        delivery_attempts: How often it was delivered again.
        flag: The producer's number.
        log_offset: Its place in the commit log.
        properties: All of them, by name.
        body: Its body.
        trace: Its time line.
        deliveries: What the groups did with it that read its topic.
        python: Source text that sends the same message; for "copy as Python".
        command: A command line that shows this message.
    """

    row: MessageRow
    born_host: str
    delivery_attempts: int
    flag: int
    log_offset: int
    properties: dict[str, str]
    body: Body
    trace: MessageTrace
    deliveries: tuple[Delivery, ...]
    python: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest:
    """Which messages of a topic to follow.

    Attributes:
        topic: The topic.
        filter_kind: How `filter` is meant: "none", "tags" such as "new || paid", "sql", or "text"
            that the body, a key or a property contains. A compressed body is looked at if it has
            at most `limits.LISTED_BODY_BYTES`.
        filter: The filter.
        start: "latest" for new messages only, or "earliest".
    """

    topic: str
    filter_kind: Literal["none", "tags", "sql", "text"] = "none"
    filter: str = ""
    start: Literal["latest", "earliest"] = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class TailBatch:
    """Some messages of a tail. A batch without messages says that the tail still runs.

    Attributes:
        messages: Messages that passed the filter.
        scanned: Messages that the tail has read, from its start.
        matched: Messages that passed the filter, from its start.
        dropped: Messages that passed, and were left out because there were too many at once.
        stopped: Why the tail has ended, as in `SearchResult`; None while it runs. "gone" if the
            cluster does not answer.
        problem: The reason as a sentence.
    """

    messages: tuple[MessageRow, ...]
    scanned: int
    matched: int
    dropped: int = 0
    stopped: str | None = None
    problem: str | None = None
