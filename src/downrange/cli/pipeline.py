"""`pipeline lake|compact|load|mirror|replay|trace`: ready jobs on Spark.

The flags of a command are the fields of its options, so each is written once, beside what it does.
Flags are stronger than the TOML file of `--config`. Progress goes to standard error; standard
output is for the summary.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import time
import types
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from downrange.cli.command_groups import Group
from downrange.cli.exit_codes import EPILOG, telling_errors
from downrange.cli.parameters import PATH, Argument, Command, Option
from downrange.errors import OptionError
from downrange.extras import require
from downrange.pipelines.options import make_options, read_pairs, tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from downrange.pipelines.summary import Progress, Summary

#: Table -> what its flags begin with, and the heading that they stand under.
_TABLES: Final = {
    "cluster": ("", "Connection"),
    "target": ("target-", "Connection of the target"),
    "run": ("", "Run"),
    "spark": ("", "Spark"),
}
_MORE_NAMES: Final = {"--name-server": ("--nameserver", "-n"), "--output": ("-o",)}
#: Secrets and addresses may come from the environment; a target has variables of its own.
_VARIABLES: Final = {
    "name_server": "NAMESRV_ADDR",
    "access_key": "DOWNRANGE_ACCESS_KEY",
    "secret_key": "DOWNRANGE_SECRET_KEY",
    "security_token": "DOWNRANGE_SECURITY_TOKEN",
}


@click.group(cls=Group)
def pipeline() -> None:
    """Ready jobs on Spark: topics to files and back, topic to topic."""


def _variable(table: str, name: str) -> str | None:
    variable = _VARIABLES.get(name)
    if variable is None or table not in ("cluster", "target"):
        return None
    return variable if table == "cluster" else f"DOWNRANGE_TARGET_{name.upper()}"


# ---- flags from options --------------------------------------------------------------------------


class Flags:
    """The flags of one pipeline, made of its options.

    Args:
        kind: The class of its options.
        pipeline: Its name.
        arguments: Fields that are arguments instead of flags.
    """

    def __init__(self, kind: type[Any], pipeline: str, arguments: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.pipeline = pipeline
        self._arguments = arguments
        #: Name of the parameter -> table, field, and how its value is read.
        self._homes: dict[str, tuple[str, str, Callable[[Any], Any]]] = {}

    def parameters(self) -> Iterator[click.Parameter]:
        """Make the parameters of a command."""
        yield from self._parameters(self.kind, self.pipeline)
        for table, inner in tables_of(self.kind).items():
            yield from self._parameters(inner, table)

    def _parameters(self, kind: type[Any], table: str) -> Iterator[click.Parameter]:
        hints = get_type_hints(kind)
        for one in dataclasses.fields(kind):
            if dataclasses.is_dataclass(hints[one.name]):
                continue
            prefix, panel = _TABLES.get(table, ("", "Options"))
            word = (one.metadata.get("name") or one.name).replace("_", "-")
            flag, name = f"--{prefix}{word}", f"{table}__{one.name}"
            taken = _taken(hints[one.name], flag)
            self._homes[name] = (table, one.name, taken.read)
            variable = _variable(table, one.name)
            help_text = one.metadata["help"] + (f" [env var: {variable}]" if variable else "")
            metavar = one.metadata.get("metavar")
            if one.name in self._arguments:
                yield Argument(
                    [name],
                    type=taken.type,
                    nargs=-1 if taken.is_repeatable else 1,
                    required=False,  # the file may have it
                    metavar=_optional(metavar or word.upper(), taken.is_repeatable),
                    help=help_text,
                )
                continue
            names = f"{flag}/--{prefix}no-{word}" if taken.type is bool else flag
            yield Option(
                [names, *_MORE_NAMES.get(flag, ()), name],
                panel=panel,
                type=taken.type,
                multiple=taken.is_repeatable,
                default=None,
                show_default=_default_text(one),
                metavar=metavar,
                help=help_text,
            )

    def options(self, given: Mapping[str, Any], file: Path | None) -> Any:
        """Build the options of what was given.

        Raises:
            OptionError: Something is wrong.
        """
        values: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            table, key, read = self._homes[name]
            # A flag that can be repeated and was not given is an empty tuple.
            if value is not None and value != ():
                values.setdefault(table, {})[key] = read(value)
        return make_options(
            self.kind, self.pipeline, file=file, flags=values, fallback=self._environment()
        )

    def _environment(self) -> dict[str, dict[str, str]]:
        """Return what the environment says; a file and flags are stronger."""
        found: dict[str, dict[str, str]] = {}
        for table, name, _ in self._homes.values():
            variable = _variable(table, name)
            if variable and (value := os.environ.get(variable)):
                found.setdefault(table, {})[name] = value
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Taken:
    """How click takes the values of a field, and how one becomes what the field holds."""

    type: Any
    read: Callable[[Any], Any] = lambda value: value
    is_repeatable: bool = False


def _taken(hint: Any, flag: str) -> _Taken:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return _Taken(click.Choice(get_args(hint)))
    if get_origin(hint) is tuple:
        return _Taken(str, is_repeatable=True)
    if get_origin(hint) is dict:
        return _Taken(str, lambda texts: read_pairs(flag, texts), is_repeatable=True)
    if hint in (str, int, float, bool):
        return _Taken(hint)

    # Dates and the like are texts, which are read as those of a file are.
    def read(text: str) -> Any:
        try:
            return msgspec.convert(text, hint)
        except msgspec.ValidationError as error:
            raise OptionError(f"{flag} {text!r}: {error}") from None

    return _Taken(str, read)


def _optional(metavar: str, is_repeatable: bool) -> str:
    return f"[{metavar}]" + ("..." if is_repeatable else "")


def _default_text(one: dataclasses.Field[Any]) -> str | bool:
    """Return the default that help shows; the flag itself has none, so that a file can count."""
    default = one.default
    if not isinstance(default, str | int | float) or isinstance(default, bool) or default == "":
        return False
    return f"{default:g}" if isinstance(default, float) else str(default)


# ---- commands ------------------------------------------------------------------------------------


def _add(name: str, module: str, names: tuple[str, str], arguments: tuple[str, ...] = ()) -> None:
    """Add the command of a pipeline.

    Args:
        name: That of the pipeline.
        module: Where it is.
        names: What its options and its function are called there.
        arguments: Fields that are arguments instead of flags.
    """
    options_name, function_name = names
    home = import_module(module)  # light: Spark is imported when it is used
    flags = Flags(getattr(home, options_name), name, arguments)

    def run(config: Path | None, as_json: bool, **given: Any) -> None:
        require("a pipeline", "spark")
        with telling_errors():
            options = flags.options(given, config)
            with showing_progress(name) as show:
                summary = getattr(home, function_name)(options, show=show)
            print_summary(summary, as_json=as_json)

    config = Option(
        ["--config"],
        type=PATH,
        metavar="FILE",
        help="TOML file with options; flags are stronger.",
    )
    as_json = Option(
        ["--json", "as_json"], is_flag=True, help="Print the summary as one JSON object."
    )
    parameters = [*flags.parameters(), config, as_json]
    command = Command(
        name, callback=run, params=parameters, help=inspect.cleandoc(_SAYS[name]), epilog=EPILOG
    )
    pipeline.add_command(command)


_SAYS: Final = {
    "lake": """Write topics to Parquet files by topic and day, exactly once.

    Can be killed and started again at any time. Runs until a signal comes, or with --once until
    all is written that is there.
    """,
    "compact": """Write the small files of a lake into large ones, for days that are over.

    Readers see the same rows at every moment. The lake must not run meanwhile.
    """,
    "load": """Send the rows of Parquet, CSV or JSON lines files to a topic.

    Files that were sent are remembered, so it can be killed and started again. A row that is sent
    twice for that has the same message id.
    """,
    "mirror": """Copy topics to another cluster, or to other topics of the same one.

    Keys, tags, properties and the order within a queue are kept. A message that is sent twice,
    because the job was killed, has the same message id.
    """,
    "replay": """Send messages of a topic again, to another one: those of a time, or with some keys.

    Where a message was is kept in its properties.
    """,
    "trace": """Make tables and a report of message traces: rates, latency, failures, balance.

    Reads a time range in one batch, or follows the trace topic with --stream.
    """,
}

_add("lake", "downrange.pipelines.lake", ("LakeOptions", "run_lake"), ("topics",))
_add("compact", "downrange.pipelines.compact", ("CompactOptions", "run_compact"), ("output",))
_add("load", "downrange.pipelines.load", ("LoadOptions", "run_load"), ("path",))
_add("mirror", "downrange.pipelines.mirror", ("MirrorOptions", "run_mirror"), ("topics",))
_add("replay", "downrange.pipelines.replay", ("ReplayOptions", "run_replay"), ("topic",))
_add("trace", "downrange.pipelines.trace.pipeline", ("TraceOptions", "run_trace"))


# ---- what is shown -------------------------------------------------------------------------------


@contextmanager
def showing_progress(pipeline: str) -> Generator[Callable[[Progress], None]]:
    """Show progress on standard error: in one line that changes, or in a line every few seconds."""
    from downrange.cli.output import console

    out = console(stderr=True)
    if out.is_terminal:
        with out.status(f"{pipeline}: starting Spark") as status:
            yield lambda progress: status.update(f"{pipeline}: {progress}")
        return
    yield PlainProgress(pipeline)


class PlainProgress:
    """Prints a line when there is something new, and not more often than every few seconds.

    Args:
        pipeline: What the lines begin with.
    """

    _SECONDS: Final = 5.0

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._next = 0.0
        self._last = ""

    def __call__(self, progress: Progress) -> None:
        """Take note of how far it is."""
        text = str(progress)
        if text != self._last and time.monotonic() >= self._next:
            self._last, self._next = text, time.monotonic() + self._SECONDS
            print(f"{self._pipeline}: {text}", file=sys.stderr, flush=True)


def print_summary(summary: Summary, *, as_json: bool) -> None:
    """Print what was done."""
    from downrange.cli.output import print_facts, print_json

    if as_json:
        print_json(summary.as_json())
        return
    facts = summary.as_json()
    facts.pop("pipeline")
    facts["rows"] = f"{summary.rows:,}"
    facts["rows_per_second"] = f"{summary.rows_per_second:,.0f}"
    facts["seconds"] = f"{summary.seconds:.1f}"
    shown = {name.replace("_", " "): value for name, value in facts.items()}
    print_facts(shown, title=f"{summary.pipeline}: {summary.ended}")
