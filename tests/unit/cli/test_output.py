from __future__ import annotations

import io
import sys

import pytest

from downrange.cli.output import (
    body_text,
    local_text,
    print_facts,
    print_gap,
    print_json,
    print_table,
    readable,
)
from downrange.client.exports import utc_text


@pytest.mark.parametrize(
    ("body", "limit", "text"),
    [
        (b"plain", None, "plain"),
        ("grün".encode(), 10, "grün"),
        (b"two\nlines\x1b[31m", None, "two\\nlines\\x1b[31m"),
        (b"\xff\x00", None, "ff00"),
        (b"a" * 30, 10, "aaaaaaaaaa… 30 bytes"),
        ("€".encode() * 10, 10, "€€€… 30 bytes"),
        (b"\xff" + b"a" * 30, 4, "ff616161… 31 bytes"),
    ],
)
def test_a_body_is_shown_as_text_or_bytes(body: bytes, limit: int | None, text: str) -> None:
    assert body_text(body, limit) == text


def test_control_characters_are_escaped_except_those_to_keep() -> None:
    assert readable("a\tb\x07") == "a\\tb\\x07"
    assert readable("a\nb\x07", keep="\n") == "a\nb\\x07"


def test_a_time_of_json_is_in_utc_with_milliseconds_and_z() -> None:
    assert utc_text(0) == "1970-01-01T00:00:00.000Z"
    assert utc_text(1_767_225_600_123) == "2026-01-01T00:00:00.123Z"
    assert len(local_text(0)) == len("1970-01-01 00:00:00.000+00:00")


@pytest.mark.parametrize("at_ms", [2**63 - 1, -(2**63), 253_402_300_800_000])
def test_a_number_that_is_not_a_time_stays_a_number(at_ms: int) -> None:
    assert (utc_text(at_ms), local_text(at_ms)) == (str(at_ms), str(at_ms))


def test_a_table_outside_a_terminal_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("orders", 5, "yes"), ("x", 12345, None)]
    print_table(("topic", "count", "ok"), rows, numbers=("count",), title="Topics")
    print_gap()
    print_table(("topic", "count"), [row[:2] for row in rows], numbers=("count",))
    print_table(("empty",), [])
    assert capsys.readouterr().out == (
        "Topics\n"
        "topic   count  ok\n"
        "orders      5  yes\n"
        "x       12345\n"
        "\n"
        "topic   count\n"
        "orders      5\n"
        "x       12345\n"
        "empty\n"
    )


def test_facts_outside_a_terminal_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({"name": "x", "two lines": "1\n2"}, title="Facts")
    assert capsys.readouterr().out == "Facts\nname       x\ntwo lines  1\n           2\n"
    print_facts({})
    assert capsys.readouterr().out == ""


def test_a_table_prints_brackets_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "count"), [("[bold]x[/bold]", None), (":smile:", 3)], numbers=("count",))
    shown = capsys.readouterr().out
    assert "[bold]x[/bold]" in shown
    assert ":smile:" in shown


def test_a_table_in_a_pipe_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [("x" * 300,)])
    assert "x" * 300 in capsys.readouterr().out


def test_facts_that_are_none_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({"here": "yes", "gone": None})
    shown = capsys.readouterr().out
    assert "here" in shown
    assert "gone" not in shown


class Terminal(io.StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_table_on_a_terminal_has_a_line_below_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    print_table(("name",), [("x",)])
    print_gap()
    print_facts({"fact": 1})
    assert "─" in terminal.getvalue()
    assert "fact" in terminal.getvalue()


@pytest.mark.parametrize(
    ("encoding", "mark", "text"), [("utf-8", "…", '"€"'), ("ascii", "...", '"\\u20ac"')]
)
def test_without_unicode_output_is_ascii(
    monkeypatch: pytest.MonkeyPatch, encoding: str, mark: str, text: str
) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    assert body_text(b"aaaa", 2) == f"aa{mark} 4 bytes"
    print_json({"body": "€"})
    assert written.getvalue().decode(encoding) == f'{{"body": {text}}}\n'
