"""Dead letters: the groups that have some, and those of one group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.console.cluster.pages.common import Note, Paging
    from downrange.console.cluster.pages.overview import DeadLetterCount


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroups:
    """The groups that have a dead-letter topic.

    Attributes:
        paging: Which part it is. Columns: "name".
        rows: Groups with their counts; figures are read for this page.
        notes: What is not known.
    """

    paging: Paging
    rows: tuple[DeadLetterCount, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    """A dead letter in a list.

    Attributes:
        id: Its id by place, unique; the one to select it by.
        message_id: The unique id of the message.
        origin_id: The offset id of the message in the topic that it was sent to.
        topic: The topic that it was sent to; None when the message does not say it.
        broker: The broker of its queue.
        queue: The number of its queue.
        offset: Its offset.
        died_at: When it became a dead letter.
        born_at: When its producer made it.
        attempts: How often it was delivered again.
        tags: Its tag.
        keys: Its keys.
        body_bytes: Size of its body, decompressed; with a problem, as it is stored.
        preview: The start of its body, on one line.
        problem: Why its body could not be decompressed, as in `MessageRow`.
    """

    id: str
    message_id: str
    origin_id: str
    topic: str | None
    broker: str
    queue: int
    offset: int
    died_at: datetime
    born_at: datetime
    attempts: int
    tags: str | None
    keys: tuple[str, ...]
    body_bytes: int
    preview: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersPage:
    """Some dead letters of a group.

    Attributes:
        group: The group.
        rows: By queue and offset.
        next: Where the next page begins, for `ClusterView.dead_letters`; None at the end.
        total: Dead letters that are stored.
        begin: Only those that died at this time or later.
        end: Only those that died at this time or earlier.
        notes: What is not known.
    """

    group: str
    rows: tuple[DeadLetterRow, ...]
    next: str | None
    total: int
    begin: datetime | None = None
    end: datetime | None = None
    notes: tuple[Note, ...] = ()
