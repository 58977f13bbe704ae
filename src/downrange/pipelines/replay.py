"""Send messages of a topic again to another topic: those of a time range, or with some keys.

The original position of a message is kept in its properties:

    origin.topic  origin.broker  origin.queue  origin.offset  origin.stored_at (ms since 1970)

A replay is one batch. After a kill, start it again from the beginning: messages that were sent
before get the same id, which is derived from their position and the replay's label.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from downrange.client.flows.validation import check_topic
from downrange.errors import OptionError
from downrange.options.flags import flag
from downrange.pipelines.batch_run import run_batch
from downrange.pipelines.cluster_check import check_sources
from downrange.pipelines.options import ClusterOptions, SparkOptions, time_ms
from downrange.pipelines.stream_run import own_session, translate_errors
from downrange.pipelines.summary import Summary
from downrange.pipelines.topic_copy import TargetOptions, copied_rows, find_queues, write_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from downrange.pipelines.stream_run import Show, StopRequest

#: Up to this many keys are literals of the query; more become a table to join with.
_INLINE_KEYS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is sent again, and where to.

    Attributes:
        topic: The topic to read.
        target_topic: The topic to send to.
        cluster: The cluster to read from.
        target: The cluster to send to; the same cluster if it has no name server.
        from_time: Only messages stored at this time or later; ISO 8601 with its zone, or ms.
        to_time: Only messages stored before this time.
        keys: Only messages with one of these keys.
        keys_file: A file with more keys, one per line.
        tags: Only messages with one of these, as in "paid || sent".
        label: Part of the ids; another label gives the messages new ids.
        dry_run: Whether to count only.
        create: Whether to create the target topic if it is missing.
        read: More options of the `rocketmq` source, by name.
        write: More options of the `rocketmq` sink, by name.
        spark: Where Spark runs.
    """

    topic: str = field(metadata=flag("Topic to read.", metavar="TOPIC"))
    target_topic: str = field(metadata=flag("Topic to send to.", metavar="NAME"))
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    target: TargetOptions = field(default_factory=TargetOptions)
    from_time: str | None = field(
        default=None, metadata=flag("Stored at this time or later.", metavar="TIME", name="from")
    )
    to_time: str | None = field(
        default=None, metadata=flag("Stored before this time.", metavar="TIME", name="to")
    )
    keys: tuple[str, ...] = field(
        default=(), metadata=flag("With this key; repeatable.", metavar="KEY", name="key")
    )
    keys_file: str | None = field(
        default=None, metadata=flag("File with more keys, one per line.", metavar="FILE")
    )
    tags: str | None = field(
        default=None, metadata=flag("With these tags: 'a || b'.", metavar="EXPRESSION")
    )
    label: str = field(
        default="replay",
        metadata=flag("Part of the message ids; another one gives new ids.", metavar="TEXT"),
    )
    dry_run: bool = field(default=False, metadata=flag("Count only, send nothing."))
    create: bool = field(default=False, metadata=flag("Create the target topic if missing."))
    read: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=flag(
            "An option of the rocketmq source; repeatable.",
            metavar="NAME=VALUE",
            name="read-option",
        ),
    )
    write: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=flag(
            "An option of the rocketmq sink; repeatable.", metavar="NAME=VALUE", name="write-option"
        ),
    )
    spark: SparkOptions = field(default_factory=SparkOptions)

    def __post_init__(self) -> None:
        """Reject invalid options.

        Raises:
            OptionError: Names the option.
        """
        check_topic(self.target_topic)
        if self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms:
            raise OptionError(f"from_time {self.from_time} is not before to_time {self.to_time}")
        target = self.target.or_else(self.cluster)
        if (self.topic, self.cluster.name_server) == (self.target_topic, target.name_server):
            raise OptionError(
                f"{self.topic!r} would be sent to itself; give another target_topic, or a target"
            )
        if not (self.from_time or self.to_time or self.keys or self.keys_file or self.tags):
            raise OptionError(
                "no messages are selected: give from_time, to_time, keys, keys_file or tags"
            )

    @property
    def from_ms(self) -> int | None:
        """`from_time` in ms since 1970."""
        return None if self.from_time is None else time_ms("from_time", self.from_time)

    @property
    def to_ms(self) -> int | None:
        """`to_time` in ms since 1970; exclusive."""
        return None if self.to_time is None else time_ms("to_time", self.to_time)

    def all_keys(self) -> tuple[str, ...]:
        """Return the keys, with those of the file.

        Raises:
            OptionError: The file cannot be read, or has no key.
        """
        if self.keys_file is None:
            return self.keys
        try:
            lines = Path(self.keys_file).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"keys_file {self.keys_file} cannot be read: {error}") from error
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise OptionError(f"keys_file {self.keys_file} has no key")
        return (*self.keys, *found)


def run_replay(
    options: ReplayOptions,
    spark: SparkSession | None = None,
    *,
    show: Show | None = None,
    stop: StopRequest | None = None,
) -> Summary:
    """Send messages of a topic again.

    Args:
        options: Which messages, and where to.
        spark: The session to use; if None, Spark is started, and stopped at the end.
        show: Called with the progress.
        stop: A request to stop, which cancels the replay; SIGINT and SIGTERM set it, too.

    Returns:
        The summary; `rows` is the number of messages found, and the fact `sent` of those sent.

    Raises:
        OptionError: An option is invalid.
        RouteNotFound: The target topic does not exist.
        PipelineFailed: Spark ended with an error.
    """
    keys = options.all_keys()
    target = options.target.or_else(options.cluster)
    started = time.monotonic()
    if spark is None:
        check_sources(options.cluster, [options.topic])
    queue_counts: dict[str, dict[str, int]] = {}
    if not options.dry_run:
        names = {options.topic: options.target_topic}
        queue_counts = find_queues(options.cluster, target, names, create=options.create)
    with own_session("replay", spark, options.spark) as session, translate_errors():
        found = selected_messages(session, options, keys)
        if options.dry_run:
            rows, ended = run_batch(session, lambda: found.count(), show=show, stop=stop)
        else:
            to_send = copied_rows(
                found,
                topics=[options.topic],
                target_topic=options.target_topic,
                queue_counts=queue_counts,
                label=f"{options.label}/{options.target_topic}",
                more_properties=origin_properties(),
            )
            sink = write_options(target) | options.write
            rows, ended = run_batch(session, lambda: _send(to_send, sink), show=show, stop=stop)
    return Summary(
        pipeline="replay",
        ended=ended,
        rows=rows or 0,
        seconds=time.monotonic() - started,
        facts={
            "topic": options.topic,
            "target": target.name_server,
            "target_topic": options.target_topic,
            "sent": 0 if options.dry_run else rows,
        },
    )


def _send(rows: DataFrame, options: dict[str, str]) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counted = Observation("sent")
    rows = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
    rows.write.format("downrange").options(**options).mode("append").save()
    return int(counted.get["rows"])


def selected_messages(
    spark: SparkSession, options: ReplayOptions, keys: tuple[str, ...] = ()
) -> DataFrame:
    """Return the messages that a replay selects."""
    from pyspark.sql import functions as F

    source = options.cluster.source_options() | {"subscribe": options.topic, "orderBy": "queue"}
    # These find the offset in each queue; the exact times are compared below.
    if options.from_ms is not None:
        source["startingTimestamp"] = str(options.from_ms)
    if options.to_ms is not None:
        source["endingTimestamp"] = str(options.to_ms)
    if options.tags is not None:
        source["tags"] = options.tags
    found = spark.read.format("downrange").options(**source, **options.read).load()
    if options.from_ms is not None:
        found = found.where(F.unix_millis("store_timestamp") >= options.from_ms)
    if options.to_ms is not None:
        found = found.where(F.unix_millis("store_timestamp") < options.to_ms)
    if keys:
        found = _with_keys(spark, found, tuple(dict.fromkeys(keys)))
    return found


def _with_keys(spark: SparkSession, messages: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Keep messages with one of the keys; blanks separate the keys of a message."""
    from pyspark.sql import functions as F

    words = F.split(F.coalesce("keys", F.lit("")), " ")
    if len(keys) <= _INLINE_KEYS_MAX:
        return messages.where(F.arrays_overlap(words, F.array(*map(F.lit, keys))))
    table = spark.createDataFrame([(key,) for key in keys], "key string")
    # A semi join keeps a message once, even if several of its keys match.
    has_key = F.array_contains(F.split(F.coalesce("keys", F.lit("")), " "), F.col("key"))
    return messages.join(F.broadcast(table), has_key, "left_semi")


def origin_properties() -> dict[str, Column]:
    """Return the properties with the original position of a message."""
    from pyspark.sql import functions as F

    return {
        "origin.topic": F.col("topic"),
        "origin.broker": F.col("broker_name"),
        "origin.queue": F.col("queue_id").cast("string"),
        "origin.offset": F.col("offset").cast("string"),
        "origin.stored_at": F.unix_millis("store_timestamp").cast("string"),
    }
