"""Log lines of a client: levels, facts, and the limit of warnings per broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.notices import (
    AttemptFailed,
    AttemptRepeated,
    HeartbeatEnded,
    RouteChanged,
    UserCodeFailed,
    WorkFailed,
)
from downrange.client.flows.routing.health import HealthSnapshot
from downrange.client.flows.routing.routes import route_of
from downrange.client.notice_log import NoticeLog
from downrange.errors import ConnectFailed, ConnectionLost
from downrange.model import Attempt
from tests.support.clock import FakeClock
from tests.unit.client.flows.flow_steps import body, route

if TYPE_CHECKING:
    from downrange.client.flows.notices import Notice


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "downrange.client")


def failed_at(broker: str, number: int = 1, message_id: str = "ID") -> AttemptFailed:
    attempt = Attempt(broker, f"{broker}:1", 3, ConnectFailed(f"{broker}:1", "refused"), 0.0125)
    return AttemptFailed("orders", message_id, number, attempt)


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


@pytest.mark.parametrize(
    ("notice", "level", "line"),
    [
        (
            failed_at("a", 2),
            "WARNING",
            "attempt 2 to send message ID to 'orders' failed: broker a at a:1 queue 3, after "
            "0.013 s: ConnectFailed: refused",
        ),
        (
            failed_at("a", 1, "ID,ID2,ID3"),
            "WARNING",
            "attempt 1 to send a batch of message ID and 2 more to 'orders' failed: broker a at "
            "a:1 queue 3, after 0.013 s: ConnectFailed: refused",
        ),
        (
            AttemptRepeated("ID", 2, "b", "b:1", 0.1),
            "DEBUG",
            "attempt 2 to send message ID goes to broker b at b:1 in 0.100 s",
        ),
        (HeartbeatEnded("a:1", 0.25), "DEBUG", "heartbeat to a:1 answered after 0.250 s"),
        (
            HeartbeatEnded("a:1", 0.25, ConnectionLost("a:1", "cut")),
            "DEBUG",
            "heartbeat to a:1 failed after 0.250 s: cut",
        ),
        (
            HealthSnapshot("a", False, True, 0.5, 9.5),
            "WARNING",
            "broker a is avoided for 9.5 s: slow, or it failed",
        ),
        (
            WorkFailed("sending COMMIT", ConnectionLost("a:1", "cut")),
            "WARNING",
            "sending COMMIT failed: a:1: cut",
        ),
        (HealthSnapshot("a", True, True, 0.001, 0.0), "INFO", "broker a is used again"),
        (
            RouteChanged(None, route("a", "b", queues=2)),
            "DEBUG",
            "route of orders found: 4 queues to write to on a, b",
        ),
        (
            RouteChanged(route("a"), route_of("orders", body(), queue_count_max=4)),
            "DEBUG",
            "route of orders changed: 0 queues to write to on no broker (borrowed from the default "
            "topic)",
        ),
    ],
)
def test_a_notice_is_logged_with_its_facts(
    notice: Notice, level: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    NoticeLog(FakeClock()).observe(notice)
    assert [(record.levelname, record.message) for record in caplog.records] == [(level, line)]


def user_error() -> UserCodeFailed:
    try:
        raise KeyError("oops")
    except KeyError as error:
        return UserCodeFailed("hook shop.broken", error)


def test_an_exception_of_the_users_code_is_an_error_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    log = NoticeLog(clock)
    for _ in range(12):
        log.observe(user_error())
    clock.seconds += 1.0
    log.observe(user_error())
    assert levels(caplog) == ["ERROR"] * 10 + ["DEBUG"] * 2 + ["ERROR"]
    assert caplog.messages[0] == "hook shop.broken failed: KeyError('oops')"
    assert caplog.messages[-1].endswith("KeyError('oops') (2 more since the last error)")
    assert 'raise KeyError("oops")' in caplog.text


def test_failed_attempts_beyond_the_limit_of_their_broker_are_logged_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = NoticeLog(FakeClock())
    for _ in range(15):
        log.observe(failed_at("a"))
    assert levels(caplog) == ["WARNING"] * 10 + ["DEBUG"] * 5
    log.observe(failed_at("b"))
    assert levels(caplog)[-1] == "WARNING"


def test_warnings_go_on_with_one_per_second_and_count_what_was_omitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    log = NoticeLog(clock)
    for _ in range(13):
        log.observe(failed_at("a"))
    clock.seconds += 1.0
    caplog.clear()
    log.observe(failed_at("a"))
    log.observe(failed_at("a"))
    assert levels(caplog) == ["WARNING", "DEBUG"]
    assert caplog.messages[0].endswith("(3 more failed there since the last warning)")
    clock.seconds += 3600.0
    caplog.clear()
    for _ in range(11):
        log.observe(failed_at("a"))
    assert levels(caplog) == ["WARNING"] * 10 + ["DEBUG"]


def test_the_number_of_counted_brokers_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    log = NoticeLog(FakeClock())
    for number in range(1001):
        log.observe(failed_at(f"broker-{number}"))
    assert len(log._budgets) == 1
    assert set(levels(caplog)) == {"WARNING"}
