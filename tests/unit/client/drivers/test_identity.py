"""Clocks, randomness, addresses and ids of a client."""

from __future__ import annotations

import os
import re
import socket
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.drivers import identity
from downrange.client.drivers.identity import (
    SystemClock,
    SystemRandomness,
    client_id,
    client_ip,
    month_around,
    unique_ids,
)
from downrange.options import ClientOptions
from downrange.wire.ids import parse_unique_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.client.flows.effects import Clock, Randomness


@pytest.fixture
def time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Give a function that sets `TZ`; reset afterwards."""
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


def test_the_system_clock_advances_and_knows_the_time() -> None:
    clock: Clock = SystemClock()
    before, wall_before = time.monotonic(), time.time() * 1000
    assert before <= clock.now() <= time.monotonic()
    assert int(wall_before) <= clock.wall_ms() <= time.time() * 1000


def test_randomness_gives_every_number_below_the_limit_and_no_other() -> None:
    randomness: Randomness = SystemRandomness()
    assert {randomness.below(3) for _ in range(1000)} == {0, 1, 2}


def test_randomness_gives_different_uuids() -> None:
    randomness = SystemRandomness()
    first, second = randomness.uuid(), randomness.uuid()
    assert first != second
    assert len(first) == 36


def test_the_ip_is_that_of_this_machine() -> None:
    assert ip_address(client_ip()).version == 4


def test_the_ip_is_the_first_that_is_not_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["127.0.0.1", "127.0.1.1", "10.1.2.3", "10.9.9.9"]
    monkeypatch.setattr(identity, "_addresses_of_interfaces", lambda: found)
    assert client_ip() == "10.1.2.3"


@pytest.mark.parametrize(("outwards", "ip"), [("10.4.5.6", "10.4.5.6"), (None, "127.0.0.1")])
def test_without_an_interface_the_ip_is_where_packets_leave_from(
    monkeypatch: pytest.MonkeyPatch, outwards: str | None, ip: str
) -> None:
    monkeypatch.setattr(identity, "_addresses_of_interfaces", lambda: ["127.0.0.1"])
    monkeypatch.setattr(identity, "_address_towards_internet", lambda: outwards)
    assert client_ip() == ip


def test_interfaces_are_asked_on_linux_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "127.0.0.1" in identity._addresses_of_interfaces()
    monkeypatch.setattr("sys.platform", "darwin")
    assert identity._addresses_of_interfaces() == []


def test_an_interface_without_an_address_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(99, "no-such"), (1, "lo")])
    assert identity._addresses_of_interfaces() == ["127.0.0.1"]


def test_ctrl_c_while_interfaces_are_asked_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptedSocket(socket.socket):
        def close(self) -> None:
            super().close()
            raise KeyboardInterrupt

    answer = bytes(20) + bytes([10, 1, 2, 3]) + bytes(232)
    monkeypatch.setattr("fcntl.ioctl", lambda *_: answer)
    monkeypatch.setattr(socket, "socket", InterruptedSocket)
    with pytest.raises(KeyboardInterrupt):
        client_ip()


class FakeSocket:
    """A socket with or without a route to the Internet."""

    def __init__(self, error: OSError | None) -> None:
        self._error = error
        self.is_closed = False

    def connect(self, _: Any) -> None:
        """Connect, or fail."""
        if self._error:
            raise self._error

    def getsockname(self) -> tuple[str, int]:
        """Return the source address."""
        return "10.7.7.7", 1

    def close(self) -> None:
        """Close."""
        self.is_closed = True


@pytest.mark.parametrize(
    ("error", "ip"), [(None, "10.7.7.7"), (OSError("network is unreachable"), None)]
)
def test_the_way_out_of_the_machine_has_an_address(
    monkeypatch: pytest.MonkeyPatch, error: OSError | None, ip: str | None
) -> None:
    fake = FakeSocket(error)
    monkeypatch.setattr(socket, "socket", lambda *_: fake)
    assert identity._address_towards_internet() == ip
    assert fake.is_closed


def test_a_client_id_is_made_of_ip_process_and_counter() -> None:
    one = client_id(ClientOptions(client_ip="10.0.0.1"), 7)
    assert re.fullmatch(rf"10\.0\.0\.1@{os.getpid()}#7#[0-9a-f]{{12}}", one)
    assert client_id(ClientOptions(), 8).startswith(f"{client_ip()}@{os.getpid()}#8#")
    # Two containers with the same address and the same process id.
    assert client_id(ClientOptions(client_ip="10.0.0.1"), 7) != one


def test_a_client_id_has_what_options_give() -> None:
    options = ClientOptions(client_ip="web", instance="shop", unit="u1", is_stream_request=True)
    assert client_id(options, 1) == "web@shop@u1@STREAM"
    assert client_id(ClientOptions(client_ip="web", instance="shop"), 1) == "web@shop"


def test_a_unique_id_holds_machine_process_and_time() -> None:
    now_ms = 1_700_000_000_123
    parts = parse_unique_id(unique_ids("10.0.0.1").make(now_ms))
    assert parts.host == "10.0.0.1"
    assert parts.process_id == os.getpid() & 0xFFFF
    assert parts.month_ms == now_ms - month_around(now_ms)[0]


@pytest.mark.parametrize(("ip", "host"), [("::1", "::1"), ("[fe80::1]", "fe80::1")])
def test_a_unique_id_holds_an_ipv6_address(ip: str, host: str) -> None:
    assert parse_unique_id(unique_ids(ip).make(1_700_000_000_000)).host == host


def test_a_unique_id_of_a_named_client_holds_the_machines_address() -> None:
    assert parse_unique_id(unique_ids("web-1").make(1_700_000_000_000)).host == client_ip()


def test_two_makers_of_one_process_make_different_ids() -> None:
    now_ms = 1_700_000_000_000
    assert unique_ids("10.0.0.1").make(now_ms) != unique_ids("10.0.0.1").make(now_ms)


@pytest.mark.parametrize(
    ("zone", "start_ms", "end_ms"),
    [
        ("UTC0", 1_701_388_800_000, 1_704_067_200_000),
        ("CST-8", 1_701_388_800_000 - 8 * 3_600_000, 1_704_067_200_000 - 8 * 3_600_000),
    ],
)
def test_a_month_is_that_of_the_local_time_zone(
    time_zone: pytest.MonkeyPatch, zone: str, start_ms: int, end_ms: int
) -> None:
    time_zone.setenv("TZ", zone)
    time.tzset()
    assert month_around(1_702_000_000_000) == (start_ms, end_ms)  # in December 2023
    assert month_around(start_ms) == (start_ms, end_ms)
    assert month_around(end_ms - 1) == (start_ms, end_ms)
    assert month_around(end_ms)[0] == end_ms


def test_a_month_with_a_change_of_the_clock_has_an_hour_more_or_less(
    time_zone: pytest.MonkeyPatch,
) -> None:
    time_zone.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    start_ms, end_ms = month_around(1_711_000_000_000)  # in March 2024
    assert end_ms - start_ms == (31 * 24 - 1) * 3_600_000
