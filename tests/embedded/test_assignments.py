"""Queues shared out by brokers over real sockets: routes, saved modes, locks, access."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from downrange.embedded import Cluster, drop
from downrange.model import QueueId
from downrange.options import BrokerOptions
from downrange.server.broker.handlers import assignments
from downrange.server.run.registrar import Registrar
from downrange.wire.bodies import (
    AssignmentQueryBody,
    AssignmentsBody,
    ConsumerMember,
    HeartbeatBody,
    LockedQueuesBody,
    LockQueuesBody,
    RequestModeBody,
    Subscription,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import CreateTopicRequest
from downrange.wire.signatures import sign
from tests.embedded.brokers import connection
from tests.support.timing import shortest
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from downrange.server.net.interception import Interception
    from tests.conversations.peers import Peer

CODES = (400, 401, 402, 200050, 200051, 200052, 200053, 200054, 200055, 200056, 200151)


def create(address: str, queues: int, topic: str = "T") -> None:
    header = CreateTopicRequest(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6
    )
    with connection(address) as peer:
        assert peer.ask(request_command(header)).code == 0


def join(peer: Peer, client: str) -> None:
    member = ConsumerMember(group_name="G", subscription_data_set=[Subscription(topic="T")])
    body = HeartbeatBody(client_id=client, consumer_data_set=[member])
    assert peer.ask(Command(int(RequestCode.HEART_BEAT), body=body.encode())).code == 0


def query(client: str, topic: str = "T") -> Command:
    body = AssignmentQueryBody(
        topic=topic,
        consumer_group="G",
        client_id=client,
        strategy_name="AVG",
        message_model="CLUSTERING",
    )
    return Command(int(RequestCode.QUERY_ASSIGNMENT), body=body.encode())


def assigned(peer: Peer, client: str) -> list[tuple[str, int, str]] | None:
    reply = peer.ask(query(client))
    assert reply.code == 0, reply.remark
    found = decode_body(AssignmentsBody, reply.body).message_queue_assignments
    if found is None:  # also if the name server did not reply within a second
        return None
    return [(one.message_queue.broker, one.message_queue.number, one.mode) for one in found]


def shared_out(peer: Peer, client: str) -> list[tuple[str, int, str]]:
    """Ask until there is a list, as members do."""
    return wait_until(lambda: assigned(peer, client))


def set_mode(address: str, mode: str = "POP") -> None:
    body = RequestModeBody(topic="T", consumer_group="G", mode=mode, pop_share_queue_num=1)
    with connection(address) as peer:
        code = int(RequestCode.SET_MESSAGE_REQUEST_MODE)
        assert peer.ask(Command(code, body=body.encode())).code == 0


def modes(address: str) -> Any:
    with connection(address) as peer:
        reply = peer.ask(Command(int(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)))
    return json.loads(reply.body)["messageRequestModeMap"]


def lose_route_requests(request: Command, _: object) -> Interception | None:
    return drop() if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC else None


# ---- routes ------------------------------------------------------------------------------------


def test_every_broker_shares_out_the_queues_of_all_brokers() -> None:
    with Cluster(brokers=2) as cluster:
        for address, queues in zip(cluster.brokers, (3, 1), strict=True):
            create(address, queues)
        for address in cluster.brokers:
            with connection(address) as one, connection(address) as two:
                join(one, "c1")
                join(two, "c2")
                assert shared_out(one, "c1") == [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")]
                assert shared_out(two, "c2") == [("broker-a", 2, "PULL"), ("broker-b", 0, "PULL")]


def test_new_queues_are_shared_out_at_once() -> None:
    with Cluster() as cluster, connection(cluster.brokers[0]) as peer:
        create(cluster.brokers[0], 1)
        join(peer, "c")
        assert shared_out(peer, "c") == [("broker-a", 0, "PULL")]
        create(cluster.brokers[0], 3)
        assert len(shared_out(peer, "c")) == 3


def test_members_keep_their_queues_while_the_name_server_is_silent() -> None:
    with Cluster() as cluster, connection(cluster.brokers[0]) as peer:
        create(cluster.brokers[0], 1)
        join(peer, "c")
        cluster.server.name_server._listener.intercept = lose_route_requests

        def ask() -> float:
            begun = time.monotonic()
            calls = [peer.start(query("c")) for _ in range(20)]
            for call in calls:
                assert peer.finish(call).body == b"{}"
            return time.monotonic() - begun

        # Java's client waits three seconds.
        assert shortest(ask, 2.5) < 2.5


def test_members_keep_their_queues_when_the_lookup_fails_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> Command:
        raise RuntimeError("odd")

    with Cluster() as cluster, connection(cluster.brokers[0]) as peer:
        create(cluster.brokers[0], 1)
        join(peer, "c")
        with monkeypatch.context() as patch:
            patch.setattr(Registrar, "ask", fail)
            assert assigned(peer, "c") is None
        assert "a request to a name server failed" in caplog.text
        with monkeypatch.context() as patch:
            patch.setattr(assignments, "_answer", None)
            peer.start(query("c"))
            wait_until(lambda: "handling the reply of a name server failed" in caplog.text)
        assert shared_out(peer, "c") == [("broker-a", 0, "PULL")]  # later requests are not blocked


def test_a_broker_stops_while_a_member_waits_for_the_name_server() -> None:
    with Cluster() as cluster:
        create(cluster.brokers[0], 1)
        seen: list[int] = []

        def lose_and_note(request: Command, peer: object) -> Interception | None:
            lost = lose_route_requests(request, peer)
            seen.extend([request.code] if lost else [])
            return lost

        cluster.server.name_server._listener.intercept = lose_and_note

        def stop() -> float:
            cluster.restart_broker()
            seen.clear()
            with connection(cluster.brokers[0]) as waiting:
                join(waiting, "c")
                waiting.start(query("c"))
                wait_until(lambda: seen)
                begun = time.monotonic()
                cluster.stop_broker()
                return time.monotonic() - begun

        assert shortest(stop, 2.0) < 2.0


# ---- modes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_confirmed_mode_survives(is_killed: bool, tmp_path: Path) -> None:
    with Cluster(store=tmp_path) as cluster:
        address = cluster.brokers[0]
        create(address, 1)
        set_mode(address)
        before = modes(address)
        if is_killed:
            cluster.kill_broker()
        cluster.restart_broker()
        assert modes(address) == before
        assert before["T"]["G"]["mode"] == "POP"
    (file,) = tmp_path.rglob("config/messageRequestMode.json")
    assert json.loads(file.read_bytes()) == {"messageRequestModeMap": before}


def test_the_default_mode_is_a_setting_of_the_broker() -> None:
    options = BrokerOptions(default_request_mode="POP")
    with Cluster(broker=options) as cluster, connection(cluster.brokers[0]) as peer:
        create(cluster.brokers[0], 2)
        join(peer, "c")
        assert shared_out(peer, "c") == [("broker-a", -1, "POP")]
        change = Command(
            int(RequestCode.UPDATE_BROKER_CONFIG), body=b"defaultMessageRequestMode=PULL\n"
        )
        assert peer.ask(change).code == 0
        assert shared_out(peer, "c") == [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")]


# ---- locks -------------------------------------------------------------------------------------


def test_queues_of_a_member_whose_connection_ends_can_be_locked_as_soon_as_others_are_told() -> (
    None
):
    queue = QueueId("T", "broker-a", 0)

    def lock(peer: Peer, client: str) -> list[QueueId]:
        body = LockQueuesBody(consumer_group="G", client_id=client, mq_set=[queue])
        reply = peer.ask(Command(int(RequestCode.LOCK_BATCH_MQ), body=body.encode()))
        return decode_body(LockedQueuesBody, reply.body).locked

    with Cluster() as cluster, connection(cluster.brokers[0]) as stays:
        create(cluster.brokers[0], 1)
        with connection(cluster.brokers[0]) as ends:
            join(ends, "ends")
            join(stays, "stays")
            stays.wait_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
            assert lock(ends, "ends") == [queue]
            assert lock(stays, "stays") == []
        stays.wait_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        assert lock(stays, "stays") == [queue]


# ---- access ------------------------------------------------------------------------------------

ACCOUNTS = """
[accounts.app-account]
secret_key = "a long secret"
[accounts.app-account.topics]
T = "SUB"
"""
QUERY_BODY = b'{"topic":"T","consumerGroup":"G","clientId":"c","messageModel":"CLUSTERING"}'
BODIES = {
    400: QUERY_BODY,
    401: b'{"topic":"T","consumerGroup":"G","mode":"POP"}',
    200151: b'{"acks":[{"c":"G","t":"T"}],"brokerName":"broker-a"}',
}


@pytest.mark.parametrize("code", CODES)
def test_a_request_is_refused_before_it_is_handled(code: int, tmp_path: Path) -> None:
    accounts = tmp_path / "access.toml"
    accounts.write_text(ACCOUNTS)
    fields = {"topic": "T", "consumerGroup": "G"}
    with Cluster(access=accounts) as cluster, connection(cluster.brokers[0]) as peer:
        unsigned, wrong, small = (
            Command(code, dict(fields), BODIES.get(code, b"")) for _ in range(3)
        )
        sign(wrong, "app-account", "another secret")
        sign(small, "app-account", "a long secret")
        expected = (
            f"request {code} from 127.0.0.1",
            "the signature for account 'app-account' is wrong",
            "account 'app-account' has no ",
        )
        for request, text in zip((unsigned, wrong, small), expected, strict=True):
            reply = peer.ask(request)
            assert reply.code == ResponseCode.NO_PERMISSION
            assert (reply.remark or "").startswith(text)
