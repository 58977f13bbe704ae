"""Pops and notifications that wait, over real sockets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from downrange.options import BrokerOptions, ListenerOptions
from downrange.server import BrokerServer
from downrange.server.run.runner import ServerThread
from downrange.wire.fields import request_command
from downrange.wire.pop_headers import NotificationRequest, PollingCountRequest, PopRequest
from tests.embedded.brokers import connection, send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from downrange.wire.command import Command

IN_FLIGHT_MAX = 4


def pop_request(group: str) -> Command:
    now_ms = int(time.time() * 1000)
    return request_command(PopRequest(group, "T", 0, 32, 60_000, 600_000, now_ms, 0))


def notification_request(group: str) -> Command:
    now_ms = int(time.time() * 1000)
    return request_command(NotificationRequest(group, "T", 0, 600_000, now_ms))


@pytest.mark.parametrize("make", [pop_request, notification_request])
def test_requests_that_wait_for_messages_leave_room_for_others_on_their_connection(
    make: Callable[[str], Command], tmp_path: Path
) -> None:
    server = BrokerServer(tmp_path, BrokerOptions(), ListenerOptions(in_flight_max=IN_FLIGHT_MAX))
    count_request = request_command(PollingCountRequest("G", "T", 0))
    with ServerThread(server):
        send(server.address, b"first")
        with connection(server.address) as consumer:
            for group in ("G", "H"):
                consumer.ask(request_command(PopRequest(group, "T", 0, 32, 60_000, 0, 0, 0)))
                for _ in range(IN_FLIGHT_MAX):
                    consumer.start(make(group))
            count = consumer.ask(count_request)
            assert count.fields["pollingNum"] == str(IN_FLIGHT_MAX)
            assert len(server.state.held_pops) == 2 * IN_FLIGHT_MAX
        wait_until(lambda: len(server.state.held_pops) == 0)
        with connection(server.address) as consumer:
            waiting = consumer.start(make("G"))
            consumer.ask(count_request)
            send(server.address, b"second")
            assert consumer.finish(waiting).code == 0
