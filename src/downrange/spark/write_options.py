"""The options of a write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from downrange.core.validation import check_group
from downrange.spark.connection import ConnectionOptions, take_connection
from downrange.spark.texts import Texts

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What a message's unique id is made of: the row's place in the job, a column, or chance.
Dedup: TypeAlias = Literal["key", "column", "none"]
#: What Spark gives a sink besides what the user says.
SPARK_NAMES: Final = ("checkpointLocation", "queryName")
WRITE_NAMES: Final = (
    *("topic", "orderBy", "dedup", "inFlight", "maxBatchBytes", "compressOver", "compression"),
    *("producerGroup", "sendTimeoutMs", "sendRetries"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How rows become messages; travels to executors, so it pickles.

    Attributes:
        connection: Where to.
        topic: For rows without a column of that name.
        is_ordered: Whether rows of one queue are stored in the order of the rows (orderBy=queue):
            one request per queue is under way then.
        dedup: What unique ids are made of.
        in_flight: Requests under way per task.
        batch_bytes_max: Bodies and properties of one request.
        compress_over_bytes: Bodies of so many bytes or more travel by themselves, compressed.
        compression: How.
        group: The producer group.
        timeout: For one request, all attempts together.
        retries: More attempts.
        checkpoint: Where a stream keeps its place, as Spark says; part of nothing else.
    """

    connection: ConnectionOptions
    topic: str | None = None
    is_ordered: bool = False
    dedup: Dedup = "key"
    in_flight: int = 32
    batch_bytes_max: int = 1024 * 1024
    compress_over_bytes: int = 4096
    compression: Literal["zlib", "lz4", "zstd"] = "zlib"
    group: str = "spark-writer"
    timeout: float = 30.0
    retries: int = 5
    checkpoint: str | None = None


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of a write.

    Raises:
        OptionError: One is unknown, missing, or makes no sense.
    """
    texts = Texts(options)
    connection = take_connection(texts)
    group = texts.text("producerGroup", "spark-writer") or "spark-writer"
    check_group(group)
    compression = texts.choice("compression", "zlib", ("zlib", "lz4", "zstd"))
    parsed = WriteOptions(
        connection=connection,
        topic=texts.text("topic"),
        is_ordered=texts.choice("orderBy", "none", ("none", "queue")) == "queue",
        dedup=cast("Dedup", texts.choice("dedup", "key", ("key", "column", "none"))),
        in_flight=texts.number("inFlight", 32),
        batch_bytes_max=texts.number("maxBatchBytes", 1024 * 1024, least=1024),
        compress_over_bytes=texts.number("compressOver", 4096),
        compression=cast("Literal['zlib', 'lz4', 'zstd']", compression),
        group=group,
        timeout=texts.milliseconds("sendTimeoutMs", 30_000),
        retries=texts.number("sendRetries", 5, least=0),
        checkpoint=texts.text("checkpointLocation"),
    )
    texts.text("queryName")
    texts.finish()
    return parsed
