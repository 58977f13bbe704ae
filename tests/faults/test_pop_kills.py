"""A process that is killed or stopped while consumers pop: nothing is lost, nothing comes back."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING

import pytest

from downrange.wire.codes import ResponseCode
from tests.embedded.brokers import connection, pull_request, send_request
from tests.faults.load import Sender
from tests.faults.pop_load import (
    Deliveries,
    PopConsumer,
    ack_request,
    pop,
    pop_request,
    popped_of,
)
from tests.faults.processes import DEADLINE, ServerProcess, served
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conversations.peers import Peer

LIVES = 6
INVISIBLE_MS = 1_500
TOPIC = "T"


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_what_was_acknowledged_stays_so_and_all_else_is_delivered_after_each_end_of_a_process(
    tmp_path: Path, end: str, flush: str
) -> None:
    """The kernel keeps what a killed process wrote, so this holds in both flush modes."""
    random = Random(31)
    deliveries = Deliveries()
    sent: set[bytes] = set()
    for life in range(LIVES):
        with served(tmp_path / "store", "--flush", flush) as server:
            sent |= _end_under_load(server, life, random, deliveries, end)
    assert len(deliveries.done_ms) > 100
    with served(tmp_path / "store", "--flush", flush) as server:
        with connection(server.broker) as peer:
            _drain(peer, deliveries, sent)
            # What was not acknowledged in time may come again; what was, may not.
            time.sleep((INVISIBLE_MS + 500) / 1000)
            deliveries.add(pop(peer, TOPIC, invisible_ms=INVISIBLE_MS))
        assert not deliveries.repeated()
        assert server.stop() == 0
    print(
        f"\n{len(sent)} messages, {sum(map(len, deliveries.pops.values()))} deliveries, "
        f"{len(deliveries.done_ms)} acknowledged"
    )


def _end_under_load(
    server: ServerProcess, life: int, random: Random, deliveries: Deliveries, end: str
) -> set[bytes]:
    """Send, pop and acknowledge until the server ends; return what it stored."""
    sender = Sender(
        server.broker, TOPIC, f"{life}", Random(life), window=8, per_second=400, sizes=(40, 300)
    )
    sender.start()
    wait_until(lambda: bool(sender.acknowledged))  # the topic exists
    consumers = [
        PopConsumer(
            server.broker, TOPIC, deliveries, Random(life * 10 + number), invisible_ms=INVISIBLE_MS
        )
        for number in range(3)
    ]
    for consumer in consumers:
        consumer.start()
    target = len(deliveries.done_ms) + random.randrange(20, 120)
    wait_until(lambda: len(deliveries.done_ms) >= target)
    if end == "kill":
        server.kill()
    else:
        assert server.stop() == 0
    for thread in (sender, *consumers):
        thread.join(DEADLINE)
    for consumer in consumers:
        assert consumer.failure is None, consumer.failure
    return {message.body for message in sender.acknowledged}


def _drain(peer: Peer, deliveries: Deliveries, sent: set[bytes]) -> None:
    """Pop and acknowledge until all messages were delivered and acknowledged."""

    def is_finished() -> bool:
        popped = pop(peer, TOPIC, invisible_ms=60_000, poll_ms=200, count=32)
        deliveries.add(popped)
        for each in popped:
            assert peer.ask(ack_request(TOPIC, each)).code == ResponseCode.SUCCESS
        deliveries.done(popped)
        # An acknowledgement without an answer may count, so such a message need not come again.
        return not popped and sent <= set(deliveries.pops)

    wait_until(
        is_finished, 4 * DEADLINE
    )  # a busy machine sends much before it has acknowledged enough


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_receipt_is_valid_after_a_kill_and_its_time_goes_on(tmp_path: Path, flush: str) -> None:
    store = tmp_path / "store"
    with served(store, "--flush", flush) as server, connection(server.broker) as peer:
        for body in (b"before", b"after", b"never"):
            assert peer.ask(send_request(body)).code == ResponseCode.SUCCESS
        before, after = pop(peer, TOPIC, invisible_ms=300_000, count=2)
        (never,) = pop(peer, TOPIC, invisible_ms=3_000)
        assert peer.ask(ack_request(TOPIC, before)).code == ResponseCode.SUCCESS
        server.kill()
    with served(store, "--flush", flush) as server, connection(server.broker) as peer:
        assert peer.ask(ack_request(TOPIC, after)).code == ResponseCode.SUCCESS
        server.kill()
    with served(store, "--flush", flush) as server, connection(server.broker) as peer:
        (again,) = popped_of(peer.ask(pop_request(TOPIC, invisible_ms=60_000, poll_ms=12_000)))
        assert again.record.body == b"never"
        assert again.record.reconsume_times == 1
        assert again.receipt.pop_ms >= never.visible_ms
        assert server.stop() == 0


def test_pops_that_wait_while_the_process_is_killed_take_nothing(tmp_path: Path) -> None:
    with served(tmp_path / "store") as server, ExitStack() as clients:
        crowd = [clients.enter_context(connection(server.broker)) for _ in range(20)]
        assert crowd[0].ask(send_request(b"first")).code == ResponseCode.SUCCESS
        (first,) = pop(crowd[0], TOPIC, invisible_ms=60_000)
        assert crowd[0].ask(ack_request(TOPIC, first)).code == ResponseCode.SUCCESS
        for peer in crowd:
            peer.start(pop_request(TOPIC, invisible_ms=60_000, poll_ms=30_000))
        with connection(server.broker) as other:  # a message may be on its way to one of them
            other.start(send_request(b"second"))
            server.kill()
    with served(tmp_path / "store") as server, connection(server.broker) as peer:
        assert peer.ask(send_request(b"third")).code == ResponseCode.SUCCESS
        found = [each.record.body for each in pop(peer, TOPIC, invisible_ms=60_000)]
        assert found[-1] == b"third"
        assert b"first" not in found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_pops_that_wait(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path / "store") as server, ExitStack() as clients:
        crowd = [clients.enter_context(connection(server.broker)) for _ in range(20)]
        assert crowd[0].ask(send_request(b"one")).code == ResponseCode.SUCCESS
        (one,) = pop(crowd[0], TOPIC, invisible_ms=60_000)
        assert crowd[0].ask(ack_request(TOPIC, one)).code == ResponseCode.SUCCESS
        request = pop_request(TOPIC, invisible_ms=60_000, poll_ms=60_000)
        calls = [peer.start(request) for peer in crowd]
        for peer in crowd:
            peer.ask(pull_request(0))  # it is answered after the other one has arrived
        server.process.send_signal(number)
        answers = [peer.finish(call) for peer, call in zip(crowd, calls, strict=True)]
        assert {answer.code for answer in answers} == {int(ResponseCode.POLLING_TIMEOUT)}
        assert server.wait() == 0
