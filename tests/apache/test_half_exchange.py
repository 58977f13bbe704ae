"""Half messages that one broker stored and another ends, in one store folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.options import BrokerOptions
from downrange.wire.bodies import HeartbeatBody, ProducerMember
from downrange.wire.codes import RequestCode, TransactionFlag
from downrange.wire.fields import request_command
from downrange.wire.headers import CheckTransactionRequest, EndTransactionRequest
from downrange.wire.ids import parse_offset_id
from downrange.wire.records import decode_record
from tests.apache.exchange import our_broker, scene_arguments
from tests.conversations.scene import Scene, bare_request, live_scene, succeed
from tests.conversations.sends import pull
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster
    from tests.conversations.peers import Peer

#: Limit for a check: the check interval, the minimum age of a half, and a start under load.
CHECK_SECONDS = 60.0
COMMIT = int(TransactionFlag.COMMIT)
ROLLBACK = int(TransactionFlag.ROLLBACK)


class _Producer:
    """A transaction producer that is registered at the broker by a heartbeat."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.broker: Peer = scene.broker()
        self._ended: set[bytes] = set()
        body = HeartbeatBody(
            client_id="127.0.0.1@1",
            producer_data_set=[ProducerMember(group_name=scene.name("makers"))],
        )
        succeed(self.broker.ask(bare_request(RequestCode.HEART_BEAT, body.encode())))

    def send(self, topic: str, body: bytes, outcome: int | None) -> None:
        """Send a half message, and end it unless the outcome is None."""
        properties = {"TRAN_MSG": "true", "PGROUP": self.scene.name("makers"), "WAIT": "true"}
        unique_key = {"UNIQ_KEY": f"{body.hex():0>32}"[-32:]}
        reply = self.scene.send(self.broker, topic, body, unique_key | properties)
        if outcome is not None:
            self._ended.add(body)
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
        """Return the body of the half in the next check of the broker, and the check's header.

        On a busy machine, a second check of a half may be under way while the first is answered,
        and a half may be checked before its producer ends it.
        """
        code = RequestCode.CHECK_TRANSACTION_STATE
        while True:
            check = self.broker.wait_request(code, seconds=CHECK_SECONDS)
            body = decode_record(check.body).body
            if body not in self._ended:
                return body, CheckTransactionRequest.from_fields(check.fields)

    def is_left_alone(self) -> bool:
        """Return whether there is no check for some intervals; one could be of an ended half."""
        try:
            check = self.broker.wait_request(RequestCode.CHECK_TRANSACTION_STATE, seconds=6.0)
        except TimeoutError:
            return True
        assert decode_record(check.body).body in self._ended
        return False

    def commit_when_checked(self, expected: bytes) -> None:
        """Commit the half in the next check; its body must be the expected one."""
        body, header = self.await_check()
        assert body == expected
        self._ended.add(body)
        self.end(header.tran_state_table_offset, header.commit_log_offset, COMMIT)


def test_halves_of_one_broker_are_checked_and_ended_by_the_next(
    apache_alone: ApacheCluster,
) -> None:
    facts, addresses = scene_arguments(apache_alone)

    with live_scene(facts, addresses) as scene:
        producer = _Producer(scene)
        queues = {"read_queue_nums": 1, "write_queue_nums": 1}
        topic = scene.create_topic(producer.broker, "halves", **queues)
        producer.send(topic, b"apache ended", COMMIT)
        producer.send(topic, b"apache rolled back", ROLLBACK)
        producer.send(topic, b"apache open", None)
    assert apache_alone.stop_broker(0)

    options = BrokerOptions(transaction_timeout=1.0, transaction_check_interval=1.0)
    with our_broker(apache_alone, options), live_scene(facts, addresses) as scene:
        producer = _Producer(scene)
        producer.commit_when_checked(b"apache open")
        producer.send(topic, b"our ended", COMMIT)
        producer.send(topic, b"our rolled back", ROLLBACK)
        producer.send(topic, b"our open", None)
        body, _ = (
            producer.await_check()
        )  # from now on the half is stored a second time, for the next check
        assert body == b"our open"

    apache_alone.start_broker(0)
    with live_scene(facts, addresses) as scene:
        producer = _Producer(scene)
        producer.commit_when_checked(b"our open")
        records = pull(scene, producer.broker, topic, count=4)
        bodies = [record.body for record in records]
        assert bodies == [b"apache ended", b"apache open", b"our ended", b"our open"]
        wait_until(producer.is_left_alone)
