"""Compares the acknowledged messages with the stored ones and with the rows in Parquet.

Ids are compared, not only counts: a retry after a lost answer may store a message twice. A count
could hide a lost message behind such a copy. The rules, for each topic:

    every acknowledged id is stored
    no id that was rolled back or recalled is stored
    at most as many other ids are stored as messages were sent without an acknowledgement
    the Parquet files hold what is stored: each position of each queue once
    a group that reads the topic to its end has handled every acknowledged id with its tags, except
    those that are in its dead-letter topic
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange import Admin, PullConsumer
from downrange.demo.workload import CLIENT
from downrange.errors import CallTimeout, RocketMQError
from downrange.wire.system_names import TOOLS_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from downrange.demo.consumers import ConsumerProgress
    from downrange.demo.send_log import SendCounts, SendLog
    from downrange.model import QueueId

_POLL: Final = 0.1
_POLL_COUNT: Final = 2000
_CALL_TIMEOUT: Final = 10.0
_READ_TIMEOUT: Final = 60.0
#: How many ids a problem names.
_IDS_NAMED: Final = 3


class Position(NamedTuple):
    """The broker, queue and offset of a message."""

    broker: str
    queue: int
    offset: int


@dataclass(slots=True)
class FoundMessages:
    """The messages of one topic that were read from brokers or from Parquet files.

    Attributes:
        ids: Position -> the message's id.
        repeated: Positions that were found more than once.
        tags: Id -> the message's tags, where brokers were read.
    """

    ids: dict[Position, str] = field(default_factory=dict[Position, str])
    repeated: int = 0
    tags: dict[str, str | None] = field(default_factory=dict[str, "str | None"])

    def add(self, position: Position, message_id: str) -> None:
        """Add a message."""
        self.repeated += position in self.ids
        self.ids[position] = message_id

    def unique(self) -> set[str]:
        """Return the distinct ids."""
        return set(self.ids.values())

    def copies(self) -> int:
        """Return how many messages repeat the id of another one."""
        return len(self.ids) - len(self.unique())

    def by_broker(self) -> dict[str, int]:
        """Return the number of messages on each broker."""
        return dict(Counter(position.broker for position in self.ids))


class StoreReader:
    """Reads all messages of some topics with a pull consumer; a context manager.

    Args:
        name_server: Address of the name server.
        topics: Topics to read.

    Attributes:
        found: Topic -> the messages that were read so far.
    """

    def __init__(self, name_server: str, topics: Sequence[str]) -> None:
        self._topics = list(topics)
        self._consumer = PullConsumer(name_server, group=TOOLS_GROUP, client_options=CLIENT)
        self.found: dict[str, FoundMessages] = {topic: FoundMessages() for topic in topics}

    def __enter__(self) -> StoreReader:
        """Start reading at the first message of each queue."""
        self._consumer.start()
        self._consumer.assign(self._topics, start="earliest", timeout=_CALL_TIMEOUT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the consumer."""
        self._consumer.close()

    def poll(self) -> int:
        """Read the messages that have arrived; return their number."""
        try:
            messages = self._consumer.poll(_POLL, max_count=_POLL_COUNT)
        except RocketMQError as error:
            if not error.retryable:
                raise
            return 0  # a broker is down; the consumer keeps fetching in the background
        for message in messages:
            queue, found = message.queue, self.found[message.topic]
            found.add(Position(queue.broker, queue.number, message.offset), message.message_id)
            found.tags[message.message_id] = message.tags
        return len(messages)

    def missing(self, send_logs: Iterable[SendLog]) -> int:
        """Return how many acknowledged messages were not read yet."""
        return sum(
            len(send_log.acknowledged - self.found[send_log.topic].unique())
            for send_log in send_logs
        )

    def read_to_end(self, deadline: float) -> bool:
        """Read everything that is stored now; return False if the deadline passes before."""
        ends = self._ends()
        while not self._has_reached(ends):
            if time.monotonic() > deadline:
                return False
            self.poll()
        return True

    def wait_for(
        self,
        send_logs: Sequence[SendLog],
        deadline: float,
        on_progress: Callable[[int], None] = lambda missing: None,
    ) -> bool:
        """Read until every acknowledged message was read; False if the deadline passes before.

        Args:
            send_logs: The acknowledged messages; all senders have ended.
            deadline: When to give up, on the monotonic clock.
            on_progress: Called with the number of messages that are still missing.
        """
        while missing := self.missing(send_logs):
            on_progress(missing)
            if time.monotonic() > deadline:
                return False
            self.poll()
        on_progress(0)
        return self.read_to_end(deadline)

    def _ends(self) -> dict[QueueId, int]:
        with Admin(self._consumer.client) as admin:
            return {
                state.queue: state.max_offset
                for topic in self._topics
                for state in admin.topic_stats(topic, timeout=_CALL_TIMEOUT)
            }

    def _has_reached(self, ends: Mapping[QueueId, int]) -> bool:
        positions = {queue: self._consumer.position(queue) for queue in self._consumer.queues()}
        return all((positions.get(queue) or 0) >= end for queue, end in ends.items())


def read_stored(name_server: str, topics: Iterable[str]) -> dict[str, FoundMessages]:
    """Return the stored messages of each topic.

    Raises:
        CallTimeout: Reading takes more than a minute.
    """
    with StoreReader(name_server, list(topics)) as reader:
        if not reader.read_to_end(time.monotonic() + _READ_TIMEOUT):
            raise CallTimeout(name_server, _READ_TIMEOUT)
        return reader.found


# ---- comparison ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCheck:
    """The result of the comparison for one topic.

    Attributes:
        topic: Its name.
        mode: How messages were sent.
        sent: What the sender counted.
        stored: Messages that the brokers hold.
        copies: Stored messages that repeat the id of another one.
        landed: Rows in Parquet; None when Spark did not run.
        brokers: Number of messages on each broker.
        problems: The rules that do not hold; empty when all hold.
    """

    topic: str
    mode: str
    sent: SendCounts
    stored: int
    copies: int
    landed: int | None
    brokers: Mapping[str, int]
    problems: tuple[str, ...]


def check_topic(
    send_log: SendLog, stored: FoundMessages, landed: FoundMessages | None, later: FoundMessages
) -> TopicCheck:
    """Compare the messages that were sent, stored and landed in Parquet.

    Args:
        send_log: What the sender recorded.
        stored: What the brokers held when the lake job began.
        landed: The rows in Parquet; None when Spark did not run.
        later: What the brokers held when the lake job had ended.
    """
    sent, stored_ids = send_log.counts(), later.unique()
    problems: list[str] = []
    if lost := send_log.acknowledged - stored.unique():
        problems.append(f"{len(lost)} acknowledged, but not stored: {_first_ids(lost)}")
    if visible := send_log.withdrawn & stored_ids:
        problems.append(
            f"{len(visible)} rolled back or recalled, but stored: {_first_ids(visible)}"
        )
    extra = len(stored_ids - send_log.acknowledged - send_log.withdrawn)
    if extra > sent.unknown + sent.oneway + sent.failed:
        problems.append(f"{extra} stored, but not sent")
    if landed is not None:
        problems += _landing_problems(stored, landed, later)
    return TopicCheck(
        topic=send_log.topic,
        mode=send_log.mode,
        sent=sent,
        stored=len(later.ids),
        copies=later.copies(),
        landed=None if landed is None else len(landed.ids) + landed.repeated,
        brokers=later.by_broker(),
        problems=tuple(problems),
    )


def check_group(
    progress: ConsumerProgress, send_log: SendLog, stored: FoundMessages, dead_letters: set[str]
) -> tuple[str, ...]:
    """Return what a group has missed; nothing for a group that stops early.

    Args:
        progress: What the group has done.
        send_log: What the sender of its topic recorded.
        stored: What the brokers hold of its topic.
        dead_letters: The ids in its dead-letter topic.
    """
    plan = progress.plan
    if progress.problem is not None:
        return (f"group {plan.group} ended early: {progress.problem}",)
    if plan.share < 1:
        return ()
    problems: list[str] = []
    wanted = {one for one in send_log.acknowledged if plan.reads(stored.tags.get(one))}
    if missed := wanted - progress.handled - dead_letters:
        problems.append(f"{len(missed)} not handled by {plan.group}: {_first_ids(missed)}")
    if lost := progress.dead - dead_letters:
        problems.append(f"{len(lost)} dead letters of {plan.group} are lost: {_first_ids(lost)}")
    return tuple(problems)


def _landing_problems(
    stored: FoundMessages, landed: FoundMessages, later: FoundMessages
) -> list[str]:
    problems: list[str] = []
    if missing := stored.ids.keys() - landed.ids.keys():
        problems.append(f"{len(missing)} stored, but not landed: {_first_ids(map(str, missing))}")
    if unknown := landed.ids.keys() - later.ids.keys():
        problems.append(f"{len(unknown)} landed, but not stored: {_first_ids(map(str, unknown))}")
    if landed.repeated:
        problems.append(f"{landed.repeated} rows landed twice")
    differing = [
        position
        for position, message_id in landed.ids.items()
        if later.ids.get(position, message_id) != message_id
    ]
    if differing:
        problems.append(
            f"{len(differing)} landed with another id: {_first_ids(map(str, differing))}"
        )
    return problems


def _first_ids(ids: Iterable[str]) -> str:
    first = sorted(ids)
    more = f" and {len(first) - _IDS_NAMED} more" if len(first) > _IDS_NAMED else ""
    return ", ".join(first[:_IDS_NAMED]) + more
