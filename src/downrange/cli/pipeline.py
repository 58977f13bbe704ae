"""`pipeline lake|compact|load|mirror|replay|trace`: ready-made Spark jobs.

The flags of a command are generated from the fields of its options class. A flag overrides the TOML
file of `--config`. Progress goes to standard error, the summary to standard output.
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
from downrange.cli.completion import complete_topics
from downrange.cli.exit_codes import EPILOG, WRONG_USE, exit_on_error, print_error
from downrange.cli.parameters import PATH, Argument, Command, Option
from downrange.errors import OptionError
from downrange.extras import check
from downrange.options.cluster import VARIABLES
from downrange.options.flags import option_fields
from downrange.pipelines.options import make_options, read_pairs, tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from downrange.pipelines.summary import Progress, Summary

#: Table -> prefix of its flags, and their heading in the help.
_TABLES: Final = {
    "cluster": ("", "Connection"),
    "target": ("target-", "Connection of the target"),
    "run": ("", "Run"),
    "spark": ("", "Spark"),
}
_MORE_NAMES: Final = {"--name-server": ("--nameserver", "-n"), "--output": ("-o",)}


@click.group(cls=Group)
def pipeline() -> None:
    """Ready-made Spark jobs: topics to files and back, topic to topic."""


def _variable(table: str, name: str) -> str | None:
    """Return the environment variable of a field; a target has variables of its own."""
    variable = VARIABLES.get(name)
    if variable is None or table not in ("cluster", "target"):
        return None
    return variable if table == "cluster" else f"DOWNRANGE_TARGET_{name.upper()}"


# ---- flags from options --------------------------------------------------------------------------


class Flags:
    """The flags of one pipeline, generated from its options class.

    Args:
        kind: The options class.
        pipeline: Name of the pipeline.
        arguments: Fields that are arguments instead of flags.
    """

    def __init__(self, kind: type[Any], pipeline: str, arguments: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.pipeline = pipeline
        self._arguments = arguments
        #: Name of the parameter -> table, field, and the function that parses its value.
        self._fields: dict[str, tuple[str, str, Callable[[Any], Any]]] = {}

    def parameters(self) -> Iterator[click.Parameter]:
        """Yield the parameters of the command."""
        yield from self._parameters(self.kind, self.pipeline)
        for table, inner in tables_of(self.kind).items():
            yield from self._parameters(inner, table)

    def _parameters(self, kind: type[Any], table: str) -> Iterator[click.Parameter]:
        hints = get_type_hints(kind)
        for one in option_fields(kind):
            prefix, panel = _TABLES.get(table, ("", "Options"))
            word = (one.metadata.get("name") or one.name).replace("_", "-")
            flag, name = f"--{prefix}{word}", f"{table}__{one.name}"
            flag_type = _flag_type(hints[one.name], flag)
            self._fields[name] = (table, one.name, flag_type.read)
            variable = _variable(table, one.name)
            help_text = one.metadata["help"] + (f" [env var: {variable}]" if variable else "")
            metavar = one.metadata.get("metavar")
            completion = complete_topics if one.name in ("topic", "topics") else None
            if one.name in self._arguments:
                yield Argument(
                    [name],
                    type=flag_type.type,
                    nargs=-1 if flag_type.is_repeatable else 1,
                    required=False,  # the config file may set it
                    metavar=_optional(metavar or word.upper(), flag_type.is_repeatable),
                    help=help_text,
                    shell_complete=completion,
                )
                continue
            names = f"{flag}/--{prefix}no-{word}" if flag_type.type is bool else flag
            yield Option(
                [names, *_MORE_NAMES.get(flag, ()), name],
                panel=panel,
                type=flag_type.type,
                multiple=flag_type.is_repeatable,
                default=None,
                show_default=_default_text(one),
                metavar=metavar,
                help=help_text,
                shell_complete=completion,
            )

    def options(self, given: Mapping[str, Any], file: Path | None) -> Any:
        """Build the options from flags, config file and environment.

        Raises:
            OptionError: A value is invalid or missing.
        """
        values: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            table, key, read = self._fields[name]
            # A repeatable flag that was not given is an empty tuple.
            if value is not None and value != ():
                values.setdefault(table, {})[key] = read(value)
        return make_options(
            self.kind, self.pipeline, file=file, flags=values, fallback=self._environment()
        )

    def _environment(self) -> dict[str, dict[str, str]]:
        """Return the values from the environment, which the file and flags override."""
        found: dict[str, dict[str, str]] = {}
        for table, name, _ in self._fields.values():
            variable = _variable(table, name)
            if variable and (value := os.environ.get(variable)):
                found.setdefault(table, {})[name] = value
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class _FlagType:
    """The click type of a flag, and the function that converts its value for the field."""

    type: Any
    read: Callable[[Any], Any] = lambda value: value
    is_repeatable: bool = False


def _flag_type(hint: Any, flag: str) -> _FlagType:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return _FlagType(click.Choice(get_args(hint)))
    if get_origin(hint) is tuple:
        return _FlagType(str, is_repeatable=True)
    if get_origin(hint) is dict:
        return _FlagType(str, lambda texts: read_pairs(flag, texts), is_repeatable=True)
    if hint in (str, int, float, bool):
        return _FlagType(hint)

    # Dates and similar types are texts, converted as in the config file.
    def read(text: str) -> Any:
        try:
            return msgspec.convert(text, hint)
        except msgspec.ValidationError as error:
            raise OptionError(f"{flag} {text!r}: {error}") from None

    return _FlagType(str, read)


def _optional(metavar: str, is_repeatable: bool) -> str:
    return f"[{metavar}]" + ("..." if is_repeatable else "")


def _default_text(one: dataclasses.Field[Any]) -> str | bool:
    """Return the default that the help shows; the flag has none, so that the file can set it."""
    default = one.default
    if not isinstance(default, str | int | float) or isinstance(default, bool) or default == "":
        return False
    return f"{default:g}" if isinstance(default, float) else str(default)


# ---- commands ------------------------------------------------------------------------------------


def _add(name: str, module: str, names: tuple[str, str], arguments: tuple[str, ...] = ()) -> None:
    """Add the command of a pipeline.

    Args:
        name: Name of the pipeline.
        module: Its module.
        names: Names of its options class and of its function.
        arguments: Fields that are arguments instead of flags.
    """
    options_name, function_name = names
    pipeline_module = import_module(module)  # fast: it imports Spark only when it runs
    flags = Flags(getattr(pipeline_module, options_name), name, arguments)

    def run(config: Path | None, as_json: bool, **given: Any) -> None:
        from downrange.pipelines.session import JavaMissing

        with exit_on_error():
            options = flags.options(given, config)
            check("a pipeline", "spark")
            try:
                with show_progress(name) as show:
                    summary = getattr(pipeline_module, function_name)(options, show=show)
            except JavaMissing as error:
                print_error(error)
                raise click.exceptions.Exit(WRONG_USE) from error
            print_summary(summary, as_json=as_json)

    config = Option(
        ["--config"],
        type=PATH,
        metavar="FILE",
        help="TOML file with options; flags override it.",
    )
    as_json = Option(
        ["--json", "as_json"], is_flag=True, help="Print the summary as one JSON object."
    )
    parameters = [*flags.parameters(), config, as_json]
    command = Command(
        name,
        callback=run,
        params=parameters,
        help=inspect.cleandoc(_HELP_TEXTS[name]),
        epilog=EPILOG,
    )
    pipeline.add_command(command)


_HELP_TEXTS: Final = {
    "lake": """Write topics to Parquet files by topic and day, exactly once.

    It can be killed and restarted at any time. Runs until a signal ends it, or with --once until
    all stored messages are written.
    """,
    "compact": """Merge the small files of a lake into large ones, for past days.

    Readers see the same rows at any time. The lake pipeline must not run at the same time.
    """,
    "load": """Send the rows of Parquet, CSV or JSON lines files to a topic.

    It records the files that were sent, so it can be killed and restarted. A row that is sent again
    after a restart has the same message id.
    """,
    "mirror": """Copy topics to another cluster, or to other topics of the same one.

    Keys, tags, properties and the order within a queue are kept. A message that is sent again
    after a restart has the same message id.
    """,
    "replay": """Send messages of a topic to another one: those of a time range, or with some keys.

    The original position of a message is kept in its properties.
    """,
    "trace": """Write tables and a report of message traces: rates, latency, failures, balance.

    Reads a time range in one batch, or follows the trace topic with --stream.
    """,
}

_add("lake", "downrange.pipelines.lake", ("LakeOptions", "run_lake"), ("topics",))
_add("compact", "downrange.pipelines.compact", ("CompactOptions", "run_compact"), ("output",))
_add("load", "downrange.pipelines.load", ("LoadOptions", "run_load"), ("path",))
_add("mirror", "downrange.pipelines.mirror", ("MirrorOptions", "run_mirror"), ("topics",))
_add("replay", "downrange.pipelines.replay", ("ReplayOptions", "run_replay"), ("topic",))
_add("trace", "downrange.pipelines.trace.pipeline", ("TraceOptions", "run_trace"))


# ---- output --------------------------------------------------------------------------------------


@contextmanager
def show_progress(pipeline: str) -> Generator[Callable[[Progress], None]]:
    """Show progress on standard error: one updated line, or without a terminal a line per 5 s."""
    from downrange.cli.output import console

    out = console(stderr=True)
    if out.is_terminal:
        with out.status(f"{pipeline}: starting") as status:
            yield lambda progress: status.update(f"{pipeline}: {progress}")
        return
    yield PlainProgress(pipeline)


class PlainProgress:
    """Prints a line when the progress has changed, at most every few seconds.

    Args:
        pipeline: Name at the start of each line.
    """

    _SECONDS: Final = 5.0

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._next = 0.0
        self._last = ""

    def __call__(self, progress: Progress) -> None:
        """Print the progress, if it is time for a line."""
        text = str(progress)
        if text != self._last and time.monotonic() >= self._next:
            self._last, self._next = text, time.monotonic() + self._SECONDS
            print(f"{self._pipeline}: {text}", file=sys.stderr, flush=True)


def print_summary(summary: Summary, *, as_json: bool) -> None:
    """Print the summary of a pipeline."""
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
