"""Metrics, health and readiness of servers over real sockets."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from contextlib import ExitStack
from heapq import heappush
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

import downrange as mq
from downrange.options import MetricsOptions
from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.server.broker.tables.topic_table import READ_WRITE
from downrange.server.net import http_responder
from downrange.server.net.http_responder import HttpResponder, Page, ResponderLimits
from downrange.server.run.broker_server import BrokerServer
from downrange.server.run.name_server import NameServer
from downrange.server.run.runner import ServerThread, new_event_loop
from downrange.wire.records import Record
from tests.apache import metric_traffic as traffic
from tests.embedded.pages import get, metrics_of
from tests.support.options import PATIENT_CLIENT, PATIENT_PRODUCER
from tests.support.waiting import WAIT_TIMEOUT, wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOPICS = 10_000
GROUPS = 1_000
#: The topics that they read.
READ_TOPICS = 100
CHECKPOINTS = 50_000
TIMERS = 200_000
#: The longest time that a page may keep other requests waiting.
HOLD_MAX = 0.005
#: Pages that are made at least, and at most while each has a piece that takes too long.
PAGES, PAGES_MAX = 3, 10
#: How long a stop may take at most; the time of a request is far longer.
STOP_SECONDS = 10.0


@pytest.fixture(name="cluster")
def _cluster() -> Iterator[mq.Cluster]:
    with mq.Cluster(metrics="127.0.0.1:0") as cluster:
        yield cluster


def address_of(cluster: mq.Cluster) -> str:
    address = cluster.metrics_address
    assert address is not None
    return address


def patient_producer(cluster: mq.Cluster) -> mq.Producer:
    """Make a producer that sends no message again after a time-out, which would be counted."""
    return mq.Producer(
        cluster.name_server, group="g", options=PATIENT_PRODUCER, client_options=PATIENT_CLIENT
    )


def test_a_cluster_shows_what_was_sent_and_received(cluster: mq.Cluster) -> None:
    with patient_producer(cluster) as producer:
        for number in range(3):
            producer.send(mq.Message("orders", b"%d" % number))
        producer.send_batch([mq.Message("orders", b"x" * 2_000) for _ in range(2)])
    with mq.PullConsumer(cluster.name_server, group="readers") as consumer:
        consumer.assign("orders", start="earliest")
        assert len(list(islice(consumer.messages(idle_timeout=WAIT_TIMEOUT), 5))) == 5
    metrics = metrics_of(address_of(cluster))
    assert metrics.value("rocketmq_messages_in_total", topic="orders") == 5
    assert metrics.value("rocketmq_messages_out_total", topic="orders") == 5
    assert metrics.value("rocketmq_message_size_count", topic="orders") == 5
    assert metrics.value("rocketmq_message_size_bucket", topic="orders", le="1024.0") == 3
    assert metrics.value("rocketmq_message_size_bucket", topic="orders", le="4096.0") == 5
    sent = {"request_code": "send_message_v2", "response_code": "success"}
    assert metrics.value("rocketmq_rpc_latency_milliseconds_count", **sent) == 3
    assert metrics.value("downrange_nameserver_brokers") == 1
    assert metrics.value("downrange_metrics_dropped_series") == 0


def test_sends_that_arrive_together_are_all_counted(cluster: mq.Cluster) -> None:
    with patient_producer(cluster) as producer:
        futures = [
            producer.submit(mq.Message("orders", b"x" * (2_000 if number % 2 else 100)))
            for number in range(400)
        ]
        for future in futures:
            future.result(60)
    metrics = metrics_of(address_of(cluster))
    sent = {"request_code": "send_message_v2", "response_code": "success", "result": "success"}
    assert metrics.value("rocketmq_rpc_latency_milliseconds_count", **sent) == 400
    assert metrics.value("rocketmq_messages_in_total", topic="orders") == 400
    assert metrics.value("rocketmq_message_size_bucket", topic="orders", le="1024.0") == 200
    assert metrics.value("rocketmq_message_size_bucket", topic="orders", le="4096.0") == 400


def test_events_of_all_kinds_are_counted(cluster: mq.Cluster) -> None:
    made = traffic.make_traffic(cluster.name_server)
    try:
        metrics = metrics_of(address_of(cluster))
    finally:
        made.close()
    deals, late = {"topic": traffic.DEALS}, {"topic": traffic.LATE}
    assert metrics.value("rocketmq_commit_messages_total", **deals) == traffic.COMMITTED
    assert metrics.value("rocketmq_rollback_messages_total", **deals) == traffic.ROLLED_BACK
    assert metrics.value("rocketmq_half_messages", **deals) == traffic.OPEN
    finished = metrics.value("rocketmq_finish_message_latency_milliseconds_count", **deals)
    assert finished == traffic.COMMITTED
    begun = traffic.TIMERS + traffic.FAR_TIMERS
    assert metrics.value("rocketmq_timer_enqueue_total", **late) == begun
    assert metrics.value("rocketmq_delay_message_latency_seconds_count", **late) == begun
    assert metrics.value("rocketmq_timer_dequeue_total", **late) == traffic.TIMERS
    assert metrics.value("rocketmq_timing_messages", **late) == traffic.FAR_TIMERS
    assert metrics.value("rocketmq_timer_message_snapshot") == traffic.FAR_TIMERS
    pushed = {"topic": traffic.ORDERS, "consumer_group": traffic.PUSH_GROUP}
    assert metrics.value("rocketmq_send_to_dlq_messages_total", **pushed) == 1
    popped = {"topic": traffic.EVENTS, "consumer_group": traffic.POP_GROUP}
    in_flight = traffic.POPPED - traffic.ACKNOWLEDGED
    assert metrics.value("rocketmq_consumer_inflight_messages", **popped) == in_flight
    ready = traffic.EVENT_COUNT - traffic.POPPED
    assert metrics.value("rocketmq_consumer_ready_messages", **popped) == ready
    assert metrics.value("rocketmq_consumer_lag_messages", **popped) == in_flight + ready
    assert metrics.value("rocketmq_producer_connections", language="python") == 2
    for group in (traffic.PUSH_GROUP, traffic.POP_GROUP):
        assert metrics.value("rocketmq_consumer_connections", consumer_group=group) == 1


def test_popped_messages_that_come_back_are_counted(cluster: mq.Cluster) -> None:
    with patient_producer(cluster) as producer:
        producer.send(mq.Message("orders", b"1"))
    with mq.SimpleConsumer(cluster.name_server, group="pops", subscribe="orders") as consumer:
        (first,) = wait_until(lambda: consumer.receive(invisible=1.0))
        (again,) = wait_until(lambda: consumer.receive(timeout=1.0))
        assert (first.body, again.delivery_attempts) == (b"1", 1)
        again.ack()
        metrics = metrics_of(address_of(cluster))
    came_back = {"topic": "orders", "consumer_group": "pops"}
    assert metrics.value("rocketmq_pop_revive_retry_messages_total", **came_back) == 1
    assert metrics.value("rocketmq_messages_out_total", is_retry="true") == 1


def test_dead_letters_of_all_ways_are_counted(cluster: mq.Cluster) -> None:
    with patient_producer(cluster) as producer:
        producer.send(mq.Message("orders", b"1"))
    with mq.Admin(cluster.name_server) as admin:
        admin.create_group("pops", retries=0)
    with mq.SimpleConsumer(cluster.name_server, group="pops", subscribe="orders") as consumer:
        assert len(wait_until(lambda: consumer.receive(invisible=1.0))) == 1  # never settled
        wait_until(
            lambda: metrics_of(address_of(cluster)).value("rocketmq_send_to_dlq_messages_total")
        )
    found = metrics_of(address_of(cluster))
    dead = {"topic": "orders", "consumer_group": "pops"}
    assert found.value("rocketmq_send_to_dlq_messages_total", **dead) == 1
    assert found.value("rocketmq_messages_in_total", topic="%DLQ%pops") == 1


def test_labels_of_names_with_special_characters_are_escaped(cluster: mq.Cluster) -> None:
    server = cluster.server.brokers[0]
    server.state.statistics.stored_run(b'a"b\\c\nd', 1, 100)
    metrics = metrics_of(address_of(cluster))
    assert metrics.value("rocketmq_messages_in_total", topic='a\\"b\\\\c\\nd') == 1


def test_two_brokers_share_one_page() -> None:
    with mq.Cluster(brokers=2, metrics="127.0.0.1:0") as cluster:
        metrics = metrics_of(address_of(cluster))
        for name in ("broker-a", "broker-b"):
            assert metrics.value("rocketmq_broker_permission", node_id=name) == 6


def test_series_above_the_limit_are_left_out_and_counted() -> None:
    options = MetricsOptions(address="127.0.0.1:0", series_max=10)
    with mq.Cluster(metrics=options) as cluster:
        for number in range(25):
            cluster.server.brokers[0].state.statistics.stored_run(b"t%d" % number, 1, 1)
        metrics = metrics_of(address_of(cluster))
        shown = [name for name, _ in metrics.samples if name == "rocketmq_messages_in_total"]
        assert len(shown) == 10
        dropped = metrics.value(
            "downrange_metrics_dropped_series", metric="rocketmq_messages_in_total"
        )
        assert dropped == 15


def test_the_metrics_of_a_restarted_broker_are_shown_again(cluster: mq.Cluster) -> None:
    cluster.stop_broker()
    address = address_of(cluster)
    assert get(address, "/ready")[0] == 503
    assert "rocketmq_topic_number" not in metrics_of(address).kinds
    cluster.restart_broker()
    assert get(address, "/ready") == (200, "ready\n")
    assert metrics_of(address).value("rocketmq_broker_permission") == 6


# ---- readiness ---------------------------------------------------------------------------------


def test_a_broker_that_recovers_its_store_is_healthy_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        proceed = asyncio.Event()
        server = BrokerServer(tmp_path, metrics=MetricsOptions(address="127.0.0.1:0"))
        start = server._start

        async def start_slowly() -> None:
            await proceed.wait()
            await start()

        monkeypatch.setattr(server, "_start", start_slowly)
        task = asyncio.create_task(server.start())
        assert server.metrics is not None
        metrics = server.metrics
        address = await wait_until_async(lambda: metrics.address)
        assert await asyncio.to_thread(get, address, "/health") == (200, "ok\n")
        status, text = await asyncio.to_thread(get, address, "/ready")
        assert status == 503
        assert text.startswith("not ready: broker broker-a: it does not serve")
        proceed.set()
        await task
        assert await asyncio.to_thread(get, address, "/ready") == (200, "ready\n")
        await server.stop()

    asyncio.run(run())


@pytest.fixture(name="unwatched")
def _unwatched() -> Iterator[mq.Cluster]:
    """Give a cluster whose broker does not look at its disk again."""
    broker = mq.BrokerOptions(retention_interval=3600.0)
    with mq.Cluster(metrics="127.0.0.1:0", broker=broker) as cluster:
        yield cluster


def test_a_broker_that_refuses_sends_is_not_ready(unwatched: mq.Cluster) -> None:
    cluster = unwatched
    state, address = cluster.server.brokers[0].state, address_of(cluster)
    state.unwritable = "the disk is full: 97% are in use"
    assert get(address, "/ready") == (
        503,
        "not ready: broker broker-a: sends are refused: the disk is full: 97% are in use\n",
    )
    assert metrics_of(address).value("downrange_broker_writable") == 0
    state.unwritable = None
    assert get(address, "/ready")[0] == 200
    with mq.Admin(cluster.name_server) as admin:
        admin.change_broker_settings({"brokerPermission": "4"})
    status, text = get(address, "/ready")
    assert (status, "its permission is 4" in text) == (503, True)


def test_a_name_server_alone_has_metrics() -> None:
    server = NameServer(metrics=MetricsOptions(address="127.0.0.1:0"))
    with ServerThread(server):
        assert server.metrics is not None
        address = server.metrics.address
        assert get(address, "/ready") == (200, "ready\n")
        metrics = metrics_of(address)
        assert metrics.value("downrange_nameserver_brokers", node_type="nameserver") == 0
    with pytest.raises(OSError, match="refused"):
        get(address, "/health")


def test_an_address_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(mq.CannotListen, match=f"{address}.*another process uses the port"):
            mq.Cluster(metrics=address).start()
        server = BrokerServer(tmp_path, metrics=MetricsOptions(address=address))
        with pytest.raises(mq.CannotListen, match="another process uses the port"):
            ServerThread(server).start()


@pytest.mark.parametrize("address", ["9876", "here:", "::1:9", "host:70000"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(mq.OptionError):
        MetricsOptions(address=address)


def test_an_address_off_loopback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "downrange.metrics"), mq.Cluster(metrics="0.0.0.0:0"):
        assert "can be read from other machines, without an account" in caplog.text


# ---- the responder -----------------------------------------------------------------------------


def ask(address: str, request: bytes) -> bytes:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /metrics?collect[]=x HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /../metrics HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nxx", b"405 Method Not Allowed"),
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n\r\n", b"431 Request Header Fields Too Large"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics\r\n\r\n", b"400 Bad Request"),
    ],
)
def test_requests_get_the_status_that_fits(
    cluster: mq.Cluster, request_bytes: bytes, status: bytes
) -> None:
    head, _, body = ask(address_of(cluster), request_bytes).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert body
    assert b"Connection: close" in head


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS handshake"),
        (b"\x00\x00\x00\xff\x00\x00\x00\xf0{", "clients of RocketMQ connect to the port of"),
    ],
)
def test_a_peer_that_speaks_another_protocol_is_named_and_cut_at_once(
    caplog: pytest.LogCaptureFixture, start: bytes, name: str
) -> None:
    with mq.Cluster(metrics="127.0.0.1:0") as cluster, caplog.at_level("WARNING"):
        for _ in range(3):
            assert name in ask(address_of(cluster), start).decode()  # ends before its 30 s
        assert metrics_of(address_of(cluster)).value("rocketmq_broker_permission") == 6
    lines = [each.getMessage() for each in caplog.records if each.name == "downrange.metrics"]
    assert len(lines) == 1
    assert lines[0].startswith("a connection of 127.0.0.1 is cut: it began with")
    assert name in lines[0]


def test_head_has_no_body(cluster: mq.Cluster) -> None:
    for path in (b"/metrics", b"/health"):
        answer = ask(address_of(cluster), b"HEAD " + path + b" HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"\r\n\r\n")


def test_a_peer_that_does_not_read_is_cut_in_time() -> None:
    options = MetricsOptions(address="127.0.0.1:0", timeout=1.0)
    with mq.Cluster(metrics=options) as cluster:
        for number in range(10_000):
            cluster.server.brokers[0].state.statistics.stored_run(b"t%d" % number, 1, 1)
        address = address_of(cluster)
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            found = slow.recv(1)  # the page has begun
            responder = cluster.server.metrics
            assert responder is not None
            tasks = responder._responder._open
            wait_until(lambda: not tasks)  # the time is over
            wait_until(lambda: status_of(address) == 200)
            while piece := slow.recv(1 << 20):
                found += piece
        assert not found.endswith(b"0\r\n\r\n")


def slow_peers(stack: ExitStack, responder: HttpResponder, count: int) -> list[socket.socket]:
    """Ask for a page that is larger than the buffers of the system, and do not read it."""
    host, _, port = responder.address.partition(":")
    peers: list[socket.socket] = []
    for _ in range(count):
        peer = stack.enter_context(socket.create_connection((host, int(port)), WAIT_TIMEOUT))
        peer.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        peers.append(peer)
    return peers


def in_pieces() -> Page:
    return Page(200, ("x" * 64_000 for _ in range(1_000)))


def in_one() -> Page:
    return Page(200, "x" * 64_000_000)


@pytest.fixture(name="loops", params=["asyncio", "uvloop"])
def _loops(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return asyncio.new_event_loop if request.param == "asyncio" else new_event_loop


@pytest.mark.parametrize("make_page", [in_pieces, in_one])
def test_peers_that_do_not_read_hold_nothing_after_their_time(
    loops: Callable[[], asyncio.AbstractEventLoop], make_page: Callable[[], Page]
) -> None:
    """Their buffers, sockets and tasks stayed for ever, and did not count as connections."""

    async def run() -> None:
        limits = ResponderLimits(connections_max=4, timeout=0.2)
        responder = HttpResponder({"/large": make_page}, "127.0.0.1", 0, limits)
        await responder.start()
        with ExitStack() as stack:
            for _ in range(3):
                peers = slow_peers(stack, responder, 4)
                for peer in peers:
                    assert await asyncio.to_thread(peer.recv, 12) == b"HTTP/1.1 200"
                await wait_until_async(lambda: len(asyncio.all_tasks()) == 1)
                assert not responder._open
                assert len(await asyncio.to_thread(rest_of, peers[0])) < 64_000_000
        await responder.stop()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(run())


def rest_of(peer: socket.socket) -> bytes:
    """Read until the server ends the connection."""
    found = bytearray()
    while piece := peer.recv(1 << 20):
        found += piece
    return bytes(found)


def test_a_stop_cuts_peers_that_do_not_read(
    loops: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    problems: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: problems.append(each))
        responder = HttpResponder({"/large": in_one}, "127.0.0.1", 0)
        await responder.start()
        with ExitStack() as stack:
            for peer in slow_peers(stack, responder, 4):
                assert await asyncio.to_thread(peer.recv, 12) == b"HTTP/1.1 200"
            async with asyncio.timeout(STOP_SECONDS):
                await responder.stop()
            assert len(asyncio.all_tasks()) == 1

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(run())
    assert problems == []


def status_of(address: str) -> int | None:
    """Return the status of the page of a server's health; None if the server cut it."""
    try:
        return get(address, "/health")[0]
    except OSError:
        return None


def test_connections_are_limited_in_number_and_time() -> None:
    options = MetricsOptions(address="127.0.0.1:0", connections_max=2, timeout=1.0)
    with mq.Cluster(metrics=options) as cluster:
        address = address_of(cluster)
        host, _, port = address.partition(":")
        with ExitStack() as stack:

            def fill() -> list[socket.socket] | None:
                """Take all connections; on a busy machine their time may be over at once."""
                idle = [
                    stack.enter_context(socket.create_connection((host, int(port)), WAIT_TIMEOUT))
                    for _ in range(2)
                ]
                return idle if status_of(address) == 503 else None

            for connection in wait_until(fill):
                assert connection.recv(1) == b""
            wait_until(lambda: status_of(address) == 200)


def test_a_page_that_fails_is_logged_and_the_server_goes_on(
    cluster: mq.Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = cluster.server.brokers[0]
    monkeypatch.setattr(server.state, "store", None)
    answer = ask(address_of(cluster), b"GET /metrics HTTP/1.1\r\n\r\n")
    assert not answer.endswith(b"0\r\n\r\n")
    assert "a page was cut" in caplog.text
    monkeypatch.undo()
    assert metrics_of(address_of(cluster)).value("rocketmq_broker_permission") == 6


# ---- cost --------------------------------------------------------------------------------------


def fill(state: Any) -> None:
    """Let there be many topics, groups that are behind, open pops and timed messages."""
    later_ms = int(time.time() * 1000) + 3_600_000
    for number in range(TIMERS):
        heappush(state.timers._waiting, (later_ms, number, "timed"))
    for number in range(CHECKPOINTS):
        group = number % GROUPS
        name = (f"topic-{group % READ_TOPICS:05}", f"group-{group:04}", 0, number, later_ms)
        state.checkpoints.add(Checkpoint(name, range(number, number + 1), 60_000, 0))
    for number in range(TOPICS):
        topic = f"topic-{number:05}"
        state.topics.ensure(topic, 1, READ_WRITE, 0)
        record = Record(topic_bytes=topic.encode(), body=b"x" * 300, store_ip=b"\0" * 4)
        record.born_ip = b"\0" * 4
        record.size = 400
        state.statistics.stored([record])
        if number < READ_TOPICS:  # writing the files of all queues would take most of the time
            state.store.append([record], 1, [{}])
    for number in range(GROUPS):
        group_name, topic = f"group-{number:04}", f"topic-{number % READ_TOPICS:05}"
        state.groups.get_or_create(group_name, state.options, 0)
        state.offsets.commit(group_name, topic, 0, 0)
        state.statistics.consumed(group_name, topic, 1, 300, 0, 1)


def values(text: str, name: str) -> list[float]:
    """Return the values of a metric; `parse` would take longer than the page."""
    start = f"{name}{{"
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(start)]


def test_ten_thousand_topics_do_not_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The event loop is held for a piece of the page at a time, by the CPU time of its thread.

    A step that takes too long does so in each of the pages. A busy machine makes any piece longer,
    now and then, so the page with the shortest of the longest pieces counts.
    """
    holds: list[float] = []
    make_part = http_responder._next_part

    def timed(texts: Iterator[str]) -> tuple[bytes, bool]:
        begun = time.thread_time()
        try:
            return make_part(texts)
        finally:
            holds.append(time.thread_time() - begun)

    monkeypatch.setattr(http_responder, "_next_part", timed)

    async def page(cluster: mq.Cluster) -> tuple[str, list[float]]:
        holds.clear()
        _, text = await asyncio.to_thread(get, address_of(cluster), "/metrics")
        return text, holds.copy()

    async def run() -> list[tuple[str, list[float]]]:
        async with mq.Cluster(
            metrics=MetricsOptions(address="127.0.0.1:0", timeout=120)
        ) as cluster:
            fill(cluster.server.brokers[0].state)
            # A full collection of this many objects takes longer than the limit. A server process
            # freezes what is there at its start, and collects rarely (`runner`).
            gc.collect()
            gc.disable()
            try:
                pages: list[tuple[str, list[float]]] = []
                while len(pages) < PAGES_MAX and (
                    len(pages) < PAGES or min(max(pieces) for _, pieces in pages) >= HOLD_MAX
                ):
                    pages.append(await page(cluster))
                return pages
            finally:
                gc.enable()

    text, pieces = min(asyncio.run(run()), key=lambda each: max(each[1]))
    with capsys.disabled():
        print(
            f"\n{TOPICS} topics, {GROUPS} groups, {CHECKPOINTS} open pops, {TIMERS} timers: "
            f"{len(text) / 1e6:.1f} MB, {sum(pieces):.2f} s of CPU in {len(pieces)} pieces, the "
            f"longest {max(pieces) * 1000:.2f} ms"
        )
    assert sum(values(text, "rocketmq_consumer_lag_messages")) == CHECKPOINTS
    assert sum(values(text, "rocketmq_timer_message_snapshot")) == TIMERS
    assert len(values(text, "rocketmq_messages_in_total")) >= TOPICS
    assert max(pieces) < HOLD_MAX
