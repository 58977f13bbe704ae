"""Levels and formats of the logs of servers."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from downrange.cli.server_logs import JsonLines, levels_of
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


def record(message: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise ValueError("no")
        except ValueError:
            info = sys.exc_info()
    made = logging.LogRecord("downrange.broker", logging.WARNING, "f", 1, message, arguments, info)
    made.created = 1_700_000_000.25
    return made


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
    found = json.loads(JsonLines().format(record("failed", error=True)))
    assert found["error"].endswith("ValueError: no")
