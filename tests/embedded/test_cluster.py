"""`Cluster`: a whole cluster inside a test, and its injected faults."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downrange.embedded import (
    Cluster,
    cut,
    deliver,
    drop,
    handle_then_cut,
    lose_reply,
    refuse,
)
from downrange.errors import (
    CannotListen,
    ClientStateError,
    OptionError,
    RocketMQError,
    StoreLocked,
)
from downrange.options import BrokerOptions, ListenerOptions
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import decode, encode
from downrange.wire.frames import FrameSplitter
from downrange.wire.signatures import sign
from tests.embedded.brokers import bodies, connection, route, send, send_request
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from downrange.wire.command import Command

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE


def test_a_cluster_with_accounts_denies_unsigned_requests(tmp_path: Path) -> None:
    accounts = tmp_path / "access.toml"
    accounts.write_text('[accounts.order-service]\nsecret_key = "a long secret"\nadmin = true\n')
    with Cluster(access=accounts) as cluster, connection(cluster.brokers[0]) as peer:
        assert peer.ask(send_request(b"hello")).code == ResponseCode.NO_PERMISSION
        signed = send_request(b"hello")
        sign(signed, "order-service", "a long secret")
        assert peer.ask(signed).code == ResponseCode.SUCCESS
    accounts.write_text("what?")
    with pytest.raises(OptionError, match=r"access\.toml"):
        Cluster(access=accounts)


def test_sends_that_arrive_together_are_checked_one_by_one(tmp_path: Path) -> None:
    accounts = tmp_path / "access.toml"
    accounts.write_text('[accounts.order-service]\nsecret_key = "a long secret"\nadmin = true\n')
    with Cluster(access=accounts) as cluster:
        signed = send_request(b"first")
        sign(signed, "order-service", "a long secret")
        with connection(cluster.brokers[0]) as peer:
            assert peer.ask(signed).code == ResponseCode.SUCCESS  # creates the topic
        requests = [_plain_send(number) for number in range(6)]
        for request in requests[::2]:
            sign(request, "order-service", "a long secret")
        replies = _send_together(cluster.brokers[0], requests)
        stored, denied = int(ResponseCode.SUCCESS), int(ResponseCode.NO_PERMISSION)
        assert dict(replies) == {n: denied if n % 2 else stored for n in range(6)}


def test_sends_that_arrive_together_are_stored_and_answered_in_order() -> None:
    with Cluster() as cluster:
        assert send(cluster.brokers[0], b"first") == ResponseCode.SUCCESS
        requests = [_plain_send(number) for number in range(500)]
        requests[250].fields["i"] = ""  # not plain: it gets its unique key from the broker
        replies = _send_together(cluster.brokers[0], requests)
        assert replies == [(number, int(ResponseCode.SUCCESS)) for number in range(500)]
        wanted = [b"first", *(request.body for request in requests)]
        assert bodies(cluster.brokers[0]) == wanted


def _plain_send(number: int) -> Command:
    request = send_request(b"body %d" % number, properties=f"UNIQ_KEY\x01K{number}\x02")
    request.request_id = number
    return request


def _send_together(address: str, requests: list[Command]) -> list[tuple[int, int]]:
    """Write requests at once; return the ids and codes of the replies, in their order."""
    host, _, port = address.rpartition(":")
    frames = FrameSplitter()
    replies: list[tuple[int, int]] = []
    with socket.create_connection((host, int(port)), timeout=30.0) as peer:
        peer.sendall(b"".join(map(encode, requests)))
        while len(replies) < len(requests):
            data = peer.recv(65_536)
            assert data, "the server closed the connection"
            frames.receive(data)
            while (frame := frames.next_frame()) is not None:
                reply = decode(frame)
                replies.append((reply.request_id, reply.code))
    return replies


# ---- start and stop ----


def test_a_cluster_serves_inside_with_and_its_temporary_store_is_removed() -> None:
    with Cluster() as cluster:
        store = Path(cluster.store)
        assert store.is_dir()
        assert send(cluster.brokers[0], b"hello") == 0
        assert bodies(cluster.brokers[0]) == [b"hello"]
        assert route(cluster.name_server, "T") == ["broker-a"]
        address = cluster.name_server
    assert not store.exists()
    host, _, port = address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_cluster_serves_inside_async_with() -> None:
    async def play() -> str:
        async with Cluster() as cluster:
            assert await asyncio.to_thread(send, cluster.brokers[0], b"hello") == 0
            assert await asyncio.to_thread(bodies, cluster.brokers[0]) == [b"hello"]
            with pytest.raises(ClientStateError, match="at the end of its `async with` block"):
                cluster.stop()
            with pytest.raises(ClientStateError, match="is running already"):
                await cluster.__aenter__()
            return cluster.store

    assert not Path(asyncio.run(play())).exists()


@pytest.mark.parametrize("end", ["kill_broker", "stop_broker"])
@pytest.mark.parametrize("is_from_thread", [False, True])
def test_brokers_end_and_restart_inside_async_with(end: str, is_from_thread: bool) -> None:
    """Issue 14: there, the methods of the cluster raised an error."""

    async def play() -> None:
        async with Cluster(brokers=2) as cluster:
            address = cluster.brokers[1]
            assert await asyncio.to_thread(send, address, b"hello") == 0
            methods = [getattr(cluster, end), cluster.restart_broker, cluster.restart_broker]
            for method in methods:
                await (await asyncio.to_thread(method, 1) if is_from_thread else method(1))
                if method is methods[0]:
                    host, _, port = address.rpartition(":")
                    with pytest.raises(ConnectionRefusedError):
                        await asyncio.to_thread(socket.create_connection, (host, int(port)))
                else:
                    assert await asyncio.to_thread(bodies, address) == [b"hello"]
            assert cluster.brokers[1] == address
            with pytest.raises(OptionError, match="broker 2 does not exist"):
                await cluster.kill_broker(2)

    asyncio.run(play())


def test_a_restart_that_fails_inside_async_with_raises_its_error() -> None:
    async def play() -> None:
        async with Cluster() as cluster:
            host, _, port = cluster.brokers[0].rpartition(":")
            await cluster.kill_broker()
            with socket.create_server((host, int(port))), pytest.raises(CannotListen):
                await cluster.restart_broker()

    asyncio.run(play())


def test_in_a_thread_the_methods_of_a_cluster_may_be_awaited_as_well() -> None:
    with Cluster() as cluster:
        asyncio.run(_awaited(cluster.kill_broker()))
        asyncio.run(_awaited(cluster.restart_broker()))
        assert send(cluster.brokers[0], b"hello") == 0


async def _awaited(work: Awaitable[None]) -> None:
    await work


def test_a_cluster_shows_its_address() -> None:
    cluster = Cluster(brokers=2)
    assert repr(cluster) == "<Cluster of 2 brokers stopped>"
    with cluster:
        assert repr(cluster) == f"<Cluster of 2 brokers {cluster.name_server} running>"
    assert repr(Cluster()) == "<Cluster of 1 broker stopped>"


def test_a_given_store_is_kept_and_found_again(tmp_path: Path) -> None:
    with Cluster(store=tmp_path) as cluster:
        send(cluster.brokers[0], b"kept")
    with Cluster(store=tmp_path) as cluster:
        assert cluster.store == str(tmp_path)
        assert bodies(cluster.brokers[0]) == [b"kept"]
        assert route(cluster.name_server, "T") == ["broker-a"]


def test_several_clusters_live_beside_each_other() -> None:
    with Cluster() as one, Cluster() as two:
        send(one.brokers[0], b"one")
        send(two.brokers[0], b"two")
        assert bodies(one.brokers[0]) == [b"one"]
        assert bodies(two.brokers[0]) == [b"two"]


def test_a_cluster_is_started_and_stopped_by_hand_several_times() -> None:
    cluster = Cluster()
    cluster.stop()
    for _ in range(2):
        cluster.start()
        cluster.start()
        assert send(cluster.brokers[0], b"x") == 0
        cluster.stop()
        cluster.stop()


def test_several_brokers_share_a_name_server(tmp_path: Path) -> None:
    with Cluster(brokers=2, store=tmp_path) as cluster:
        assert len(set(cluster.brokers)) == 2
        for broker in cluster.brokers:
            send(broker, broker.encode())
        assert [bodies(broker) for broker in cluster.brokers] == [
            [broker.encode()] for broker in cluster.brokers
        ]
        assert route(cluster.name_server, "T") == ["broker-a", "broker-b"]
    assert {path.name for path in tmp_path.iterdir()} >= {"broker-a", "broker-b"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"brokers": 0},
        {"flush": "sometimes"},
        {"store": ""},
        {"host": ""},
        {"listener": ListenerOptions(tls_mode="enforcing")},
    ],
)
def test_wrong_arguments_show_before_anything_starts(arguments: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        Cluster(**arguments)  # type: ignore[arg-type]


def test_a_cluster_that_is_not_started_says_so() -> None:
    with pytest.raises(OptionError, match="not started"):
        _ = Cluster().name_server


def test_a_cluster_that_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with Cluster(store=tmp_path) as running:
        before = set(threading.enumerate())
        name_server_port = int(running.name_server.rpartition(":")[2])
        attempts: list[dict[str, Any]] = [
            {"store": tmp_path},
            {"nameserver_port": name_server_port},
            {"broker_port": name_server_port},
            {"broker": BrokerOptions(advertised_host="no.such.host.invalid")},
        ]
        for arguments in attempts:
            with pytest.raises(RocketMQError):
                Cluster(**arguments).start()
        wait_until(lambda: set(threading.enumerate()) <= before)
        with pytest.raises(StoreLocked):
            Cluster(store=tmp_path).start()
    with Cluster(store=tmp_path):
        pass  # neither the lock nor the port is in use


# ---- faults ----


def test_a_request_is_refused_as_the_rule_says_until_the_rule_ends() -> None:
    with Cluster() as cluster:
        cluster.intercept(SEND, refuse(ResponseCode.SYSTEM_BUSY, "not now"))
        assert send(cluster.brokers[0], b"x") == ResponseCode.SYSTEM_BUSY
        assert bodies(cluster.brokers[0]) == []
        cluster.intercept(SEND, None)
        assert send(cluster.brokers[0], b"y") == 0


def test_a_rule_may_decide_for_each_request() -> None:
    with Cluster() as cluster:
        seen: list[bytes] = []

        def second_one_only(request: object, _peer: object) -> object:
            seen.append(request.body)  # type: ignore[attr-defined]
            return refuse(1, "this one") if len(seen) == 2 else None

        cluster.intercept(SEND, second_one_only)  # type: ignore[arg-type]
        assert [send(cluster.brokers[0], b"%d" % n) for n in range(3)] == [0, 1, 0]
        assert bodies(cluster.brokers[0]) == [b"0", b"2"]


def test_rules_for_different_requests_are_independent() -> None:
    with Cluster() as cluster:
        cluster.intercept(SEND, refuse(1, "send"))
        cluster.intercept(PULL, refuse(2, "pull"))
        cluster.intercept(SEND, None)
        assert send(cluster.brokers[0], b"x") == 0
        assert bodies(cluster.brokers[0]) == []


def test_a_lost_reply_leaves_the_message_stored() -> None:
    with Cluster() as cluster, connection(cluster.brokers[0]) as peer:
        cluster.intercept(SEND, lose_reply())
        with pytest.raises(TimeoutError):
            peer.ask(send_request(b"stored"), seconds=0.3)
        wait_until(lambda: bodies(cluster.brokers[0]) == [b"stored"])


def test_a_dropped_request_never_happened() -> None:
    with Cluster() as cluster, connection(cluster.brokers[0]) as peer:
        cluster.intercept(SEND, drop())
        with pytest.raises(TimeoutError):
            peer.ask(send_request(b"lost"), seconds=0.3)
        assert bodies(cluster.brokers[0]) == []


@pytest.mark.parametrize("is_handled", [False, True])
def test_a_connection_is_cut_before_or_after_handling(is_handled: bool) -> None:
    with Cluster() as cluster, connection(cluster.brokers[0]) as peer:
        cluster.intercept(SEND, handle_then_cut() if is_handled else cut())
        with pytest.raises((EOFError, ConnectionError)):
            peer.ask(send_request(b"x"))
        wait_until(lambda: bodies(cluster.brokers[0]) == ([b"x"] if is_handled else []))


def test_a_delayed_request_is_answered_late() -> None:
    with Cluster() as cluster:
        cluster.intercept(SEND, deliver(after=0.3))
        begun = time.monotonic()
        assert send(cluster.brokers[0], b"x") == 0
        assert time.monotonic() - begun >= 0.299  # the loop counts in whole milliseconds


def test_a_rule_for_one_broker_does_not_affect_the_other() -> None:
    with Cluster(brokers=2) as cluster:
        cluster.intercept(SEND, refuse(1, "no"), broker=1)
        assert [send(broker, b"x") for broker in cluster.brokers] == [0, 1]
        with pytest.raises(OptionError, match="broker 2 does not exist: there are 2"):
            cluster.intercept(SEND, None, broker=2)
        with pytest.raises(OptionError):
            cluster.kill_broker(-1)


def test_a_stopped_broker_leaves_the_name_server_and_comes_back_where_it_was() -> None:
    with Cluster() as cluster:
        (address,) = cluster.brokers
        send(address, b"kept")
        cluster.stop_broker()
        assert route(cluster.name_server, "T") is None
        cluster.restart_broker()
        assert cluster.brokers == [address]
        assert bodies(address) == [b"kept"]
        assert route(cluster.name_server, "T") == ["broker-a"]


def test_a_killed_broker_comes_back_with_what_it_acknowledged() -> None:
    with Cluster(flush="sync") as cluster:
        (address,) = cluster.brokers
        assert send(address, b"kept") == 0
        cluster.kill_broker()
        cluster.kill_broker()
        with pytest.raises(OSError, match="refused"):
            send(address, b"lost")
        cluster.restart_broker()
        assert bodies(address) == [b"kept"]


def test_a_broker_that_serves_is_restarted_and_rules_stay() -> None:
    with Cluster() as cluster:
        cluster.intercept(SEND, refuse(1, "no"))
        cluster.restart_broker()
        assert send(cluster.brokers[0], b"x") == 1
