"""The options of a write; docs/guides/spark.md lists them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from downrange.client.flows.validation import check_producer_group, check_topic
from downrange.errors import OptionError
from downrange.options.cluster import ConnectionOptions
from downrange.spark.option_reader import OptionReader
from downrange.wire.limits import BODY_BYTES_MAX, MIB
from downrange.wire.system_names import CLIENT_FORBIDDEN_TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The source of unique ids: the row's position in the job, a column, or the producer.
Dedup: TypeAlias = Literal["key", "column", "none"]
#: Compression of large bodies.
CompressionName: TypeAlias = Literal["zlib", "lz4", "zstd"]
#: Whether missing topics are created.
AutoCreate: TypeAlias = Literal["off", "balanced"]
WRITE_NAMES: Final = (
    *("topic", "orderBy", "dedup", "inFlight", "maxBatchBytes", "compressOver", "compression"),
    *("producerGroup", "sendTimeoutMs", "maxMessageBytes", "autoCreate"),
)
#: Unique ids that a column may hold: visible ASCII, as some tools cannot handle anything else.
ID_PATTERN: Final = "^[!-~]{1,128}$"
#: A request must fit into one frame of a server, with its header.
_BATCH_BYTES_MAX: Final = 15 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How rows become messages. Sent to executors, so it pickles.

    Attributes:
        connection: The cluster to write to.
        topic: The topic of all rows; overrides the column (topic).
        is_ordered: Whether each queue keeps the order of the rows; a queue then has one request in
            flight (orderBy=queue).
        dedup: The source of unique ids (dedup).
        in_flight: Requests in flight per task (inFlight). With `batch_bytes_max` it limits the
            memory of a task.
        batch_bytes_max: Bodies and properties of one request (maxBatchBytes). A broker rejects
            requests above its maxMessageSize, 4 MiB by default.
        message_bytes_max: The largest body, before compression (maxMessageBytes).
        compress_over_bytes: Bodies of this size or more are compressed and sent alone
            (compressOver).
        compression: The compression (compression).
        group: The producer group (producerGroup).
        timeout: Seconds for one request with all its attempts (sendTimeoutMs).
        auto_create: Whether a missing topic is created on all brokers, or is an error
            (autoCreate=balanced or off).
    """

    connection: ConnectionOptions
    topic: str | None = None
    is_ordered: bool = False
    dedup: Dedup = "key"
    in_flight: int = 32
    batch_bytes_max: int = MIB
    message_bytes_max: int = BODY_BYTES_MAX
    compress_over_bytes: int = 4096
    compression: CompressionName = "zlib"
    group: str = "spark-writer"
    timeout: float = 60.0
    auto_create: AutoCreate = "off"


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write.

    Raises:
        OptionError: An option is unknown, missing or wrong.
    """
    reader = OptionReader(options)
    connection = ConnectionOptions.from_source_options(reader)
    topic = reader.text("topic")
    if topic is not None:
        check_topic(topic)
        if topic in CLIENT_FORBIDDEN_TOPICS:
            raise OptionError(
                f"option topic={topic!r}: this topic is reserved for brokers; use another"
            )
    group = reader.text("producerGroup", "spark-writer") or "spark-writer"
    check_producer_group(group)
    compression = reader.choice("compression", "zlib", ("zlib", "lz4", "zstd"))
    parsed = WriteOptions(
        connection=connection,
        topic=topic,
        is_ordered=reader.choice("orderBy", "none", ("none", "queue")) == "queue",
        dedup=cast("Dedup", reader.choice("dedup", "key", ("key", "column", "none"))),
        in_flight=reader.number("inFlight", 32),
        batch_bytes_max=reader.number("maxBatchBytes", MIB, least=1024),
        message_bytes_max=reader.number("maxMessageBytes", BODY_BYTES_MAX, least=1),
        compress_over_bytes=reader.number("compressOver", 4096),
        compression=cast("CompressionName", compression),
        group=group,
        timeout=reader.milliseconds("sendTimeoutMs", 60_000),
        auto_create=cast("AutoCreate", reader.choice("autoCreate", "off", ("off", "balanced"))),
    )
    # Spark adds these to the user's options.
    reader.text("checkpointLocation")
    reader.text("queryName")
    reader.reject_unknown()
    for name, size in (
        ("maxBatchBytes", parsed.batch_bytes_max),
        ("maxMessageBytes", parsed.message_bytes_max),
    ):
        if size > _BATCH_BYTES_MAX:
            raise OptionError(f"option {name}={size} is more than the 15 MiB of a request")
    return parsed
