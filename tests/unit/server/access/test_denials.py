"""The log of denied requests."""

from __future__ import annotations

import logging

import pytest

from downrange.server.access.denials import INTERVAL, LINES_MAX, DenialLog
from downrange.server.access.rules import Denial
from downrange.server.outputs import Peer
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command

SEND = Command(int(RequestCode.SEND_MESSAGE_V2))


class FakeClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(name="clock")
def _clock() -> FakeClock:
    return FakeClock()


def peer(host: str = "10.0.0.7", port: int = 4000) -> Peer:
    return Peer(1, f"{host}:{port}")


def test_a_denial_names_who_what_and_from_where(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = DenialLog(clock)
    log.add(Denial("shop may not PUB orders", "shop"), SEND, peer())
    (line,) = caplog.records
    assert line.name == "downrange.access"
    assert line.levelno == logging.WARNING
    assert line.getMessage() == (
        "denied: shop may not PUB orders; request 310 (SEND_MESSAGE_V2) of account 'shop' "
        "from 10.0.0.7:4000"
    )


def test_the_same_account_and_host_is_logged_once_in_an_interval(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = DenialLog(clock)
    for port in range(5):
        log.add(Denial("no", "shop"), SEND, peer(port=port))
    log.add(Denial("no", "other"), SEND, peer())
    log.add(Denial("no"), SEND, peer())
    assert len(caplog.records) == 3
    clock.now += INTERVAL
    log.add(Denial("no", "shop"), SEND, peer())
    assert caplog.records[-1].getMessage().endswith("; 4 more since the last line")
    assert log.count == 8


def test_lines_per_second_are_limited(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    log = DenialLog(clock)
    for number in range(5_000):
        log.add(Denial("no", f"key-{number}"), SEND, peer())
    assert len(caplog.records) == LINES_MAX
    clock.now += 1
    log.add(Denial("no", "key-4000"), SEND, peer())
    assert len(caplog.records) == LINES_MAX + 1
    assert log.count == 5_001


def test_remembered_sources_are_limited(clock: FakeClock) -> None:
    log = DenialLog(clock)
    for number in range(3_000):
        clock.now += 1
        log.add(Denial("no", f"key-{number}"), SEND, peer())
    assert len(log._logged_at) <= 1_000


def test_a_text_of_a_peer_cannot_make_a_line_of_its_own(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    DenialLog(clock).add(Denial("x\nERROR all is lost", "a\nb" * 500), Command(99_999), peer())
    text = caplog.records[0].getMessage()
    assert "\n" not in text
    assert len(text) < 800
    assert "request 99999 (unknown)" in text
