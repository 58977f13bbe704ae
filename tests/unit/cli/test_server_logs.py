"""Levels and formats of the logs of servers."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from downrange.cli.server_logs import JsonLines, TextLines, levels_of
from downrange.errors import OptionError


def test_levels_are_for_all_loggers_or_for_one() -> None:
    assert levels_of(()) == {"": logging.INFO}
    assert levels_of(("warning", "access=debug", "downrange.store=error", "asyncio=INFO")) == {
        "": logging.WARNING,
        "downrange.access": logging.DEBUG,
        "downrange.store": logging.ERROR,
        "asyncio": logging.INFO,
    }


def test_loggers_without_a_dot_are_known_ones() -> None:
    texts = ("console=debug", "downrange=debug", "uvicorn=info", "asyncio=error", "other.part=info")
    assert levels_of(texts).keys() == {
        *("", "downrange.console", "downrange", "uvicorn", "asyncio", "other.part"),
    }
    with pytest.raises(OptionError, match="logger 'nope' is unknown; there are access, broker"):
        levels_of(("nope=debug",))
    with pytest.raises(OptionError, match="did you mean uvicorn"):
        levels_of(("uvicor=debug",))


def test_the_last_level_of_a_logger_counts() -> None:
    assert levels_of(("broker=debug", "broker=error"))["downrange.broker"] == logging.ERROR


@pytest.mark.parametrize("text", ["loud", "broker=loud", "=info", "brokr=info", "nope=info", ""])
def test_wrong_levels_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        levels_of((text,))


def record(message: str, *arguments: object, error: str | None = None) -> logging.LogRecord:
    info = None
    if error is not None:
        try:
            raise ValueError(error)
        except ValueError:
            info = sys.exc_info()
    made = logging.LogRecord("downrange.broker", logging.WARNING, "f", 1, message, arguments, info)
    made.created = 1_700_000_000.25
    return made


def text_lines() -> TextLines:
    return TextLines("%(levelname)s %(name)s: %(message)s")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("client a\n2026-01-01 ERROR x", r"client a\n2026-01-01 ERROR x"),
        ("a\r\n\x1b[2Jb\x00\x7f\x9b\u2028\u202e", r"a\r\n\x1b[2Jb\x00\x7f\x9b\u2028\u202e"),
        ("half \ud800", r"half \ud800"),
        ("\u4e2d \U0001f680 C:\\new", "\u4e2d \U0001f680 C:\\new"),
        ("Exception in ASGI application\n", "Exception in ASGI application"),
    ],
)
def test_a_text_of_a_client_forges_no_line_and_reaches_no_terminal(text: str, shown: str) -> None:
    assert text_lines().format(record("%s", text)) == f"WARNING downrange.broker: {shown}"


def test_a_text_line_has_the_whole_traceback_on_indented_lines() -> None:
    lines = text_lines().format(record("failed", error="no\n2026 ERROR \x1b[2J")).split("\n")
    assert lines[:2] == ["WARNING downrange.broker: failed", "  Traceback (most recent call last):"]
    assert lines[-2:] == ["  ValueError: no", r"  2026 ERROR \x1b[2J"]


def test_a_json_line_has_time_level_logger_and_message() -> None:
    line = JsonLines().format(record("topic %s\nis \u4e2d", '"x"'))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "downrange.broker",
        "message": 'topic "x"\nis \u4e2d',
    }


def test_a_json_line_has_the_traceback_of_an_error() -> None:
    found = json.loads(JsonLines().format(record("failed", error="no")))
    assert found["error"].endswith("ValueError: no")
