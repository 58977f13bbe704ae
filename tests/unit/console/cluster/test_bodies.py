from __future__ import annotations

import ast
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from downrange.console.cluster import limits
from downrange.console.cluster.bodies import (
    body_of,
    decoded,
    hex_lines,
    message_row,
    preview,
    preview_of,
)
from downrange.console.cluster.python_source import source_of
from tests.unit.console.cluster.fake_admin import at, compressed, message

if TYPE_CHECKING:
    from downrange import Message


def test_a_row_has_what_a_list_shows() -> None:
    row = message_row(message(7, b"hello\n\x00world", queue=2, TAGS="new", KEYS="k1 k2"))
    assert (row.topic, row.broker, row.queue, row.offset) == ("orders", "a", 2, 7)
    assert (row.tags, row.keys, row.stored_at) == ("new", ("k1", "k2"), at(100.0))
    assert (row.body_bytes, row.preview) == (12, "hello .world")


def test_a_preview_is_short_and_has_no_control_characters() -> None:
    text = preview("é".encode() * 1000)
    assert text == "é" * limits.PREVIEW_CHARS
    assert preview(b"\x1b[31mred\xff") == ".[31mred\ufffd"


def test_json_is_shown_indented_and_text_as_it_is() -> None:
    body = body_of(message(0, '{"é": [1]}'.encode()))
    assert (body.text, body.json) == ('{"é": [1]}', '{\n  "é": [\n    1\n  ]\n}')
    assert (body.compression, body.is_cut, body.size) == (None, False, 11)
    assert body_of(message(0, b"{broken")).json is None
    assert body_of(message(0, b"12")).json is None
    assert body_of(message(0, b"[" * 20_000)).json is None
    assert body_of(message(0, b"\xff\x00")).text is None


def test_half_of_a_surrogate_pair_is_shown_as_it_was_written() -> None:
    body = body_of(message(0, rb'{"a": "\ud800", "b": "\u00e9"}'))
    assert body.json == '{\n  "a": "\\ud800",\n  "b": "\\u00e9"\n}'
    assert msgspec.json.encode(body)
    pair = body_of(message(0, rb'["\ud83d\ude00"]'))
    assert pair.json == '[\n  "\U0001f600"\n]'


def test_a_row_has_the_start_of_a_compressed_body_or_why_it_has_not() -> None:
    row = message_row(compressed(zlib.compress(b"hello")))
    assert (row.preview, row.body_bytes, row.problem) == ("hello", 5, None)
    row = message_row(compressed(b"not zlib"))
    assert (row.preview, row.body_bytes) == ("", 8)
    assert str(row.problem).startswith("ZLIB body: cannot be decompressed")
    assert preview_of(compressed(b"not zlib")) == row.problem


def test_a_body_that_is_large_when_decompressed_is_shown_on_its_own_page_only() -> None:
    large = compressed(zlib.compress(bytes(limits.LISTED_BODY_BYTES + 1)))
    tracemalloc.start()
    row = message_row(large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "at most 1048576 bytes" in str(row.problem)
    assert peak < 4 * limits.LISTED_BODY_BYTES
    shown, problem = decoded(large)
    assert (len(shown.body), problem) == (limits.LISTED_BODY_BYTES + 1, None)


def test_a_long_body_is_cut_between_characters() -> None:
    body = body_of(message(0, b"x" + "é".encode() * limits.BODY_SHOWN_BYTES))
    assert body.is_cut
    assert body.json is None
    assert body.text == "x" + "é" * ((limits.BODY_SHOWN_BYTES - 1) // 2)
    assert len(body.hex.splitlines()) == limits.HEX_SHOWN_BYTES // 16


def test_hex_lines_have_offset_bytes_and_letters() -> None:
    lines = hex_lines(b"0123456789abcdef\x00~\x7f").splitlines()
    assert lines[0].endswith("0123456789abcdef")
    assert lines[1] == f"00000010  {'00 7e 7f':<48} .~."
    assert hex_lines(b"") == ""


@pytest.mark.parametrize(
    "body",
    [b"", b"hi", b"\x00\xff" * 100, ("long 'text' " * 50).encode(), "é\n".encode(), b"x" * 70_000],
    ids=["empty", "short", "bytes", "long", "lines", "file"],
)
def test_source_makes_the_same_message(body: bytes) -> None:
    stored = message(0, body, TAGS="t", KEYS="k1 k2", UNIQ_KEY="U", __SHARDINGKEY="s", own="it's")
    source = source_of(stored, "ns:9876")
    tree = ast.parse(source)
    assert "U" not in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert max(map(len, source.splitlines())) <= 110
    if len(body) > limits.BODY_SHOWN_BYTES:
        assert "download it as body.bin" in source
        return
    names: dict[str, Any] = {}
    exec(source.split("with mq.Producer")[0], names)
    made: Message = names["message"]
    assert (made.topic, made.body, made.tags, list(made.keys)) == (
        *("orders", body, "t", ["k1", "k2"]),
    )
    assert (made.sharding_key, dict(made.properties)) == ("s", {"own": "it's"})
