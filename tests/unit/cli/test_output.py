from __future__ import annotations

import pytest

from downrange.cli.output import body_text, print_facts, print_table, readable, time_of


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


def test_a_time_in_utc_ends_with_z() -> None:
    from datetime import UTC

    assert time_of(0, UTC) == "1970-01-01T00:00:00.000Z"
    assert len(time_of(0)) == len("1970-01-01 00:00:00.000+00:00")


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
