"""Server commands: options that are refused before a start, and the help."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from downrange.cli import app, server_factory
from downrange.cli.console_process import console_arguments
from downrange.cli.server_factory import make_broker, make_cluster, make_name_server
from downrange.cli.server_flags import CommonFlags
from downrange.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

NO_FLAGS = CommonFlags(
    host=None, config=None, tls_certificate=None, tls_key=None, tls_ca=None, tls_mode=None, acl=None
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("serve", "--brokers", "0"), "brokers=0"),
        (("serve", "--flush", "never"), "never"),
        (("serve", "--nameserver-port", "70000"), "port=70000"),
        (("serve", "--broker-port", "70000"), "port=70000"),
        (("serve", "--broker-port", "65530", "--brokers", "2"), "port=65540"),
        (("serve", "--config", "no-such-file.toml"), "no-such-file.toml"),
        (("serve", "--tls-mode", "enforcing"), "certificate"),
        (("serve", "--tls-ca", "ca.pem"), "certificate"),
        (("serve", "--tls-certificate", "no-such.pem", "--tls-key", "no.key"), "no-such.pem"),
        (("serve", "--acl", "no-such-file.toml"), "no-such-file.toml"),
        (("serve", "--log-level", "loud"), "loud"),
        (("serve", "--log-level", "acces=debug"), "did you mean access"),
        (("serve", "--log-level", "=debug"), "names no logger"),
        (("serve", "--log-level", "nope=debug"), "logger 'nope' is unknown"),
        (("console", "--log-level", "nope=debug"), "logger 'nope' is unknown"),
        (("console", "--log-format", "xml"), "xml"),
        (("serve", "--log-format", "xml"), "xml"),
        (("serve", "--metrics", "9876"), "host:port"),
        (("nameserver", "--host", ""), "host="),
        (("broker",), "nameserver"),
        (("broker", "--nameserver", "127.0.0.1:1", "--name", "a b"), "name="),
        (("broker", "--nameserver", "127.0.0.1:1", "--port", "-1"), "port=-1"),
    ],
)
def test_a_wrong_option_ends_a_server_with_2_and_names_the_option(
    arguments: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, list(arguments))
    assert ended.exit_code == 2, ended.output
    assert text in ended.output.replace("\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_console_beside_a_server_has_the_logs_of_the_server(tmp_path: Path) -> None:
    flags = dataclasses.replace(NO_FLAGS, log_level=("warning", "console=debug"), log_format="json")
    arguments = console_arguments(flags, port=0, store=tmp_path)
    assert arguments[-6:] == [
        *("--log-format", "json", "--log-level", "warning", "--log-level", "console=debug"),
    ]


def test_a_console_beside_a_server_links_to_the_report_of_traces(tmp_path: Path) -> None:
    arguments = console_arguments(NO_FLAGS, port=0, store=tmp_path, trace_report="http://x/r.html")
    at = arguments.index("--trace-report")
    assert arguments[at + 1] == "http://x/r.html"
    assert "--trace-report" not in console_arguments(NO_FLAGS, port=0, store=tmp_path)


@pytest.mark.parametrize("command", ["serve", "nameserver", "broker"])
def test_help_shows_the_ready_line_and_the_options(command: str) -> None:
    ended = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert ended.exit_code == 0
    for text in (
        "ready",
        "--host",
        "--config",
        "--log-level",
        "--tls-certificate",
        "--acl",
        "--metrics",
    ):
        assert text in ended.output


def test_metrics_are_a_flag_and_a_table(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('[metrics]\naddress = "127.0.0.1:1"\nseries_max = 7\n')
    filed = dataclasses.replace(NO_FLAGS, config=config)
    flagged = dataclasses.replace(filed, metrics="127.0.0.1:2")
    broker = {"store": tmp_path, "port": 0, "name": None, "cluster": None, "flush": None}
    cluster = {"nameserver_port": 0, "broker_port": 0, "brokers": 1, "flush": None}
    for flags, address in ((filed, "127.0.0.1:1"), (flagged, "127.0.0.1:2")):
        servers = (
            make_name_server(flags, 0, None),
            make_broker(flags, **broker, name_servers=["h:1"]),  # type: ignore[arg-type]
            make_cluster(flags, store=tmp_path, **cluster),  # type: ignore[arg-type]
        )
        for server in servers:
            assert server.metrics is not None
            assert server.metrics.options.address == address
            assert server.metrics.options.series_max == 7
    assert make_name_server(NO_FLAGS, 0, None).metrics is None


def test_flags_override_the_file(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('[broker]\nname = "filed"\nflush = "async"\n[listener]\nport = 7\n')
    flags = dataclasses.replace(NO_FLAGS, host="127.0.0.2", config=config)
    broker = make_broker(
        flags, store=tmp_path, port=8, name=None, cluster="mine", name_servers=["h:1"], flush="sync"
    )
    options = broker._options
    assert (options.name, options.cluster, options.flush) == ("filed", "mine", "sync")
    assert options.name_servers == ("h:1",)
    listening = broker._listener._options
    assert (listening.host, listening.port) == ("127.0.0.2", 8)


@pytest.mark.parametrize(
    ("is_core_spare", "config", "flush", "expected"),
    [
        (True, "", "async", 0.0005),
        (True, "[listener]\nbusy_poll = 0.002\n", "async", 0.002),
        (True, "[listener]\nbusy_poll = 0.0\n", "async", 0.0),
        (True, "", "sync", 0.0),
        (False, "", "async", 0.0),
        (False, "[listener]\nbusy_poll = 0.002\n", "async", 0.002),
    ],
)
def test_a_server_process_busy_polls_where_a_core_is_spare(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_core_spare: bool,
    config: str,
    flush: str,
    expected: float,
) -> None:
    monkeypatch.setattr(server_factory, "has_core_to_spare", lambda: is_core_spare)
    file = tmp_path / "serve.toml"
    file.write_text(config)
    flags = dataclasses.replace(NO_FLAGS, config=file)
    broker = make_broker(
        flags, store=tmp_path, port=0, name=None, cluster=None, name_servers=[], flush=flush
    )
    assert broker._listener._options.busy_poll == expected


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_help_says_that_the_vip_channel_is_off_by_default(command: str) -> None:
    ended = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    words = " ".join(ended.output.partition("--vip")[2].split())
    assert words.startswith("Listen on the broker's port less 2 too")
    assert "off by default" in words.partition(".")[0]


def test_a_cluster_without_a_file_has_the_defaults(tmp_path: Path) -> None:
    cluster = make_cluster(
        NO_FLAGS, store=tmp_path, nameserver_port=1, broker_port=2, brokers=3, flush=None
    )
    assert cluster.options.broker.flush == "async"
    assert [cluster.options.name_of(index) for index in range(3)] == [
        "broker-a",
        "broker-b",
        "broker-c",
    ]
    assert cluster.options.folder_of(1) == str(tmp_path / "broker-b")


def test_a_name_server_may_do_without_a_folder() -> None:
    assert make_name_server(NO_FLAGS, 0, None)._options.store is None


def test_a_setting_that_is_not_known_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("[broker]\nflush_intervall = 1\n")
    flags = dataclasses.replace(NO_FLAGS, config=config)
    with pytest.raises(OptionError, match="did you mean 'flush_interval'"):
        make_cluster(flags, store=tmp_path, nameserver_port=0, broker_port=0, brokers=1, flush=None)


def test_an_access_key_without_a_secret_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('[access]\naccess_key = "administrator"\n')
    with pytest.raises(OptionError, match="access_key and secret_key need each other"):
        make_name_server(dataclasses.replace(NO_FLAGS, config=config), 0, None)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("pipelin", "Did you mean 'pipeline'?"),
        ("servee", "Did you mean 'serve', 'nameserver'?"),
        ("xyz", "No such command 'xyz'.\n"),
    ],
)
def test_a_misspelt_command_gets_a_hint(word: str, hint: str) -> None:
    ended = CliRunner().invoke(app, [word])
    assert ended.exit_code == 2
    assert hint in ended.output


def test_a_misspelt_command_of_a_group_and_a_misspelt_option_get_hints() -> None:
    ended = CliRunner().invoke(app, ["topic", "creat"])
    assert (ended.exit_code, "Did you mean 'create'?" in ended.output) == (2, True)
    ended = CliRunner().invoke(app, ["serve", "--broker-prt", "1"])
    assert (ended.exit_code, "--broker-port" in ended.output) == (2, True)
