"""Peers that speak another protocol."""

from __future__ import annotations

import pytest

from downrange.errors import FrameTooLarge, MalformedFrame
from downrange.server.net.foreign_protocols import (
    RareLines,
    foreign_error,
    foreign_protocol,
    plain_on_tls,
)


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (b"\x16\x03\x01\x05", "TLS handshake"),
        (b"GET /metrics", "HTTP request"),
        (b"POST", "HTTP request"),
        (b"PRI * HTTP/2.0", "HTTP/2 request"),
    ],
)
def test_other_protocols_are_named(first: bytes, text: str) -> None:
    found = foreign_protocol(first)
    assert found is not None
    assert text in found
    error = FrameTooLarge(int.from_bytes(first[:4], "big") + 4, 1000)
    assert foreign_error(error) == found


@pytest.mark.parametrize("first", [b"", b"\x16", b"\x00\x00\x01\x00", b"\x7f\xff\xff\xff", b"abcd"])
def test_other_bytes_are_not(first: bytes) -> None:
    assert foreign_protocol(first) is None


@pytest.mark.parametrize(
    "error", [MalformedFrame("frame length", "x"), FrameTooLarge(3, 1), FrameTooLarge(1 << 40, 1)]
)
def test_other_errors_are_not(error: MalformedFrame | FrameTooLarge) -> None:
    assert foreign_error(error) is None


def test_plain_text_where_tls_is_required_names_the_flag() -> None:
    assert plain_on_tls(b"\x00\x00\x00\xff").startswith("plain text where TLS is required")
    assert "--tls" in plain_on_tls(b"\x00\x00\x00\xff")
    assert plain_on_tls(b"GET /").startswith("an HTTP request")


def test_equal_lines_are_rare() -> None:
    now = [0.0]
    lines = RareLines(lambda: now[0])
    assert [lines.is_due("a"), lines.is_due("a"), lines.is_due("b")] == [True, False, True]
    now[0] = 10.0
    assert lines.is_due("a")
    for number in range(2_000):
        lines.is_due(number)
    assert len(lines._logged_at) == 1_000
