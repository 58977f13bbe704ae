"""The options of a read; docs/guides/spark.md lists them all."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from downrange.client.flows.consuming.pull import EVERYTHING, Filter, by_sql, by_tags
from downrange.client.flows.validation import check_group
from downrange.errors import OptionError
from downrange.options.cluster import ConnectionOptions
from downrange.spark.option_reader import OptionReader, json_object
from downrange.spark.read.offsets import EARLIEST, LATEST, Positions, read_table
from downrange.spark.schema import TIME_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.model import QueueId

_WORDS: Final = ("earliest", "latest", "group")
SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
#: Where a queue begins for which no offset is given.
Edge: TypeAlias = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which queues to read: one of the first three, restricted by the last two.

    Attributes:
        topics: All queues of these topics.
        pattern: All queues of topics whose whole name matches this.
        queues: Topic, broker (None for every broker) and queue ids.
        queue_ids: Only queues of these numbers.
        brokers: Only queues of these brokers.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    queues: tuple[tuple[str, str | None, frozenset[int]], ...] = ()
    queue_ids: frozenset[int] | None = None
    brokers: frozenset[str] | None = None

    def includes(self, queue: QueueId) -> bool:
        """Whether to read a queue of one of the topics."""
        if self.queue_ids is not None and queue.number not in self.queue_ids:
            return False
        if self.brokers is not None and queue.broker not in self.brokers:
            return False
        return not self.queues or any(
            topic == queue.topic and broker in (None, queue.broker) and queue.number in numbers
            for topic, broker, numbers in self.queues
        )

    def missing(self, there: Iterable[QueueId]) -> list[str]:
        """Return what is named, but does not exist: most likely a typo."""
        queues = list(there)
        numbers = {queue.number for queue in queues}
        brokers = {queue.broker for queue in queues}
        found = [f"queueIds {number}" for number in sorted((self.queue_ids or numbers) - numbers)]
        found += [f"brokers {name}" for name in sorted((self.brokers or brokers) - brokers)]
        for topic, broker, named in self.queues:
            known = {
                queue.number
                for queue in queues
                if queue.topic == topic and broker in (None, queue.broker)
            }
            place = topic if broker is None else f"{topic} on {broker}"
            found += [f"queue {number} of {place}" for number in sorted(named - known)]
        return found

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The named topics, which must exist."""
        return self.topics or tuple(dict.fromkeys(topic for topic, _, _ in self.queues))

    @property
    def names(self) -> tuple[str, ...]:
        """The named topics, or the pattern; for errors."""
        return self.named_topics if self.pattern is None else (f"topics that match {self.pattern}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where a read begins or ends.

    Attributes:
        word: "earliest", "latest" or "group" for all queues not covered below.
        time_ms: The first message stored at this time or later, in all queues.
        topic_times_ms: The same by topic.
        offsets: By queue: an offset, -2 for the first and -1 for the next message.
        queue_times_ms: By queue: a time.
    """

    word: Literal["earliest", "latest", "group"] | None = None
    time_ms: int | None = None
    topic_times_ms: tuple[tuple[str, int], ...] = ()
    offsets: tuple[tuple[QueueId, int], ...] = ()
    queue_times_ms: tuple[tuple[QueueId, int], ...] = ()

    def of(self, queue: QueueId) -> Edge | Literal["group"] | datetime | int | None:
        """Return the bound of a queue: a word, a time, an offset, or None if it is not covered."""
        for known, offset in self.offsets:
            if known == queue:
                return offset
        time_ms = dict(self.queue_times_ms).get(queue)
        if time_ms is None:
            time_ms = dict(self.topic_times_ms).get(queue.topic, self.time_ms)
        if time_ms is not None:
            return datetime.fromtimestamp(time_ms / 1000, UTC)
        return self.word

    @property
    def named_queues(self) -> set[QueueId]:
        """The named queues, which must exist."""
        return {queue for queue, _ in (*self.offsets, *self.queue_times_ms)}

    @property
    def named_topics(self) -> set[str]:
        """The topics named without queues, which must exist."""
        return {topic for topic, _ in self.topic_times_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read. Sent to executors, so it pickles.

    Attributes:
        connection: The cluster to read from.
        selection: Which queues.
        starting: Where to begin; None for earliest in a batch and latest in a stream.
        ending: Where a batch ends; None for latest.
        group_fallback: Where a queue begins if the group has no offset in it.
        new_queue_start: Where a queue begins that appears later, or that the given offsets lack.
        is_loss_fatal: Whether lost messages fail the query (failOnDataLoss).
        message_filter: The filter that the broker applies.
        trigger_offsets_max: Messages of one trigger, at most.
        trigger_offsets_min: A trigger waits for this many messages ...
        trigger_delay_max: ... but not longer than this.
        partitions_min: Tasks, at least, if there are enough messages.
        partition_records_max: Messages of one task; a longer queue is split.
        partition_records_min: A task combines short queues until it has about this many messages.
        partitions_max: Tasks, at most.
        is_split: Whether a queue may be split over tasks, which loses its order between them.
        pull_concurrency: Requests in flight per task.
        pull_count: Messages per request; an Apache broker gives at most 32 by default.
        pull_bytes: Bytes per request, if the broker supports this limit.
        pull_timeout: How long one request may take.
        batch_rows: Rows of one Arrow batch, about.
        batch_bytes: Bytes of one Arrow batch, about.
        metadata_interval: How long ends of queues are cached.
        route_interval: How long routes are cached.
        fetch_retries: More attempts to look up queues and offsets, or to pull.
        retry_interval: The pause between two attempts.
        group: The consumer group of the reads.
        is_group_committed: Whether the group's offsets follow the stream, for monitoring.
        include_metadata: Whether the metadata columns are there.
    """

    connection: ConnectionOptions
    selection: Selection
    starting: Bound | None = None
    ending: Bound | None = None
    group_fallback: Edge = "earliest"
    new_queue_start: Edge = "earliest"
    is_loss_fatal: bool = True
    message_filter: Filter = EVERYTHING
    trigger_offsets_max: int | None = None
    trigger_offsets_min: int | None = None
    trigger_delay_max: float = 900.0
    partitions_min: int | None = None
    partition_records_max: int = 500_000
    partition_records_min: int = 10_000
    partitions_max: int | None = None
    is_split: bool = True
    pull_concurrency: int = 4
    pull_count: int = 2000
    pull_bytes: int = 2 * 1024 * 1024
    pull_timeout: float = 10.0
    batch_rows: int = 2000
    batch_bytes: int = 4 * 1024 * 1024
    metadata_interval: float = 0.2
    route_interval: float = 30.0
    fetch_retries: int = 3
    retry_interval: float = 0.2
    group: str = "spark-reader"
    is_group_committed: bool = False
    include_metadata: bool = False


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch or a stream.

    Raises:
        OptionError: An option is unknown, missing, wrong, or contradicts another.
    """
    reader = OptionReader(options)
    selection = _read_selection(reader)  # first: a missing one is the most useful error
    group = reader.text("group")
    if group is not None:
        check_group(group)
    parsed = ReadOptions(
        connection=ConnectionOptions.from_source_options(reader),
        selection=selection,
        starting=_read_bound(reader, "starting"),
        ending=_read_bound(reader, "ending"),
        group_fallback=_edge(reader, "groupOffsetsFallback"),
        new_queue_start=_edge(reader, "newQueueStart"),
        is_loss_fatal=reader.boolean("failOnDataLoss", True),
        message_filter=_read_filter(reader),
        trigger_offsets_max=reader.number_or_none("maxOffsetsPerTrigger"),
        trigger_offsets_min=reader.number_or_none("minOffsetsPerTrigger"),
        trigger_delay_max=reader.duration("maxTriggerDelay", 900.0),
        partitions_min=reader.number_or_none("minPartitions"),
        partition_records_max=reader.number("maxRecordsPerPartition", 500_000),
        partition_records_min=reader.number("minRecordsPerPartition", 10_000),
        partitions_max=reader.number_or_none("maxPartitions"),
        is_split=reader.choice("orderBy", "none", ("none", "queue")) == "none",
        pull_concurrency=reader.number("pullConcurrency", 4),
        pull_count=reader.number("pullBatchSize", 2000),
        pull_bytes=reader.number("pullBatchBytes", 2 * 1024 * 1024, least=1024),
        pull_timeout=reader.milliseconds("pullTimeoutMs", 10_000),
        batch_rows=reader.number("batchRows", 2000),
        batch_bytes=reader.number("batchBytes", 4 * 1024 * 1024, least=1024),
        metadata_interval=reader.milliseconds("metadataIntervalMs", 200, least=0),
        route_interval=reader.milliseconds("routeIntervalMs", 30_000, least=0),
        fetch_retries=reader.number("fetchOffset.numRetries", 3, least=0),
        retry_interval=reader.milliseconds("fetchOffset.retryIntervalMs", 200, least=0),
        is_group_committed=reader.boolean("commitGroupOffsets", False),
        include_metadata=reader.boolean("includeMetadata", False),
    )
    reader.reject_unknown()
    _check(parsed, group)
    return parsed if group is None else replace(parsed, group=group)


def _check(parsed: ReadOptions, group: str | None) -> None:
    least, most = parsed.trigger_offsets_min, parsed.trigger_offsets_max
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    fewest, highest = parsed.partitions_min, parsed.partitions_max
    if fewest is not None and highest is not None and fewest > highest:
        raise OptionError(f"minPartitions={fewest} is more than maxPartitions={highest}")
    if fewest is not None and not parsed.is_split:
        raise OptionError(
            "minPartitions splits queues, which orderBy=queue forbids; give one of them"
        )
    _check_bounds(parsed.starting, parsed.ending)
    if group is None:
        if parsed.is_group_committed:
            raise OptionError("commitGroupOffsets needs the option group")
        if parsed.starting is not None and parsed.starting.word == "group":
            raise OptionError("startingOffsets=group needs the option group")


def _check_bounds(starting: Bound | None, ending: Bound | None) -> None:
    """Reject an end before its start, as far as the two compare without a request."""
    if starting is None or ending is None:
        return
    first, last = starting.time_ms, ending.time_ms
    if first is not None and last is not None and first > last:
        raise OptionError(f"startingTimestamp={first} is later than endingTimestamp={last}")
    ends = dict(ending.offsets)
    for queue, begin in starting.offsets:
        end = ends.get(queue, LATEST)
        if begin > end >= 0:
            raise OptionError(f"startingOffsets={begin} is behind endingOffsets={end} of {queue}")


def _edge(reader: OptionReader, name: str) -> Edge:
    return cast("Edge", reader.choice(name, "earliest", ("earliest", "latest")))


def _read_filter(reader: OptionReader) -> Filter:
    tags, sql = reader.text("tags"), reader.text("sqlFilter")
    if tags is not None and sql is not None:
        raise OptionError("options tags and sqlFilter exclude each other; give one of them")
    return by_tags(tags or "*") if sql is None else by_sql(sql)


def _read_selection(reader: OptionReader) -> Selection:
    given = [name for name in SELECTIONS if reader.has(name)]
    if len(given) != 1:
        found = " and ".join(given) or reader.similar(SELECTIONS) or "none of them"
        raise OptionError(
            f"give exactly one of {', '.join(SELECTIONS)} to name the topics; given: {found}"
        )
    topics = reader.words("subscribe")
    pattern = reader.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option subscribePattern={pattern!r}: {error}") from error
    assigned = _read_assignment(reader.json("assign"))
    numbers = reader.words("queueIds")
    if any(not number.isdecimal() for number in numbers):
        raise OptionError(f"option queueIds={','.join(numbers)!r} is not a list of numbers")
    brokers = reader.words("brokers")
    return Selection(
        topics=topics,
        pattern=pattern,
        queues=assigned,
        queue_ids=frozenset(map(int, numbers)) if numbers else None,
        brokers=frozenset(brokers) if brokers else None,
    )


def _read_assignment(table: Any) -> tuple[tuple[str, str | None, frozenset[int]], ...]:
    """Read topic -> [queue ids], or topic -> broker -> [queue ids]."""
    form = 'write {"topic": {"broker": [0, 1]}}, or {"topic": [0, 1]} for every broker'
    found: list[tuple[str, str | None, frozenset[int]]] = []
    for topic, queues in (table or {}).items():
        by_broker = queues if isinstance(queues, dict) else {None: queues}
        for broker, numbers in by_broker.items():
            if not isinstance(numbers, list) or not numbers:
                raise OptionError(f"option assign: {numbers!r} of {topic!r} is not a list; {form}")
            if any(type(number) is not int or number < 0 for number in numbers):
                raise OptionError(f"option assign: {numbers!r} of {topic!r} are not queue ids")
            found.append((topic, broker, frozenset(numbers)))
    if table is not None and not found:
        raise OptionError(f"option assign names no queue; {form}")
    return tuple(found)


def _read_bound(reader: OptionReader, prefix: Literal["starting", "ending"]) -> Bound | None:
    """Take the options of a start or an end; as with Kafka, a time has priority over offsets."""
    time = reader.text(f"{prefix}Timestamp")
    by_time = reader.json(f"{prefix}OffsetsByTimestamp")
    name = f"{prefix}Offsets"
    offsets = reader.text(name)
    if time is not None:
        return Bound(time_ms=_time_ms(f"{prefix}Timestamp", time))
    if by_time is not None:
        return _bound_by_time(f"{prefix}OffsetsByTimestamp", by_time)
    if offsets is None:
        return None
    if offsets.lower() in _WORDS:
        if prefix == "ending" and offsets.lower() != "latest":
            raise OptionError(f"option {name}={offsets!r} is neither latest nor JSON")
        return Bound(word=cast("Any", offsets.lower()))
    if not offsets.startswith("{"):
        raise OptionError(f"option {name}={offsets!r} is neither {', '.join(_WORDS)} nor JSON")
    table = json_object(name, offsets)
    if type(table.get("v")) is int:  # copied from a stream's progress
        return Bound(offsets=tuple(Positions.from_json(table).items()))
    # A read cannot end before the first message.
    least = EARLIEST if prefix == "starting" else LATEST
    found = read_table(name, table, least=least)
    if not found:
        raise OptionError(f"option {name} names no queue: {offsets}")
    return Bound(offsets=tuple(found.items()))


def _bound_by_time(name: str, table: dict[str, Any]) -> Bound:
    """Read topic -> time, or topic -> broker -> queue id -> time."""
    topics = {topic: time for topic, time in table.items() if not isinstance(time, dict)}
    queues = {topic: brokers for topic, brokers in table.items() if topic not in topics}
    if not table:
        raise OptionError(f"option {name} names no topic")
    times = read_table(name, queues, read=lambda time: _time_ms(name, time))
    return Bound(
        topic_times_ms=tuple((topic, _time_ms(name, time)) for topic, time in topics.items()),
        queue_times_ms=tuple(times.items()),
    )


def _time_ms(name: str, given: Any) -> int:
    """Read milliseconds since 1970, or a time in ISO 8601 with its zone."""
    text = str(given)
    if text.isdecimal():
        if int(text) > TIME_MS_MAX:
            raise OptionError(f"option {name}: {text} is after the year 9999")
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"option {name}: {text!r} is neither milliseconds since 1970 nor a time in ISO 8601"
        ) from None
    if at.utcoffset() is None:
        raise OptionError(f"option {name}: {text!r} has no time zone; write {text}Z for UTC")
    return int(at.timestamp() * 1000)
