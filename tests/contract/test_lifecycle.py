"""Start and close of clients and producers, and what they share."""

from __future__ import annotations

import gc
import socket
import threading
import time
import warnings
from typing import TYPE_CHECKING

import pytest

from downrange import AsyncClient, AsyncProducer, Client, Producer
from downrange.embedded import Cluster, drop
from downrange.errors import (
    ClientClosed,
    ConnectFailed,
    GroupTaken,
    HostNotFound,
    NoNameServer,
    NotStarted,
    OptionError,
    RocketMQError,
)
from downrange.model import Message
from downrange.options import ClientOptions, Credentials, FaultTolerance, ProducerOptions
from downrange.wire.codes import RequestCode
from tests.apache.ports import draw_name_server_port
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import PATIENCE
from tests.contract.servers import dead_address, members_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.apache.fixtures import UniqueName
    from tests.contract.blocking import LoopThread
    from tests.contract.conftest import Embedded, Kind, Make, MakeProducer
    from tests.contract.servers import Server

SEND = RequestCode.SEND_MESSAGE_V2


# ---- states --------------------------------------------------------------------------------------


def test_a_producer_is_new_then_running_then_closed(server: Server, make: Make) -> None:
    producer = make(Producer, server.name_server, group="g")
    assert (producer.state, producer.client.state) == ("new", "new")
    with producer as entered:
        assert entered is producer
        assert (producer.state, producer.client.state) == ("running", "running")
        producer.send(Message(server.topic(), b"1"))
    assert (producer.state, producer.client.state) == ("closed", "closed")


def test_a_second_start_or_close_does_nothing(embedded: Embedded, make: Make) -> None:
    producer = make(Producer, embedded.name_server, group="g")
    assert producer.start() is producer
    core = producer.client.core
    assert producer.start() is producer
    assert producer.client.core is core
    producer.close()
    producer.close()
    assert producer.state == "closed"


def test_closing_what_was_never_started_does_nothing(make: Make) -> None:
    producer = make(Producer, dead_address(), group="g")
    producer.close()
    assert producer.state == "closed"


def test_a_producer_that_is_not_started_raises_at_once(embedded: Embedded, make: Make) -> None:
    producer = make(Producer, embedded.name_server, group="g")
    for use in (producer.send, producer.send_oneway):
        with pytest.raises(NotStarted, match=r"'g' is not started: .* start\(\)"):
            use(Message("orders", b"1"))
    with pytest.raises(NotStarted):
        producer.submit(Message("orders", b"1")).result(LONG_TIMEOUT)
    with pytest.raises(NotStarted):
        producer.send_batch([Message("orders", b"1")])
    with pytest.raises(NotStarted):
        producer.client.stats()


def test_a_closed_producer_raises_at_once(embedded: Embedded, make: Make) -> None:
    producer = make(Producer, embedded.name_server, group="g").start()
    producer.close()
    for use in (producer.send, producer.send_oneway):
        with pytest.raises(ClientClosed, match="'g' is closed"):
            use(Message("orders", b"1"))
    with pytest.raises(ClientClosed):
        producer.start()
    with pytest.raises(ClientClosed):
        producer.client.start()


def test_a_constructor_starts_nothing(make: Make) -> None:
    before = set(threading.enumerate())
    producer = make(Producer, dead_address(), group="g")
    begun = set(threading.enumerate()) - before
    # The server in this process starts threads of its own at any time.
    assert not [thread for thread in begun if not thread.name.startswith("downrange-broker")]
    assert producer.state == "new"


def test_nothing_is_left_running_after_close(embedded: Embedded, make: Make, kind: Kind) -> None:
    topic = embedded.topic()
    before = set(_our_threads())  # some of them, of closed clients, may be about to end
    producer = make(Producer, embedded.name_server, group="g").start()
    producer.submit(Message(topic, b"1")).result(LONG_TIMEOUT)
    if kind == "sync":
        assert set(_our_threads()) - before
    producer.close()
    wait_until(lambda: set(_our_threads()) <= before)


def _our_threads() -> list[threading.Thread]:
    """Return the threads of clients; the server in this process has changing threads of its own."""
    names = ("downrange-engine", "downrange-callback")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


# ---- groups and sharing --------------------------------------------------------------------------


def test_two_producers_of_one_group_cannot_share_a_client(embedded: Embedded, make: Make) -> None:
    client = make(Client, embedded.name_server).start()
    first = make(Producer, client, group="shop").start()
    with pytest.raises(GroupTaken, match="'shop'"):
        make(Producer, client, group="shop").start()
    first.close()
    make(Producer, client, group="shop").start().send(Message(embedded.topic(), b"1"))


def test_producers_of_one_client_share_connections_and_routes(
    embedded: Embedded, make: Make
) -> None:
    client = make(Client, embedded.name_server).start()
    topic = embedded.topic()
    for group in ("one", "two", "three"):
        make(Producer, client, group=group).start().send(Message(topic, b"1"))
    stats = client.stats()
    assert stats.topics == (topic,)
    assert set(stats.connections) == {embedded.name_server, *embedded.brokers}
    assert sorted(stats.producers) == ["one", "three", "two"]
    assert [one.sent for one in stats.producers.values()] == [1, 1, 1]


def test_a_shared_client_outlives_its_producers(embedded: Embedded, make: Make) -> None:
    client = make(Client, embedded.name_server).start()
    with make(Producer, client, group="one"):
        pass
    assert client.state == "running"
    assert client.stats().producers == {}


def test_closing_a_client_ends_its_producers(embedded: Embedded, make: Make) -> None:
    client = make(Client, embedded.name_server).start()
    topic = embedded.topic()
    producer = make(Producer, client, group="one").start()
    future = producer.submit(Message(topic, b"1"))
    future.result(LONG_TIMEOUT)
    client.close()
    with pytest.raises(ClientClosed):
        producer.send(Message(topic, b"1"))


def test_settings_of_the_client_belong_to_the_client(embedded: Embedded, make: Make) -> None:
    client = make(Client, embedded.name_server)
    with pytest.raises(OptionError, match="credentials"):
        make(Producer, client, group="one", credentials=Credentials("key", "secret"))


def test_a_client_of_the_other_front_end_is_refused(embedded: Embedded) -> None:
    with pytest.raises(OptionError, match="AsyncProducer needs an AsyncClient"):
        AsyncProducer(Client(embedded.name_server), group="one")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="Producer needs a Client"):
        Producer(AsyncClient(embedded.name_server), group="one")  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["", "a b", "x" * 121, "DEFAULT_PRODUCER"])
def test_a_group_name_that_breaks_a_rule_is_refused(
    embedded: Embedded, make: Make, group: str
) -> None:
    with pytest.raises(OptionError, match="group"):
        make(Producer, embedded.name_server, group=group)


def test_two_clusters_in_one_process_do_not_disturb_each_other(
    embedded: Embedded, producer: MakeProducer
) -> None:
    with Cluster() as other:
        here, there = producer(embedded, group="g"), producer(other.name_server, group="g")
        topic = embedded.topic()
        for number in range(5):
            here.send(Message(topic, f"here {number}"))
            there.send(Message(topic, f"there {number}"))
        assert here.client.core.client_id != there.client.core.client_id
        assert {message.body[:4] for message in embedded.read_all(topic, 5)} == {b"here"}
        assert len(embedded.read_all(topic, 5)) == 5
        there.close()
        here.send(Message(topic, b"here 5"))


# ---- registration at brokers ---------------------------------------------------------------------


def test_brokers_list_a_producer_while_it_runs(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    group = unique_name("group")
    sender = producer(server, group=group)
    sender.send(Message(server.topic(), b"1"))
    wait_until(lambda: members_of(server, group) == [sender.client.core.client_id])
    sender.close()
    wait_until(lambda: not members_of(server, group))


def test_a_producer_started_later_is_registered_as_well(
    server: Server, make: Make, unique_name: UniqueName
) -> None:
    client = make(Client, server.name_server).start()
    topic = server.topic()
    make(Producer, client, group=unique_name("early")).start().send(Message(topic, b"1"))
    late = unique_name("late")
    make(Producer, client, group=late).start()
    wait_until(lambda: members_of(server, late) == [client.core.client_id])


def test_timers_run_and_are_visible(server: Server, producer: MakeProducer) -> None:
    options = ClientOptions(
        route_refresh_interval=0.05, heartbeat_interval=0.05, call_timeout=LONG_TIMEOUT
    )
    sender = producer(server, client_options=options)
    sender.send(Message(server.topic(), b"1"))
    wait_until(lambda: sender.client.stats().timers["routes"].runs >= 3)
    wait_until(lambda: sender.client.stats().timers["heartbeats"].runs >= 2)
    timers = sender.client.stats().timers
    assert timers["routes"].interval == timers["heartbeats"].interval == 0.05
    assert timers["routes"].failures == timers["heartbeats"].failures == 0


# ---- closing -------------------------------------------------------------------------------------


def test_closing_sends_what_was_accepted(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    sender = producer(server)
    sender.send(Message(topic, b"first"))
    futures = [sender.submit(Message(topic, f"{number}")) for number in range(50)]
    sender.close(timeout=PATIENCE)
    assert len({future.result(LONG_TIMEOUT).message_id for future in futures}) == 50
    assert len(server.read_all(topic, 51)) == 51


def test_closing_waits_for_outstanding_replies(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    sender.send(Message(topic, b"first"))
    with embedded.held(SEND) as let_go:
        future = sender.submit(Message(topic, b"1"))
        wait_until(lambda: sender.client.stats().producers[sender.group].in_flight == 1)
        threading.Timer(0.3, let_go).start()
        sender.close(timeout=PATIENCE)
        assert future.done()
    assert future.result(LONG_TIMEOUT).attempts == 1


def test_close_returns_in_time_when_a_broker_does_not_answer(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()

    def seconds_to_close() -> float:
        sender = producer(embedded)
        embedded.cluster.intercept(SEND, None)
        sender.send(Message(topic, b"first"))
        embedded.cluster.intercept(SEND, drop())
        future = sender.submit(Message(topic, b"1"), timeout=LONG_TIMEOUT)
        wait_until(lambda: sender.client.stats().producers[sender.group].in_flight == 1)
        started = time.monotonic()
        sender.close(timeout=0.2)
        seconds = time.monotonic() - started
        with pytest.raises(RocketMQError):
            future.result(LONG_TIMEOUT)
        return seconds

    wait_until(lambda: seconds_to_close() < 2)  # a busy machine may delay some of them


def test_an_unclosed_client_is_warned_about(
    embedded: Embedded, kind: Kind, loop_thread: LoopThread
) -> None:
    with pytest.warns(ResourceWarning, match=r"Client .* was not closed") as warned:
        _drop_a_client(embedded.name_server, kind, loop_thread, warned)


def _drop_a_client(
    name_server: str, kind: Kind, loop: LoopThread, warned: pytest.WarningsRecorder
) -> None:
    client: Client | AsyncClient
    if kind == "sync":
        client = Client(name_server).start()
    else:
        client = loop.run(AsyncClient(name_server).start())
    del client
    # The thread of the loop may hold it a moment longer.
    wait_until(
        lambda: gc.collect() >= 0 and any("was not closed" in str(w.message) for w in warned)
    )


def test_a_closed_client_is_not_warned_about(embedded: Embedded, make: Make) -> None:
    gc.collect()  # what other tests have left
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make(Client, embedded.name_server):
            pass
        gc.collect()


# ---- no server -----------------------------------------------------------------------------------


def test_no_server_is_a_named_error_within_a_second(make: Make) -> None:
    addresses = [dead_address(), dead_address()]
    producer = make(Producer, addresses, group="g")

    def seconds_to_fail() -> float:
        started = time.monotonic()
        with pytest.raises(ConnectFailed) as caught:
            producer.start()
        seconds = time.monotonic() - started
        assert isinstance(caught.value, ConnectionError)
        for address in addresses:
            assert address in str(caught.value)
        assert "downrange serve" in str(caught.value)
        assert producer.state == "new"
        return seconds

    wait_until(lambda: seconds_to_fail() < 1)  # a busy machine may delay some of them


def test_a_producer_starts_without_a_server_when_connect_on_start_is_off(make: Make) -> None:
    producer = make(
        Producer, dead_address(), group="g", client_options=ClientOptions(connect_on_start=False)
    ).start()

    def seconds_to_fail() -> float:
        started = time.monotonic()
        with pytest.raises(ConnectFailed):
            producer.send(Message("orders", b"1"))
        return time.monotonic() - started

    wait_until(lambda: seconds_to_fail() < 1)  # a busy machine may delay some of them


def test_a_failed_start_can_be_repeated(make: Make) -> None:
    port = draw_name_server_port()
    producer = make(Producer, f"127.0.0.1:{port}", group="g")
    with socket.socket() as taken:  # keeps other test runs from the port
        taken.bind(("", port))
        with pytest.raises(ConnectFailed):
            producer.start()
    with Cluster(nameserver_port=port):
        producer.start().send(Message("orders", b"1"))
        producer.close()


def test_a_host_without_an_address_is_a_named_error(make: Make) -> None:
    with pytest.raises(HostNotFound, match=r"nowhere\.invalid"):
        make(Producer, "nowhere.invalid:9876", group="g").start()


def test_no_address_at_all_is_a_named_error(make: Make) -> None:
    with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:9876"):
        make(Producer, group="g").start()


def test_an_invalid_address_is_refused_in_the_constructor(make: Make) -> None:
    with pytest.raises(OptionError, match="nonsense"):
        make(Producer, "nonsense", group="g")


def test_only_from_env_reads_the_environment(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    kind = Producer if make.kind == "sync" else AsyncProducer
    with pytest.raises(NoNameServer, match="NAMESRV_ADDR"):
        kind.from_env(group="g")
    monkeypatch.setenv("NAMESRV_ADDR", embedded.name_server)
    assert embedded.name_server in repr(kind.from_env(group="g").client)
    with pytest.raises(NoNameServer):
        make(Producer, group="g").start()


def test_a_broker_that_is_avoided_is_logged_once(
    producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(brokers=2) as cluster:
        # Only failures make a broker avoided; one that is slow on a busy machine is not.
        only_failures = FaultTolerance(style="4.x", latency_ms=(25_000,), avoid_ms=(600_000,))
        options = ProducerOptions(fault_tolerance=only_failures)
        # A refresh after the kill would take the broker out of the route before it fails.
        one_refresh = ClientOptions(route_refresh_interval=3600.0)
        sender = producer(cluster.name_server, options=options, client_options=one_refresh)
        sender.create_topic("orders", queues=2, timeout=LONG_TIMEOUT)
        used = {sender.send(Message("orders", b"1")).queue.broker for _ in range(8)}
        assert len(used) == 2
        wait_until(lambda: sender.client.stats().timers["routes"].runs > 0)
        cluster.kill_broker(1)
        with caplog.at_level("WARNING", logger="downrange.client"):
            for _ in range(20):
                sender.send(Message("orders", b"1"), timeout=LONG_TIMEOUT)
    avoided = [record for record in caplog.records if "is avoided" in record.getMessage()]
    assert len(avoided) == 1
