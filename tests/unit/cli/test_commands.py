"""The list of commands, their help, and the modules that each command imports."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from downrange.cli import app
from downrange.cli.app import COMMANDS

NARROW = {"COLUMNS": "80", "TERM": "dumb"}
#: Slow or large packages that no command needs.
NEVER = {"typer", "pydantic"}
run = CliRunner().invoke


def _python(code: str) -> tuple[int, set[str]]:
    """Run code in a new interpreter; return its exit code and the imported modules."""
    print_modules = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(list(sys.modules)), file=sys.__stdout__))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", print_modules + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return ended.returncode, set(json.loads(ended.stdout.splitlines()[-1]))


def _loaded(*arguments: str) -> tuple[int, set[str]]:
    """Run a command; return its exit code and the imported modules."""
    start = "from downrange.__main__ import main\nmain()"
    return _python(f"sys.argv = ['downrange', *{arguments!r}]\n{start}")


def _own(loaded: set[str]) -> set[str]:
    return {name.removeprefix("downrange.cli.") for name in loaded if ".cli." in name}


def _commands(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = _commands(command, *path, name) if isinstance(command, click.Group) else []
        found += [(*path, name), *inner]
    return found


ALL = _commands(app)


# ---- what is imported ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--help",), 0), (("--brokers", "0"), 2), (("--store", "/dev/null/store"), 1)],
)
def test_a_server_imports_nothing_that_only_other_commands_need(
    arguments: tuple[str, ...], code: int
) -> None:
    """In the last case a server is built and fails to start."""
    ports = ("--nameserver-port", "0", "--broker-port", "0")
    ended, loaded = _loaded("serve", *ports, *arguments)
    assert ended == code
    assert loaded.isdisjoint({*NEVER, "rich", "yaml", "pyspark", "pyarrow", "numpy"})
    late: set[str] = set() if code == 0 else {"server_factory", "config_file"}
    assert _own(loaded) == {
        "app",
        "command_groups",
        "exit_codes",
        "parameters",
        "serve",
        "server_flags",
        "server_logs",
        "standard_streams",
        *late,
    }
    assert not any(name.startswith("downrange.pipelines") for name in loaded)
    assert ("downrange.server" in loaded) == (code != 0)


@pytest.mark.parametrize("arguments", [("send", "t", "x", "--rate", "1"), ("tail", "--help")])
def test_client_commands_load_no_server(arguments: tuple[str, ...]) -> None:
    code, loaded = _loaded(*arguments)
    assert code == (0 if "--help" in arguments else 2)
    assert loaded.isdisjoint({*NEVER, "rich", "yaml", "pyspark", "uvloop", "downrange.server"})


def test_help_needs_neither_tables_nor_spark() -> None:
    code = (
        "from downrange.cli import app\n"
        f"for path in {ALL!r}:\n"
        "    try: app([*path, '--help'])\n"
        "    except SystemExit as end: assert end.code == 0, path\n"
    )
    ended, loaded = _python(code)
    assert ended == 0
    assert "downrange.cli.pipeline" in loaded
    assert loaded.isdisjoint({*NEVER, "rich", "yaml", "pyspark", "uvloop", "downrange.server"})


def test_the_list_of_commands_imports_none_of_them() -> None:
    code, loaded = _loaded("--help")
    assert code == 0
    assert _own(loaded) == {
        "app",
        "command_groups",
        "exit_codes",
        "parameters",
        "standard_streams",
    }


# ---- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for commands in COMMANDS.values() for name, (_, text) in commands.items()],
)
def test_the_list_shows_the_first_line_of_each_help(name: str, text: str) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").split("\n\n")[0].replace("\n", " ") == text


def test_the_list_has_headings_and_every_command() -> None:
    shown = run(app, ["--help"], env=NARROW).output
    heading_at = [shown.index(f"\n{heading}:\n") for heading in COMMANDS]
    assert heading_at == sorted(heading_at)
    for commands in COMMANDS.values():
        for name, (_, text) in commands.items():
            assert f"\n  {name} " in shown
            assert text in " ".join(shown.split())


def test_groups_show_their_help_without_a_command() -> None:
    for arguments in ([], ["topic"], ["message"], ["pipeline"]):
        ended = run(app, arguments, env=NARROW)
        assert ended.exit_code == 2
        assert ended.output == run(app, [*arguments, "--help"], env=NARROW).output


def test_commands_of_a_group_are_listed_in_order() -> None:
    shown = run(app, ["topic", "--help"], env=NARROW).output
    names = ("create", "update", "list", "show", "delete")
    places = [shown.index(f"\n  {name} ") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_a_narrow_terminal(path: tuple[str, ...]) -> None:
    ended = run(app, [*path, "--help"], env=NARROW)
    assert ended.exit_code == 0
    assert max(map(len, ended.output.splitlines())) <= 80
    assert ended.output.startswith(f"Usage: app {' '.join(path)} ")


@pytest.mark.parametrize("path", [(), *ALL], ids=" ".join)
def test_the_short_option_shows_the_help_too(path: tuple[str, ...]) -> None:
    ended = run(app, [*path, "-h"], env=NARROW)
    assert (ended.exit_code, ended.output) == (0, run(app, [*path, "--help"], env=NARROW).output)
    assert "-h, --help" in ended.output


def test_help_shows_defaults_variables_limits_and_arguments() -> None:
    shown = " ".join(run(app, ["send", "--help"], env=NARROW).output.split())
    for text in (
        "Arguments: TOPIC Topic to send to. [required] BODY Body of the message;",
        "[env var: NAMESRV_ADDR; default: 127.0.0.1:9876]",
        "[default: (on a terminal)]",
        "--on-error [stop|skip] Stop at a line that fails, or skip it. [default: stop]",
        "--batch N Put up to N lines into one request. [x>=1]",
        "Connection: -n, --name-server, --nameserver HOST:PORT",
    ):
        assert text in shown
    shown = " ".join(run(app, ["serve", "--help"], env=NARROW).output.split())
    for text in (
        "[default: downrange-store]",
        "--flush [sync|async] Acknowledge a message after it was flushed to disk, or before. "
        "[default: (async)]",
        "--broker-port INTEGER Port of the first broker; 0 picks free ones. [default: 10911]",
    ):
        assert text in shown


# ---- ends ----------------------------------------------------------------------------------------


def test_ctrl_c_ends_any_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("downrange.cli.decode.show_frames", interrupt)
    ended = run(app, ["decode", "00"])
    assert (ended.exit_code, ended.output) == (130, "")
