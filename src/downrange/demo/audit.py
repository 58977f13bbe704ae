"""Did the brokers keep word? What was acknowledged, stored and landed, held against each other.

Ids are compared, not only counts: a retry after a lost answer may store a message twice, which is
no loss, and a count would hide a loss behind it. The rules, for each topic:

    every acknowledged id is stored
    no id that was rolled back or recalled is stored
    what is stored beyond that is no more than what was handed over without an acknowledgement
    what landed is what is stored: each position of each queue once
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.client.admin import Admin
from downrange.client.consumer import PullConsumer
from downrange.demo.workload import CLIENT
from downrange.errors import CallTimeout, RocketMQError
from downrange.wire.system_names import TOOLS_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from downrange.demo.ledger import Account, Tally
    from downrange.model import QueueId

_POLL: Final = 0.1
_POLL_COUNT: Final = 2000
_CALL_TIMEOUT: Final = 10.0
_READ_TIMEOUT: Final = 60.0
#: How many ids an error names.
_NAMED: Final = 3


class Position(NamedTuple):
    """Where a message lies."""

    broker: str
    queue: int
    offset: int


@dataclass(slots=True)
class Found:
    """The messages of a topic that somebody has found.

    Attributes:
        ids: Position -> the message's id.
        repeated: Positions that were found more than once.
    """

    ids: dict[Position, str] = field(default_factory=dict[Position, str])
    repeated: int = 0

    def add(self, position: Position, message_id: str) -> None:
        """Note a message."""
        self.repeated += position in self.ids
        self.ids[position] = message_id

    def unique(self) -> set[str]:
        """Return the ids."""
        return set(self.ids.values())

    def copies(self) -> int:
        """Return how many messages are there beyond one of each id."""
        return len(self.ids) - len(self.unique())

    def by_broker(self) -> dict[str, int]:
        """Return how many lie on each broker."""
        return dict(Counter(position.broker for position in self.ids))


class StoreReader:
    """Reads all topics as any consumer would, and knows what is there; a context manager.

    Args:
        name_server: Where to connect.
        topics: What to read.
    """

    def __init__(self, name_server: str, topics: Sequence[str]) -> None:
        self._topics = list(topics)
        self._consumer = PullConsumer(name_server, group=TOOLS_GROUP, client_options=CLIENT)
        self.found: dict[str, Found] = {topic: Found() for topic in topics}

    def __enter__(self) -> StoreReader:
        """Start reading."""
        self._consumer.start()
        self._consumer.assign(self._topics, start="earliest", timeout=_CALL_TIMEOUT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self._consumer.close()

    def poll(self) -> int:
        """Read what has come; return how many messages that were."""
        try:
            messages = self._consumer.poll(_POLL, max_count=_POLL_COUNT)
        except RocketMQError as error:
            if not error.retryable:
                raise
            return 0  # brokers are away; fetching goes on in the background
        for message in messages:
            queue = message.queue
            self.found[queue.topic].add(
                Position(queue.broker, queue.number, message.offset), message.message_id
            )
        return len(messages)

    def missing(self, accounts: Iterable[Account]) -> int:
        """Return how many acknowledged messages were not found yet."""
        return sum(
            len(account.acknowledged - self.found[account.topic].unique()) for account in accounts
        )

    def read_to_the_end(self, deadline: float) -> bool:
        """Read all that is there at this moment; return whether that was in time."""
        ends = self._ends()
        while not self._is_past(ends):
            if time.monotonic() > deadline:
                return False
            self.poll()
        return True

    def wait_for(
        self,
        accounts: Sequence[Account],
        deadline: float,
        tell: Callable[[int], None] = lambda missing: None,
    ) -> bool:
        """Read until everything that was acknowledged is there; return whether it came to that.

        Args:
            accounts: What was acknowledged; nobody sends any more.
            deadline: When to give up, on the monotonic clock.
            tell: Told how many are still missing.
        """
        while missing := self.missing(accounts):
            tell(missing)
            if time.monotonic() > deadline:
                return False
            self.poll()
        tell(0)
        return self.read_to_the_end(deadline)

    def _ends(self) -> dict[QueueId, int]:
        with Admin(self._consumer.client) as admin:
            return {
                state.queue: state.max_offset
                for topic in self._topics
                for state in admin.topic_stats(topic, timeout=_CALL_TIMEOUT)
            }

    def _is_past(self, ends: Mapping[QueueId, int]) -> bool:
        positions = {queue: self._consumer.position(queue) for queue in self._consumer.queues()}
        return all((positions.get(queue) or 0) >= end for queue, end in ends.items())


def read_stored(name_server: str, topics: Iterable[str]) -> dict[str, Found]:
    """Return what the brokers hold: topic -> its messages.

    Raises:
        CallTimeout: It takes too long.
    """
    with StoreReader(name_server, list(topics)) as reader:
        if not reader.read_to_the_end(time.monotonic() + _READ_TIMEOUT):
            raise CallTimeout(name_server, _READ_TIMEOUT)
        return reader.found


# ---- holding them against each other -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCheck:
    """One topic, from sending to landing.

    Attributes:
        topic: Its name.
        mode: How messages were sent.
        sent: What the sender was told.
        stored: Messages that the brokers hold.
        copies: Those of them that are there a second time.
        landed: Rows in Parquet; None when nothing was landed.
        brokers: How many messages lie on each broker.
        problems: Which rules do not hold; empty when all do.
    """

    topic: str
    mode: str
    sent: Tally
    stored: int
    copies: int
    landed: int | None
    brokers: Mapping[str, int]
    problems: tuple[str, ...]


def check_topic(account: Account, stored: Found, landed: Found | None, later: Found) -> TopicCheck:
    """Hold what was sent, stored and landed against each other.

    Args:
        account: What the sender was told.
        stored: What the brokers held when landing began.
        landed: What is in Parquet; None when nothing was landed.
        later: What the brokers held when landing was over.
    """
    sent, there = account.tally(), later.unique()
    problems: list[str] = []
    if lost := account.acknowledged - stored.unique():
        problems.append(f"{len(lost)} acknowledged, but not stored: {_named(lost)}")
    if shown := account.withdrawn & there:
        problems.append(f"{len(shown)} rolled back or recalled, but stored: {_named(shown)}")
    extra = len(there - account.acknowledged - account.withdrawn)
    if extra > sent.oneway + sent.failed:
        problems.append(f"{extra} stored that nobody sent")
    if landed is not None:
        problems += _landing_problems(stored, landed, later)
    return TopicCheck(
        topic=account.topic,
        mode=account.mode,
        sent=sent,
        stored=len(later.ids),
        copies=later.copies(),
        landed=None if landed is None else len(landed.ids) + landed.repeated,
        brokers=later.by_broker(),
        problems=tuple(problems),
    )


def _landing_problems(stored: Found, landed: Found, later: Found) -> list[str]:
    problems: list[str] = []
    if missing := stored.ids.keys() - landed.ids.keys():
        problems.append(f"{len(missing)} stored, but not landed: {_named(map(str, missing))}")
    if unknown := landed.ids.keys() - later.ids.keys():
        problems.append(f"{len(unknown)} landed, but not stored: {_named(map(str, unknown))}")
    if landed.repeated:
        problems.append(f"{landed.repeated} rows landed twice")
    differing = [
        position
        for position, message_id in landed.ids.items()
        if later.ids.get(position, message_id) != message_id
    ]
    if differing:
        problems.append(f"{len(differing)} landed with another id: {_named(map(str, differing))}")
    return problems


def _named(ids: Iterable[str]) -> str:
    first = sorted(ids)
    more = f" and {len(first) - _NAMED} more" if len(first) > _NAMED else ""
    return ", ".join(first[:_NAMED]) + more
