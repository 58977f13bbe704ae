"""Options of pipelines: the shared ones, and how a TOML file and flags become one object.

    [cluster]                      # ClusterOptions: where messages are read
    name_server = "127.0.0.1:9876"

    [target]                       # ClusterOptions: where they are sent, for mirror and replay
    [run]                          # RunOptions: once or for ever, checkpoint
    [spark]                        # SparkOptions: where Spark runs

    [lake]                         # one table per pipeline
    topics = ["orders"]
    output = "lake"

The keys of a table are the fields of its dataclass, so an option is declared once, with its default
and the text of its flag. A flag overrides the file. An unknown name is an error with a hint. One
file may hold the tables of several pipelines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

from downrange.errors import OptionError
from downrange.options.cluster import ConnectionOptions
from downrange.options.flags import flag
from downrange.options.toml import TomlTables, load_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from _typeshed import DataclassInstance

    OptionsT = TypeVar("OptionsT", bound=DataclassInstance)

#: The pipelines, each with a table of its own in a config file.
PIPELINES: Final = ("lake", "compact", "load", "mirror", "replay", "trace")
_SHARED: Final = ("cluster", "target", "run", "spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(ConnectionOptions):
    """How to reach a cluster; the secret may come from a file.

    Attributes:
        secret_key_file: A file that holds only the secret.
    """

    secret_key_file: str | None = field(
        default=None, metadata=flag("File that holds only the secret.", metavar="FILE")
    )

    def __post_init__(self) -> None:
        """Reject options that contradict each other.

        Raises:
            OptionError: Names the option.
        """
        if self.secret_key is not None and self.secret_key_file is not None:
            raise OptionError("secret_key and secret_key_file exclude each other; give one of them")
        # Not super(): slots make a new class, and super() would refer to the old one.
        ConnectionOptions.__post_init__(self)

    @property
    def has_secret(self) -> bool:
        """Whether a secret is given, here or in a file."""
        return self.secret_key is not None or self.secret_key_file is not None

    @property
    def secret(self) -> str | None:
        """The secret of the account, read from its file if one is named.

        Raises:
            OptionError: The file cannot be read, or is empty.
        """
        if self.secret_key_file is None:
            return self.secret_key
        try:
            text = Path(self.secret_key_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise OptionError(
                f"secret_key_file {self.secret_key_file}: {error.strerror}"
            ) from error
        if not text:
            raise OptionError(f"secret_key_file {self.secret_key_file} is empty")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where Spark runs, and its settings; for callers without a session.

    Attributes:
        master: If None: SPARK_MASTER, the choice of spark-submit, or `local[*]`.
        conf: Settings of Spark by name.
    """

    master: str | None = field(
        default=None, metadata=flag("Where Spark runs; local[*] if not given.", metavar="URL")
    )
    conf: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=flag("A setting of Spark; repeatable.", metavar="NAME=VALUE"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a pipeline runs.

    Attributes:
        once: Whether to end after the messages that exist at the start, instead of running on.
        every: Seconds between two batches; no pause if None.
        checkpoint: Folder of the offsets reached; some pipelines have a default.
        stop_within: Seconds that a running batch may take after a signal to stop.
    """

    once: bool = field(default=False, metadata=flag("End after what exists at the start."))
    every: float | None = field(
        default=None, metadata=flag("Seconds from one batch to the next.", metavar="SECONDS")
    )
    checkpoint: str | None = field(
        default=None, metadata=flag("Folder of the offsets reached.", metavar="DIR")
    )
    stop_within: float = field(
        default=60.0,
        metadata=flag("How long a batch may run after a signal.", metavar="SECONDS"),
    )

    def __post_init__(self) -> None:
        """Reject invalid options.

        Raises:
            OptionError: Names the option.
        """
        if self.once and self.every is not None:
            raise OptionError("once and every exclude each other; give one of them")
        if self.every is not None and self.every <= 0:
            raise OptionError(f"every = {self.every:g} must be above 0")
        if self.stop_within <= 0:
            raise OptionError(f"stop_within = {self.stop_within:g} must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How messages are read; shared by the pipelines that read topics as a stream.

    Attributes:
        cluster: The cluster to read from.
        batch_messages_max: Messages of one batch of a stream, at most.
        fail_on_data_loss: Whether to fail if messages were deleted before they were read.
        read: More options of the `rocketmq` source, by name.
        run: How a stream runs.
        spark: Where Spark runs.
    """

    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    batch_messages_max: int = field(
        default=1_000_000, metadata=flag("The most messages of one batch.", metavar="COUNT")
    )
    fail_on_data_loss: bool = field(
        default=True, metadata=flag("Whether to fail if unread messages were deleted.")
    )
    read: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=flag(
            "An option of the rocketmq source; repeatable.",
            metavar="NAME=VALUE",
            name="read-option",
        ),
    )
    run: RunOptions = field(default_factory=RunOptions)
    spark: SparkOptions = field(default_factory=SparkOptions)

    def __post_init__(self) -> None:
        """Reject a batch without messages.

        Raises:
            OptionError: Names the option.
        """
        if self.batch_messages_max < 1:
            raise OptionError(f"batch_messages_max = {self.batch_messages_max} leaves no messages")

    def read_options(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the options of the `rocketmq` source that a batch and a stream share."""
        return self.cluster.source_options() | {
            "subscribe": ",".join(topics),
            "failOnDataLoss": "true" if self.fail_on_data_loss else "false",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions(SourceOptions):
    """What is read; the pipelines that follow topics have these.

    Attributes:
        topics: The topics.
        start: Where a new job begins: "earliest", "latest", or a time in ISO 8601 with its zone.
        tags: Only messages with one of these, as in "paid || sent".
    """

    topics: tuple[str, ...] = field(metadata=flag("Topic; repeatable.", name="topic"))
    start: str = field(
        default="earliest",
        metadata=flag("Where a new job begins: earliest, latest, or a time.", metavar="WHERE"),
    )
    tags: str | None = field(
        default=None,
        metadata=flag("Only messages with these tags: 'a || b'.", metavar="EXPRESSION"),
    )

    def __post_init__(self) -> None:
        """Reject options that are empty or wrong.

        Raises:
            OptionError: Names the option.
        """
        if not self.topics:
            raise OptionError("topics is empty; name at least one")
        SourceOptions.__post_init__(self)
        if self.start not in ("earliest", "latest"):
            time_ms("start", self.start)

    def source_options(self) -> dict[str, str]:
        """Return these as options of the `rocketmq` source, for a stream."""
        options = self.read_options(self.topics)
        options["maxOffsetsPerTrigger"] = str(self.batch_messages_max)
        if self.start in ("earliest", "latest"):
            options["startingOffsets"] = self.start
        else:
            options["startingTimestamp"] = str(time_ms("start", self.start))
        if self.tags is not None:
            options["tags"] = self.tags
        return options | self.read


def time_ms(name: str, text: str) -> int:
    """Parse milliseconds since 1970, or a time in ISO 8601 with its zone.

    Raises:
        OptionError: The text is neither.
    """
    if text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{name} = {text!r} is not a time; write 2026-01-31T12:00:00Z or ms since 1970"
        ) from None
    if at.utcoffset() is None:
        raise OptionError(f"{name} = {text!r} has no time zone; write {text}Z for UTC")
    return round(at.timestamp() * 1000)


# ---- files and flags -----------------------------------------------------------------------------


def tables_of(kind: type[DataclassInstance]) -> dict[str, type[DataclassInstance]]:
    """Return the fields that are tables of their own in a config file, with their classes."""
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if is_dataclass(hints[one.name])}


def make_options(
    kind: type[OptionsT],
    pipeline: str,
    *,
    file: str | Path | None = None,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    fallback: Mapping[str, Mapping[str, Any]] | None = None,
) -> OptionsT:
    """Build the options of a pipeline from a TOML file and from flags, which override it.

    Args:
        kind: The class of the options.
        pipeline: The name of the pipeline and of its table.
        file: The TOML file.
        flags: Values by table and field; None means not given.
        fallback: Values that the file overrides; a secret here yields to a `secret_key_file`.

    Raises:
        OptionError: The file cannot be read, has an unknown key or a value of the wrong type, or
            an option is missing or invalid.
    """
    if file is None:
        tables = TomlTables({}, "the command line", ())
    else:
        tables = load_tables(file, (*_SHARED, *PIPELINES))
    layers = Layers(tables, flags or {}, fallback or {})
    within = {
        name: tables.build(inner, name, layers.values(inner, name))
        for name, inner in tables_of(kind).items()
    }
    return tables.build(kind, pipeline, layers.values(kind, pipeline) | within)


@dataclass(frozen=True, slots=True)
class Layers:
    """The sources of values: a file, flags that override it, and values for what neither sets.

    Attributes:
        tables: The tables of the file.
        flags: Values by table and field.
        fallback: Values by table and field.
    """

    tables: TomlTables
    flags: Mapping[str, Mapping[str, Any]]
    fallback: Mapping[str, Mapping[str, Any]]

    def values(self, kind: type[DataclassInstance], table: str) -> dict[str, Any]:
        """Return the values of a table as keyword arguments.

        Raises:
            OptionError: The file has an unknown key, or a value of the wrong type.
        """
        found = self.tables.values(kind, table)
        given = {
            key: value for key, value in self.flags.get(table, {}).items() if value is not None
        }
        if "secret_key" in given:
            found.pop("secret_key_file", None)
        if "secret_key_file" in given:
            found.pop("secret_key", None)
        found |= given
        for key, value in self.fallback.get(table, {}).items():
            if key != "secret_key" or "secret_key_file" not in found:
                found.setdefault(key, value)
        return found


def read_pairs(name: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse flags of the form NAME=VALUE.

    Raises:
        OptionError: A flag has another form.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, mark, value = text.partition("=")
        if not mark or not key or not value:
            raise OptionError(f"{name} {text!r} does not have the form NAME=VALUE")
        pairs[key] = value
    return pairs
