"""Arguments of the client commands: how they are parsed, and which are refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from downrange.cli import app
from downrange.cli.connection import Connection
from downrange.cli.read import find_queue, parse_range, parse_start
from downrange.cli.topic import parse_attributes, parse_permission, permission_text
from downrange.errors import OptionError
from downrange.model import QueueId
from downrange.options.times import parse_time

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
QUEUES = [QueueId("t", "a", 0), QueueId("t", "b", 0), QueueId("t", "b", 1)]
run = CliRunner().invoke


@pytest.mark.parametrize("word", ["earliest", "latest", "committed", "Latest"])
def test_a_start_may_be_a_word(word: str) -> None:
    assert parse_start(word, NOW) == word.lower()


def test_a_start_may_be_an_offset_a_time_or_how_long_ago() -> None:
    assert parse_start("17", NOW) == 17
    assert parse_start("2026-01-31T12:00:00+01:00", NOW) == NOW - timedelta(hours=1)
    assert parse_start("90s", NOW) == NOW - timedelta(seconds=90)
    assert parse_start("1.5h", NOW) == NOW - timedelta(minutes=90)
    assert parse_start("2d", NOW) == NOW - timedelta(days=2)


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 1, 31, 12).astimezone()
    assert parse_time("--begin", "2026-01-31 12:00", NOW) == local


def test_a_time_without_a_zone_is_of_the_zone_that_a_caller_names() -> None:
    east = timezone(timedelta(hours=8))
    assert parse_time("t", "2026-01-31 20:00", NOW, zone=east) == NOW
    assert parse_time("t", "2026-01-31 12:00Z", NOW, zone=east) == NOW


@pytest.mark.parametrize("text", ["soon", "-1", "5 apples", ""])
def test_an_invalid_start_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"--from .* is not one of: earliest, .* 15m"):
        parse_start(text, NOW)


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("earliest", None, ("earliest", None)),
        ("earliest", "Latest", ("earliest", "latest")),
        ("5", "17", (5, 17)),
        ("2h", "1h", (NOW - timedelta(hours=2), NOW - timedelta(hours=1))),
        ("earliest", "2026-01-31T12:00:00Z", ("earliest", NOW)),
        ("100", "1h", (100, NOW - timedelta(hours=1))),
    ],
)
def test_a_range_has_an_end_or_none(start: str, end: str | None, found: object) -> None:
    assert parse_range(start, end, NOW) == found


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ("earliest", "committed", "--to 'committed' is not one of: latest, an offset, a time"),
        ("5", "5", "--to 5 is not after --from 5"),
        ("1h", "2h", "--to 2h is not after --from 1h"),
    ],
)
def test_an_invalid_range_is_refused(start: str, end: str, words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)):
        parse_range(start, end, NOW)


def test_a_queue_is_found_by_broker_and_number_or_number_alone() -> None:
    assert find_queue("b:0", QUEUES) == QUEUES[1]
    assert find_queue("1", QUEUES) == QUEUES[2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "on several brokers; name one of: a:0, b:0"),
        ("c:0", "does not exist; existing queues: a:0, b:0, b:1"),
        ("a:x", "neither BROKER:NUMBER nor a number"),
    ],
)
def test_an_ambiguous_or_unknown_queue_is_refused(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        find_queue(text, QUEUES)


@pytest.mark.parametrize(
    ("text", "permission", "shown"),
    [
        ("rw", 6, "rw"),
        ("r", 4, "r"),
        ("w", 2, "w"),
        ("wr", 6, "rw"),
        ("7", 7, "rwi"),
        ("0", 0, "none"),
    ],
)
def test_a_permission_is_read_and_shown(text: str, permission: int, shown: str) -> None:
    assert parse_permission(text) == permission
    assert permission_text(permission) == shown


@pytest.mark.parametrize("text", ["", "x", "rx", "8"])
def test_an_invalid_permission_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--permission"):
        parse_permission(text)


def test_an_attribute_is_set_or_removed() -> None:
    assert parse_attributes(["a=1", "b="]) == {"a": "1", "b": None}
    for text in ("a", "=1"):
        with pytest.raises(OptionError, match="NAME=VALUE"):
            parse_attributes([text])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["send", "t", "x", "--access-key", "a"], "need each other"),
        (["send", "t", "x", "--timeout", "0"], "--timeout 0 is not above 0"),
        (["send", "t", "x", "-n", "nowhere"], "of the form host:port"),
        (["send", "t", "x", "--lines"], "exclude each other"),
        (["send", "t", "--lines", "--json-lines"], "exclude each other"),
        (["send", "t", "--lines", "--batch", "2", "--oneway"], "exclude each other"),
        (["send", "t", "--lines", "--rate", "0"], "--rate 0 is not above 0"),
        (["send", "t", "x", "--rate", "1"], "need --lines"),
        (["send", "t", "x", "--property", "color"], "NAME=VALUE"),
        (["send", "t", "x", "--delay-level", "1", "--deliver-in", "1"], "one way only"),
        (["send", "t", "x", "--ca", "missing.pem"], "missing.pem"),
        (["tail", "t", "--from", "soon"], "is not one of"),
        (["tail", "t", "--json", "--body-only"], "exclude each other"),
        (["tail", "t", "--commit"], "--group"),
        (["pull", "t", "0", "-1"], "Invalid value|No such option"),
        (["message", "show", "t", "id", "--since", "soon"], "--since"),
        (["message", "query", "t"], "--key"),
        (["topic", "create", "t", "--permission", "x"], "--permission"),
        (["doctor", "nowhere"], "of the form host:port"),
    ],
)
def test_wrong_use_ends_with_2_before_any_request(arguments: list[str], words: str) -> None:
    result = run(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert re.search(words, result.output) is not None, result.output


def test_options_of_a_connection_become_a_client(tmp_path: Path) -> None:
    connection = Connection(
        name_server="a:1;b:2", access_key="key", secret_key="hidden", namespace="ns", timeout=2.0
    )
    client = connection.client(connect_on_start=False)
    assert client.options.namespace == "ns"
    assert (client.options.call_timeout, client.options.connect_timeout) == (2.0, 2.0)
    assert client.options.connect_on_start is False
    assert "hidden" not in repr(connection)
    assert connection.options.credentials is not None
    assert connection.options.credentials.access_key == "key"


@pytest.mark.parametrize(
    "command",
    [
        ["send"],
        ["tail"],
        ["pull"],
        ["doctor"],
        *(["topic", name] for name in ("create", "update", "list", "show", "delete")),
        *(["message", name] for name in ("show", "query")),
    ],
)
def test_help_names_the_connection_and_the_exit_codes(command: list[str]) -> None:
    result = run(app, [*command, "--help"], env={"COLUMNS": "200", "NAMESRV_ADDR": ""})
    assert result.exit_code == 0
    for words in ("--name-server", "NAMESRV_ADDR", "127.0.0.1:9876", "DOWNRANGE_SECRET_KEY"):
        assert words in result.output
    assert "4 not permitted" in result.output
