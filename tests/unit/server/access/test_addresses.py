"""Address patterns of access files."""

from __future__ import annotations

import pytest

from downrange.errors import OptionError
from downrange.server.access.addresses import AddressSet, host_of


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.0.0.7", ["10.0.0.7", "::ffff:10.0.0.7"], ["10.0.0.8", "::a00:7", "localhost", ""]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["10.0.1.0"]),
        ("10.0.*.*", ["10.0.200.1"], ["10.1.0.1"]),
        ("10.0.0.1-100", ["10.0.0.1", "10.0.0.100"], ["10.0.0.0", "10.0.0.101"]),
        ("10.0.1-2.*", ["10.0.2.9"], ["10.0.3.9"]),
        ("10.0.0.{1,3}", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
        ("10.0.0.1, 10.0.0.{5, 6},", ["10.0.0.1", "10.0.0.6"], ["10.0.0.2"]),
        ("*", ["10.0.0.1", "::1"], []),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "0.0.0.1"]),
        ("::", ["::"], ["::1"]),
        ("fe80::*", ["fe80::", "fe80::ffff"], ["fe80::1:0"]),
        ("fe80:0:0:0:5:600:300c:1-ff", ["fe80::5:600:300c:ff"], ["fe80::5:600:300c:100"]),
        ("fe80::{1,a}", ["fe80::a"], ["fe80::2"]),
        ("2001:db8::", ["2001:db8::"], ["2001:db8::1"]),
        ("", [], ["10.0.0.1"]),
    ],
)
def test_pattern_means_these_addresses_and_no_others(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    addresses = AddressSet([pattern])
    assert [host for host in inside if host not in addresses] == []
    assert [host for host in outside if host in addresses] == []
    assert bool(addresses) == bool(inside)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("10.0.0", "an IPv4 address has four parts"),
        ("10.0.0.256", "256 is above 255"),
        ("10.0.0.-1", "'' is not a number"),
        ("10.0.0.+1", "'+1' is not a number"),
        ("10.0.0.9-3", "the range 9-3 is empty"),
        ("10.0.0.{1,}", "'' is not a number"),
        ("10.0.0.x", "invalid literal for int() with base 10: 'x'"),
        ("1:2:3", "an IPv6 address has eight parts"),
        ("1:2:3:4:5:6:7:8::9", "an IPv6 address has eight parts"),
        ("::10000", "10000 is above 65535"),
    ],
)
def test_text_that_is_not_a_pattern_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        AddressSet(["10.0.0.1", pattern])
    assert str(caught.value) == f"{pattern!r} is not an address pattern: {problem}"


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.7:41732", "10.0.0.7"), ("[::1]:5", "::1"), ("[fe80::1%eth0]:5", "fe80::1")],
)
def test_host_of_a_connection_is_split_from_its_port(address: str, host: str) -> None:
    assert host_of(address) == host
