from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.consuming.pop_sources import PopSource, brokers_of, watch
from downrange.client.flows.consuming.pull import EVERYTHING
from downrange.client.flows.routing.routes import route_of
from downrange.errors import ConnectFailed, ConnectionLost, RocketMQError
from downrange.options import SimpleOptions
from downrange.wire.codes import RequestCode
from downrange.wire.pop_headers import NotificationReply
from tests.unit.client.flows.fake_servers import (
    NAME_SERVER,
    FakeServers,
    reply,
    route,
    static_route,
)

if TYPE_CHECKING:
    from downrange.wire.command import Command

NOTIFICATION = RequestCode.NOTIFICATION
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


class Watching:
    """A source, its broker, and what was reported."""

    def __init__(self) -> None:
        self.servers = FakeServers()
        self.servers.answer_route("orders", route("a"))
        self.source = PopSource("orders", "a", EVERYTHING)
        self.reports: list[RocketMQError | None] = []

    def answer(self, *, has_messages: bool = False, is_full: bool = False, held: float) -> None:
        """Answer notifications after a part of the time that they may wait."""

        def answer(command: Command) -> Command:
            self.servers.clock.seconds += held * int(command.fields["pollTime"]) / 1000
            return reply(NotificationReply(has_messages, is_full))

        self.servers.answer("a:1", NOTIFICATION, answer)

    def watch(self, seconds: float = 4.0) -> None:
        until = self.servers.clock.now() + seconds
        flow = watch(self.servers.core, "jobs", self.source, until, SimpleOptions(), self.report)
        self.servers.run(flow)

    def report(self, source: PopSource, error: RocketMQError | None) -> None:
        assert source is self.source
        self.reports.append(error)


def test_a_source_is_ready_when_its_broker_says_so() -> None:
    watching = Watching()
    watching.answer(has_messages=True, held=0.1)
    watching.watch()
    assert watching.source.is_ready
    assert watching.source.answered_at == pytest.approx(100.4)
    assert watching.servers.fields(NOTIFICATION)["pollTime"] == "4000"


def test_a_source_is_not_ready_when_the_time_is_over() -> None:
    watching = Watching()
    watching.answer(held=0.99)
    watching.watch()
    assert not watching.source.is_ready
    assert watching.source.pause == 0.0


def test_a_watch_has_a_limit() -> None:
    watching = Watching()
    watching.answer(held=1.0)
    watching.watch(60.0)
    assert watching.servers.fields(NOTIFICATION)["pollTime"] == "5000"
    watching.watch(-1.0)
    assert watching.servers.fields(NOTIFICATION)["pollTime"] == "0"
    assert not watching.source.is_ready


def test_a_broker_that_does_not_wait_is_popped_with_pauses() -> None:
    """Its clock is ahead, or it holds too many requests."""
    watching = Watching()
    watching.answer(held=0.0)
    watching.watch()
    assert watching.source.is_ready
    assert watching.source.pause == 1.0
    watching.source.missed(100.0)
    assert watching.source.pause == 1.0
    watching.watch()
    assert watching.servers.interpreter.pauses == [1.0]


def test_pauses_grow_while_pops_find_nothing() -> None:
    source = PopSource("orders", "a", EVERYTHING)
    pauses: list[float] = []
    for _ in range(6):
        source.missed(100.0)
        pauses.append(source.pause)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert not source.is_ready
    source.found(101.0, has_more=True)
    assert (source.is_ready, source.pause, source.answered_at) == (True, 0.0, 101.0)
    source.found(102.0, has_more=False)
    assert not source.is_ready


def test_failures_are_reported_once_and_the_route_is_refreshed() -> None:
    watching = Watching()
    cut = ConnectionLost("a:1", "cut")
    watching.servers.answer("a:1", NOTIFICATION, cut)
    for _ in range(7):
        watching.watch()
    assert watching.reports == [cut]
    assert watching.source.failure is cut
    assert watching.servers.interpreter.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0]
    assert len(watching.servers.asked(ROUTE)) == 7
    watching.answer(has_messages=True, held=0.0)
    watching.watch()
    assert watching.source.is_ready
    assert watching.source.failure is cut  # a pop has not succeeded yet
    watching.answer(held=1.0)
    watching.watch()
    assert watching.servers.fields(NOTIFICATION)["pollTime"] == "0"
    assert watching.reports == [cut, None]
    assert watching.source.failure is None
    assert watching.source.pause == 0.0


def test_a_watch_goes_on_without_name_servers() -> None:
    watching = Watching()
    watching.servers.answer("a:1", NOTIFICATION, ConnectionLost("a:1", "cut"))
    watching.watch()
    watching.servers.answer(NAME_SERVER, ROUTE, ConnectFailed(NAME_SERVER, "refused"))
    watching.answer(has_messages=True, held=0.0)
    watching.watch()
    assert watching.source.is_ready


def test_health_of_a_source() -> None:
    source = PopSource("orders", "a", EVERYTHING)
    assert source.health(100.0).answered_ago is None
    source.found(100.0, has_more=True)
    health = source.health(102.5)
    assert (health.topic, health.broker) == ("orders", "a")
    assert (health.failure, health.answered_ago) == (None, 2.5)
    failure = ConnectionLost("a:1", "cut")
    source.failed(failure, SimpleOptions())
    assert source.health(103.0).failure is failure


def test_sources_are_the_brokers_with_queues_to_read() -> None:
    assert brokers_of(route_of("orders", route("ba"))) == ["a", "b"]
    assert brokers_of(route_of("orders", route("a", perm=2))) == []
    assert brokers_of(route_of("orders", static_route({"a": [0], "b": [1]}))) == ["a", "b"]
