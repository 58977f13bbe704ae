"""Addresses of the form host:port."""

from __future__ import annotations

import pytest

from downrange.addresses import split_address
from downrange.errors import OptionError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("10.0.0.7:9876", ("10.0.0.7", 9876)),
        ("name.example:1", ("name.example", 1)),
        ("[::1]:9876", ("::1", 9876)),
    ],
)
def test_an_address_is_split(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:x", "host:0", "host:65536", "::1:9", "[]:1"]
)
def test_a_wrong_address_is_named(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        split_address(text)
    assert repr(text) in str(caught.value)
