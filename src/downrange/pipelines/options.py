"""Options of pipelines: what all of them share, and how a TOML file and flags become one object.

    [cluster]                      # ClusterOptions: where messages are read
    name_server = "127.0.0.1:9876"

    [target]                       # ClusterOptions: where they are sent, for mirror and replay
    [run]                          # RunOptions: once or for ever, checkpoint
    [spark]                        # SparkOptions: where Spark runs

    [lake]                         # a table per pipeline
    topics = ["orders"]
    output = "lake"

A table's keys are the fields of its dataclass, so an option is written once: here, with its default
and the text of its flag. A flag is stronger than the file. A name that is not known is refused,
with the one that was probably meant. One file may hold the tables of several pipelines.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

import msgspec

from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from _typeshed import DataclassInstance

    OptionsT = TypeVar("OptionsT", bound=DataclassInstance)

#: Tables that a file may hold besides those that options have within.
PIPELINES: Final = ("lake", "compact", "load", "mirror", "replay", "trace")
_SHARED: Final = ("cluster", "target", "run", "spark")


def flag(text: str, *, metavar: str | None = None, name: str | None = None) -> dict[str, Any]:
    """Return what a field's flag says: its help, what stands for its value, another name."""
    return {"help": text, "metavar": metavar, "name": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How to reach a cluster.

    Attributes:
        name_server: "host:port"; several are separated by ";".
        access_key: The account, where access is checked.
        secret_key: Its secret; a file or the environment is safer than a flag.
        secret_key_file: A file that holds the secret, alone.
        security_token: For accounts that are lent for a time.
        tls: Whether to speak TLS.
        ca: Authorities to trust instead of the system's, PEM; turns TLS on.
        certificate: Our own certificate, PEM; turns TLS on.
        certificate_key: Its private key, PEM.
        check_host: Whether a server's certificate must name its host.
        namespace: Put before topics.
    """

    name_server: str = field(
        default="127.0.0.1:9876",
        metadata=flag("Name server; several are separated by ';'.", metavar="HOST:PORT"),
    )
    access_key: str | None = field(
        default=None, metadata=flag("Account, where access is checked.", metavar="NAME")
    )
    secret_key: str | None = field(
        default=None,
        repr=False,
        metadata=flag("Its secret; the variable or a file is safer.", metavar="SECRET"),
    )
    secret_key_file: str | None = field(
        default=None, metadata=flag("File that holds the secret alone.", metavar="FILE")
    )
    security_token: str | None = field(
        default=None,
        repr=False,
        metadata=flag("Token of an account that is lent for a time.", metavar="TOKEN"),
    )
    tls: bool = field(default=False, metadata=flag("Speak TLS."))
    ca: str | None = field(
        default=None,
        metadata=flag("Authorities to trust instead of the system's.", metavar="PEM"),
    )
    certificate: str | None = field(
        default=None, metadata=flag("Our own certificate, where one is wanted.", metavar="PEM")
    )
    certificate_key: str | None = field(
        default=None, metadata=flag("Its private key, unless in the same file.", metavar="PEM")
    )
    check_host: bool = field(
        default=True, metadata=flag("Whether a certificate must name its host.")
    )
    namespace: str | None = field(default=None, metadata=flag("Put before topics.", metavar="NAME"))

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option.
        """
        if self.secret_key is not None and self.secret_key_file is not None:
            raise OptionError("secret_key and secret_key_file exclude each other; give either")
        has_secret = self.secret_key is not None or self.secret_key_file is not None
        if (self.access_key is not None) != has_secret:
            raise OptionError("access_key and secret_key belong together; give both or neither")

    @property
    def secret(self) -> str | None:
        """The secret, from its file where one is named.

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

    @property
    def wants_tls(self) -> bool:
        """Whether any option asks for TLS."""
        return self.tls or self.ca is not None or self.certificate is not None

    def source_options(self) -> dict[str, str]:
        """Return these as options of the `rocketmq` data source."""
        given: dict[str, str | None] = {
            "nameServer": self.name_server,
            "accessKey": self.access_key,
            "secretKey": self.secret,
            "securityToken": self.security_token,
            "namespace": self.namespace,
        }
        if self.wants_tls:
            given |= {
                "tls.enabled": "true",
                "tls.ca": self.ca,
                "tls.certificate": self.certificate,
                "tls.key": self.certificate_key,
                "tls.checkHost": "true" if self.check_host else "false",
            }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where Spark runs, and how; for those who have no session yet.

    Attributes:
        master: SPARK_MASTER, what spark-submit chose, or `local[*]` if not given.
        conf: Settings of Spark, by their names.
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
        once: Whether to end when all is done that was there at the start, instead of going on.
        every: Seconds between two batches; at once after each other if not given.
        checkpoint: Where the place in the topics is kept; each pipeline has a default.
        stop_within: How long a running batch may still take when a signal asks to stop; seconds.
    """

    once: bool = field(
        default=False, metadata=flag("End when all is done that was there at the start.")
    )
    every: float | None = field(
        default=None, metadata=flag("Seconds from one batch to the next.", metavar="SECONDS")
    )
    checkpoint: str | None = field(
        default=None, metadata=flag("Folder that keeps the place reached.", metavar="DIR")
    )
    stop_within: float = field(
        default=60.0,
        metadata=flag("How long a batch may go on after a signal.", metavar="SECONDS"),
    )

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option.
        """
        if self.once and self.every is not None:
            raise OptionError("once and every exclude each other; give either")
        if self.every is not None and self.every <= 0:
            raise OptionError(f"every = {self.every:g} is no time; leave it out")
        if self.stop_within <= 0:
            raise OptionError(f"stop_within = {self.stop_within:g} is no time")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """What is read of a cluster; the pipelines that follow topics have these.

    Attributes:
        topics: Which.
        cluster: Where they are.
        start: Where a new job begins: "earliest", "latest", or a time in ISO 8601 with its zone.
        tags: Only messages with one of these, as in "paid || sent".
        batch_messages_max: The most messages of one batch.
        fail_on_data_loss: Whether to end when messages went away before they were read.
        read: More options of the `rocketmq` source, by their names.
        run: How to run.
        spark: Where.
    """

    topics: tuple[str, ...] = field(metadata=flag("Topic; repeatable.", name="topic"))
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    start: str = field(
        default="earliest",
        metadata=flag("Where a new job begins: earliest, latest, or a time.", metavar="WHERE"),
    )
    tags: str | None = field(
        default=None, metadata=flag("Only messages with such tags: 'a || b'.", metavar="EXPRESSION")
    )
    batch_messages_max: int = field(
        default=1_000_000, metadata=flag("The most messages of one batch.", metavar="COUNT")
    )
    fail_on_data_loss: bool = field(
        default=True, metadata=flag("Whether to end when unread messages went away.")
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
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option.
        """
        if not self.topics:
            raise OptionError("topics is empty; name at least one")
        if self.batch_messages_max < 1:
            raise OptionError(f"batch_messages_max = {self.batch_messages_max} leaves no messages")
        if self.start not in ("earliest", "latest"):
            time_ms("start", self.start)

    def source_options(self) -> dict[str, str]:
        """Return these as options of the `rocketmq` data source, for a stream."""
        options = self.cluster.source_options() | {
            "subscribe": ",".join(self.topics),
            "maxOffsetsPerTrigger": str(self.batch_messages_max),
            "failOnDataLoss": "true" if self.fail_on_data_loss else "false",
        }
        if self.start in ("earliest", "latest"):
            options["startingOffsets"] = self.start
        else:
            options["startingTimestamp"] = str(time_ms("start", self.start))
        if self.tags is not None:
            options["tags"] = self.tags
        return options | self.read


def time_ms(name: str, text: str) -> int:
    """Read milliseconds since 1970, or a time in ISO 8601 with its zone.

    Raises:
        OptionError: It is neither.
    """
    if text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{name} = {text!r} is no time; write 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
    if at.utcoffset() is None:
        raise OptionError(f"{name} = {text!r} does not say its zone; write {text}Z for UTC")
    return round(at.timestamp() * 1000)


# ---- files and flags -----------------------------------------------------------------------------


def tables_of(kind: type[DataclassInstance]) -> dict[str, type[DataclassInstance]]:
    """Return the fields of options that are tables of their own in a file, with their classes."""
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
    """Build the options of a pipeline from a TOML file and from flags, which are stronger.

    Args:
        kind: The class of its options.
        pipeline: Its name, which is its table's.
        file: The TOML file.
        flags: Values by table and field; those that are None were not given.
        fallback: The same, weaker than the file; a secret here gives way to a `secret_key_file`.

    Raises:
        OptionError: The file cannot be read, holds something that is not known or of another type,
            something is missing, or makes no sense.
    """
    source = "the command line" if file is None else f"config file {file}"
    tables = {} if file is None else _read_file(file, source)
    layers = Layers(tables, flags or {}, fallback or {}, source)
    within = {name: inner(**layers.values(inner, name)) for name, inner in tables_of(kind).items()}
    return kind(**layers.values(kind, pipeline), **within)


def _read_file(file: str | Path, source: str) -> dict[str, dict[str, Any]]:
    try:
        tables = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{source} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no TOML, or not even UTF-8
        raise OptionError(f"{source}: {error}") from error
    known = (*_SHARED, *PIPELINES)
    for name, table in tables.items():
        if name not in known:
            raise OptionError(f"{source}: [{name}] is not known{hint(name, known)}")
        if not isinstance(table, dict):
            raise OptionError(f"{source}: {name} is no table; write [{name}] above its keys")
    return tables


@dataclass(frozen=True, slots=True)
class Layers:
    """Where values come from: a file, flags over it, and what counts where neither says anything.

    Attributes:
        tables: Of the file.
        flags: By table and field.
        fallback: By table and field.
        source: What the errors name: the file.
    """

    tables: Mapping[str, Mapping[str, Any]]
    flags: Mapping[str, Mapping[str, Any]]
    fallback: Mapping[str, Mapping[str, Any]]
    source: str

    def values(self, kind: type[DataclassInstance], table: str) -> dict[str, Any]:
        """Return the values of a table as keyword arguments.

        Raises:
            OptionError: A name is not known, a value of another type, or something is missing.
        """
        hints = get_type_hints(kind)
        own = [one for one in fields(kind) if not is_dataclass(hints[one.name])]
        names = [one.name for one in own]
        found: dict[str, Any] = {}
        for key, value in self.tables.get(table, {}).items():
            place = f"{self.source}: [{table}] {key}"
            if key not in names:
                raise OptionError(f"{place} is not known{hint(key, names)}")
            try:
                found[key] = msgspec.convert(value, hints[key])
            except msgspec.ValidationError as error:
                raise OptionError(f"{place}: {error}") from None
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
        for one in own:
            is_required = one.default is MISSING and one.default_factory is MISSING
            if is_required and one.name not in found:
                raise OptionError(f"{one.name} is missing: give it, or write it into [{table}]")
        return found


def hint(word: str, known: Iterable[str]) -> str:
    """Return what may have been meant, or what there is."""
    names = list(known)
    likely = get_close_matches(word, names, 1)
    return f"; did you mean {likely[0]!r}?" if likely else f"; known are {', '.join(names)}"


def read_pairs(name: str, texts: Iterable[str]) -> dict[str, str]:
    """Read flags of the form NAME=VALUE.

    Raises:
        OptionError: One has another form.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, mark, value = text.partition("=")
        if not mark or not key or not value:
            raise OptionError(f"{name} {text!r} has not the form NAME=VALUE")
        pairs[key] = value
    return pairs
