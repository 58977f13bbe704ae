"""Half messages that one broker took and another ends, on one store folder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from downrange.options import BrokerOptions, ListenerOptions
from downrange.server import BrokerServer
from downrange.server.run.runner import ServerThread
from downrange.wire.bodies import HeartbeatBody, ProducerMember
from downrange.wire.codes import RequestCode, TransactionFlag
from downrange.wire.fields import request_command
from downrange.wire.headers import CheckTransactionRequest, EndTransactionRequest
from downrange.wire.ids import parse_offset_id
from downrange.wire.records import decode_record
from tests.apache.artifacts import VERSIONS, ApacheUnavailable
from tests.apache.cluster import ApacheCluster
from tests.apache.fixtures import give_up
from tests.apache.settings import STORE_SIZES
from tests.conversations.recorder import Facts
from tests.conversations.scene import Scene, bare_request, live_scene, succeed
from tests.conversations.sends import pull

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.conversations.peers import Peer

#: How long a broker takes to ask: an interval, the age of a half, and a start under load.
CHECK_SECONDS = 30.0
COMMIT = int(TransactionFlag.COMMIT)
ROLLBACK = int(TransactionFlag.ROLLBACK)


class _Producer:
    """A transaction producer that is known to a broker."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.broker: Peer = scene.broker()
        body = HeartbeatBody(
            client_id="127.0.0.1@1",
            producer_data_set=[ProducerMember(group_name=scene.name("makers"))],
        )
        succeed(self.broker.ask(bare_request(RequestCode.HEART_BEAT, body.encode())))

    def send(self, topic: str, body: bytes, outcome: int | None) -> None:
        """Send a half, and decide on it unless the outcome is None."""
        properties = {"TRAN_MSG": "true", "PGROUP": self.scene.name("makers"), "WAIT": "true"}
        unique_key = {"UNIQ_KEY": f"{body.hex():0>32}"[-32:]}
        reply = self.scene.send(self.broker, topic, body, unique_key | properties)
        if outcome is not None:
            self.end(reply.queue_offset, parse_offset_id(reply.msg_id).log_offset, outcome)

    def end(self, queue_offset: int, log_offset: int, outcome: int) -> None:
        header = EndTransactionRequest(
            producer_group=self.scene.name("makers"),
            tran_state_table_offset=queue_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=outcome,
            from_transaction_check=True,
            msg_id="",
        )
        succeed(self.broker.ask(request_command(header)))

    def await_check(self) -> tuple[bytes, CheckTransactionRequest]:
        """Return the body of the half that the broker asks about next, and where it lies."""
        code = RequestCode.CHECK_TRANSACTION_STATE
        check = self.broker.wait_request(code, seconds=CHECK_SECONDS)
        return decode_record(check.body).body, CheckTransactionRequest.from_fields(check.fields)

    def commit_when_asked(self, expected: bytes) -> None:
        """Commit the half that is asked about, which must be a certain one."""
        body, header = self.await_check()
        assert body == expected
        self.end(header.tran_state_table_offset, header.commit_log_offset, COMMIT)


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Generator[ApacheCluster]:
    try:
        with ApacheCluster(request.param) as running:
            yield running
    except ApacheUnavailable as error:
        give_up(error)


def _our_broker(cluster: ApacheCluster) -> ServerThread:
    (broker,) = cluster.brokers
    host, _, port = broker.address.rpartition(":")
    options = BrokerOptions(
        name=broker.name,
        name_servers=(cluster.name_server,),
        transaction_timeout=1.0,
        transaction_check_interval=1.0,
    )
    listener = ListenerOptions(host=host, port=int(port))
    return ServerThread(BrokerServer(broker.store, options, listener, store=STORE_SIZES))


def test_halves_of_one_broker_are_asked_about_and_ended_by_the_next(cluster: ApacheCluster) -> None:
    (process,) = cluster.brokers
    facts = Facts(cluster.version, "x", int(time.time() * 1000), process.name, process.address)
    addresses = {"name server": cluster.name_server, "broker": process.address}

    with live_scene(facts, addresses) as scene:
        producer = _Producer(scene)
        queues = {"read_queue_nums": 1, "write_queue_nums": 1}
        topic = scene.create_topic(producer.broker, "halves", **queues)
        producer.send(topic, b"apache ended", COMMIT)
        producer.send(topic, b"apache rolled back", ROLLBACK)
        producer.send(topic, b"apache open", None)
    assert cluster.stop_broker(0)

    with _our_broker(cluster), live_scene(facts, addresses) as scene:
        producer = _Producer(scene)
        producer.commit_when_asked(b"apache open")
        producer.send(topic, b"our ended", COMMIT)
        producer.send(topic, b"our rolled back", ROLLBACK)
        producer.send(topic, b"our open", None)
        body, _ = producer.await_check()  # now a copy waits
        assert body == b"our open"

    cluster.start_broker(0)
    with live_scene(facts, addresses) as scene:
        producer = _Producer(scene)
        producer.commit_when_asked(b"our open")
        records = pull(scene, producer.broker, topic, count=4)
        bodies = [record.body for record in records]
        assert bodies == [b"apache ended", b"apache open", b"our ended", b"our open"]
        with pytest.raises(OSError, match="timed out"):
            producer.broker.wait_request(RequestCode.CHECK_TRANSACTION_STATE, seconds=6.0)
