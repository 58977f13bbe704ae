"""Messages copied from one topic to another: ids, queues and properties, as Spark columns.

An id is derived from the position that a message was read from, so a message that is sent again,
after a failed task or a killed job, has the same id. The source's queue determines the target's
queue, so messages that were in order stay in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from downrange.errors import OptionError, RouteNotFound
from downrange.options.flags import flag
from downrange.pipelines.options import ClusterOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from downrange import Client

#: The placeholder for the source topic.
TOPIC_MARK: Final = "{topic}"
_DEFAULT_QUEUES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(ClusterOptions):
    """The cluster to send to; the one that is read if no name server is given."""

    name_server: str = field(
        default="",
        metadata=flag("Name server; the cluster that is read if not given.", metavar="HOST:PORT"),
    )

    def __post_init__(self) -> None:
        """Reject invalid options.

        Raises:
            OptionError: Names the option.
        """
        # Not super(): slots make a new class, and super() would refer to the old one.
        ClusterOptions.__post_init__(self)
        plain = {one.name: one.default for one in fields(self)}
        if not self.name_server and any(getattr(self, name) != plain[name] for name in plain):
            raise OptionError(
                "the target has options, but no name_server; give one, or leave them out"
            )

    def or_else(self, cluster: ClusterOptions) -> ClusterOptions:
        """Return the target; `cluster` if no target is given."""
        return self if self.name_server else cluster


def place_id(*parts: Column | str, label: str) -> Column:
    """Return ids derived from a position: equal for equal parts, and different otherwise.

    They have the form of the writer's ids (`spark/write/row_ids.py`): 32 digits, with zeros in
    place of the time, so that Java's tools find the message.

    Args:
        parts: Columns, or their names.
        label: Distinguishes ids of equal positions.
    """
    from pyspark.sql import functions as F

    columns = [F.col(part) if isinstance(part, str) else part for part in parts]
    digest = F.upper(F.sha2(F.concat_ws("/", F.lit(label), *columns).cast("binary"), 256))
    return F.concat(F.substring(digest, 1, 20), F.lit("00000000"), F.substring(digest, 21, 4))


def source_id(label: str) -> Column:
    """Return ids derived from the positions that messages were read from."""
    return place_id("topic", "broker_name", "queue_id", "offset", label=label)


def target_queue(queue_counts: dict[str, int]) -> tuple[Column, Column]:
    """Return the broker and the queue of the target for each message.

    The broker is the one of the same name, or else one chosen by the hash of the name. The queue is
    the source's number modulo the broker's queues. So all messages of a queue go to one queue.

    Args:
        queue_counts: Broker of the target -> its number of writable queues.
    """
    from pyspark.sql import functions as F

    names = sorted(queue_counts)
    known = F.array(*map(F.lit, names))
    chosen = F.element_at(known, (F.crc32("broker_name") % len(names) + 1).cast("int"))
    broker = F.when(F.array_contains(known, F.col("broker_name")), F.col("broker_name"))
    broker = broker.otherwise(chosen)
    counts = F.array(*(F.lit(queue_counts[name]) for name in names))
    count = F.element_at(counts, F.array_position(known, broker).cast("int"))
    return broker, (F.col("queue_id") % count).cast("int")


def copied_rows(
    messages: DataFrame,
    *,
    topics: Iterable[str],
    target_topic: str,
    queue_counts: dict[str, dict[str, int]],
    label: str,
    more_properties: dict[str, Column] | None = None,
) -> DataFrame:
    """Return the rows to send for messages that were read.

    Args:
        messages: Messages with the columns of the source.
        topics: The topics that occur in them.
        target_topic: The topic to send to; `{topic}` stands for the topic that is read.
        queue_counts: Topic of the target -> broker -> queues.
        label: Part of the ids.
        more_properties: Properties to add to those of the message.
    """
    from pyspark.sql import functions as F

    broker, queue, topic = F.lit(None), F.lit(None), F.lit(None)
    for name in topics:
        is_it = F.col("topic") == name
        target = target_topic.replace(TOPIC_MARK, name)
        its_broker, its_queue = target_queue(queue_counts[target])
        broker = F.when(is_it, its_broker).otherwise(broker)
        queue = F.when(is_it, its_queue).otherwise(queue)
        topic = F.when(is_it, F.lit(target)).otherwise(topic)
    # The writer rejects blank names and values, which Java's producers can send.
    properties = F.map_filter(
        "properties", lambda name, value: (F.trim(name) != "") & (F.trim(value) != "")
    )
    if more_properties:
        pairs = [part for name, value in more_properties.items() for part in (F.lit(name), value)]
        own = F.map_filter(properties, lambda name, _: ~name.isin(*map(F.lit, more_properties)))
        properties = F.map_concat(own, F.create_map(*pairs))
    return messages.select(
        topic.cast("string").alias("topic"),
        "body",
        "keys",
        "tags",
        properties.alias("properties"),
        broker.cast("string").alias("broker_name"),
        queue.cast("int").alias("queue_id"),
        source_id(label).alias("msg_id"),
    )


def write_options(target: ClusterOptions) -> dict[str, str]:
    """Return the options of a write that keeps order and takes ids from the column."""
    return target.source_options() | {"orderBy": "queue", "dedup": "column"}


# ---- topics of the target ------------------------------------------------------------------------


def find_queues(
    cluster: ClusterOptions,
    target: ClusterOptions,
    names: dict[str, str],
    *,
    create: bool,
) -> dict[str, dict[str, int]]:
    """Return the queues of each topic of the target by broker; create missing topics on request.

    Args:
        cluster: The cluster to read from.
        target: The cluster to send to.
        names: Source topic -> target topic.
        create: Whether to create missing topics, with as many queues as the source has.

    Raises:
        RouteNotFound: A topic does not exist.
        RocketMQError: No server can be reached, or one rejects the request.
    """
    found: dict[str, dict[str, int]] = {}
    with client_of(target) as client:
        for source, name in names.items():
            try:
                found[name] = _writable(client, name)
            except RouteNotFound:
                if not create:
                    raise
                _create(client, name, _count_queues(cluster, source))
                found[name] = _writable(client, name)
    return found


def client_of(cluster: ClusterOptions) -> Client:
    """Return a client for a cluster, not started."""
    from downrange import Client

    return Client(
        cluster.name_server,
        options=cluster.client_options(),
        credentials=cluster.credentials,
        tls=cluster.tls_options,
    )


def _writable(client: Client, topic: str) -> dict[str, int]:
    from downrange import Admin

    with Admin(client) as admin:
        route = admin.topic_route(topic)
    counts: dict[str, int] = {}
    for queue in route.writable:
        counts[queue.broker] = max(counts.get(queue.broker, 0), queue.number + 1)
    if not counts:
        raise OptionError(f"topic {topic!r} has no writable queue")
    return counts


def _create(client: Client, topic: str, queues: int) -> None:
    from downrange import Admin

    with Admin(client) as admin:
        admin.create_topic(topic, queues=queues)


def _count_queues(cluster: ClusterOptions, topic: str) -> int:
    """Return the largest number of queues of a topic on one broker of the source."""
    with client_of(cluster) as client:
        return max(_writable(client, topic).values(), default=_DEFAULT_QUEUES)
