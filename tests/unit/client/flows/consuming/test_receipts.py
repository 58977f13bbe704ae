from __future__ import annotations

import pytest

from downrange.client.flows.consuming.receipts import (
    ack,
    ack_many,
    change_invisible,
    send_to_dead_letters,
)
from downrange.errors import BrokerNotFound, ConnectFailed, NotFound, RocketMQError, ServerFailure
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.pop_bodies import SPAN_MAX, BatchAckBody, decode_pop_body
from downrange.wire.pop_headers import ChangeInvisibleReply
from downrange.wire.pop_receipts import PLAIN, RETRY, Receipt
from downrange.wire.records import decode_records
from tests.support.plain_messages import received
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

DEADLINE = 130.0
ACK = RequestCode.ACK_MESSAGE
MANY = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def receipt(offset: int, *, start: int = 3, kind: str = PLAIN, broker: str = "a") -> Receipt:
    return Receipt(start, 1_000, 60_000, 2, kind, broker, 0, offset)


def servers_with(*, namespace: str | None = None, brokers: str = "a") -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer_route("orders" if namespace is None else f"{namespace}%orders", route(brokers))
    for broker in brokers:
        for code in (ACK, MANY, BACK):
            servers.answer(f"{broker}:1", code, reply())
    return servers


# ---- one message -------------------------------------------------------------------------------


def test_ack_names_the_message_by_its_receipt() -> None:
    servers = servers_with()
    servers.run(ack(servers.core, "jobs", "orders", receipt(5), deadline=DEADLINE))
    assert servers.fields(ACK) == {
        "consumerGroup": "jobs",
        "topic": "orders",
        "queueId": "0",
        "extraInfo": "3 1000 60000 2 0 a 0 5",
        "offset": "5",
    }


def test_ack_of_a_retry_names_the_retry_topic_with_the_namespace() -> None:
    servers = servers_with(namespace="prod")
    servers.run(ack(servers.core, "jobs", "orders", receipt(5, kind=RETRY), deadline=DEADLINE))
    fields = servers.fields(ACK)
    assert fields["consumerGroup"] == "prod%jobs"
    assert fields["topic"] == "%RETRY%prod%jobs_prod%orders"


def test_ack_says_that_the_queue_does_not_have_the_message() -> None:
    servers = servers_with()
    servers.answer("a:1", ACK, refusal(ResponseCode.NO_MESSAGE))
    with pytest.raises(NotFound):
        servers.run(ack(servers.core, "jobs", "orders", receipt(5), deadline=DEADLINE))


def test_ack_at_a_broker_that_is_gone() -> None:
    servers = servers_with()
    with pytest.raises(BrokerNotFound, match="'z'"):
        servers.run(ack(servers.core, "jobs", "orders", receipt(5, broker="z"), deadline=DEADLINE))


def test_change_returns_the_new_receipt() -> None:
    servers = servers_with()
    servers.answer("a:1", CHANGE, reply(ChangeInvisibleReply(7_000, 30_000, 4)))
    flow = change_invisible(
        servers.core, "jobs", "orders", receipt(5), seconds=30.0, deadline=DEADLINE
    )
    assert servers.run(flow) == Receipt(5, 7_000, 30_000, 4, PLAIN, "a", 0, 5)
    fields = servers.fields(CHANGE)
    assert fields["invisibleTime"] == "30000"
    assert fields["extraInfo"] == "3 1000 60000 2 0 a 0 5"
    assert (fields["topic"], fields["offset"], fields["queueId"]) == ("orders", "5", "0")


def test_dead_letter_is_stored_then_acknowledged() -> None:
    servers = servers_with()
    (message,) = received(decode_records(record("orders", 5))[0], "a", body_bytes_max=100)
    flow = send_to_dead_letters(
        servers.core, "jobs", message, receipt(5, kind=RETRY), deadline=DEADLINE
    )
    servers.run(flow)
    assert [command.code for _, command in servers.calls[-2:]] == [BACK, ACK]
    fields = servers.fields(BACK)
    assert fields["delayLevel"] == "-1"
    assert fields["offset"] == "5000"
    assert fields["group"] == "jobs"
    assert fields["originTopic"] == "%RETRY%jobs_orders"
    assert fields["originMsgId"] == message.offset_id


def test_dead_letter_that_is_refused_is_not_acknowledged() -> None:
    servers = servers_with()
    servers.answer("a:1", BACK, refusal(ResponseCode.SYSTEM_ERROR))
    (message,) = received(decode_records(record("orders", 5))[0], "a", body_bytes_max=100)
    with pytest.raises(ServerFailure):
        servers.run(
            send_to_dead_letters(servers.core, "jobs", message, receipt(5), deadline=DEADLINE)
        )
    assert not servers.asked(ACK)


# ---- many messages -----------------------------------------------------------------------------


def acked(servers: FakeServers, *receipts: Receipt) -> list[RocketMQError | None]:
    popped = [("orders", each) for each in receipts]
    return servers.run(ack_many(servers.core, "jobs", popped, deadline=DEADLINE))


def batches(servers: FakeServers) -> list[BatchAckBody]:
    return [
        decode_pop_body(BatchAckBody, command.body)
        for _, command in servers.calls
        if command.code == MANY
    ]


def test_messages_of_a_broker_are_acknowledged_in_one_request() -> None:
    servers = servers_with(namespace="prod")
    assert acked(servers, receipt(3), receipt(12), receipt(9, start=9, kind=RETRY)) == [None] * 3
    (batch,) = batches(servers)
    assert batch.broker_name == "a"
    assert batch.acks is not None
    assert [(ack.kind, ack.start, list(ack.offsets())) for ack in batch.acks] == [
        ("0", 3, [3, 12]),
        ("1", 9, [9]),
    ]
    assert {(ack.topic, ack.group) for ack in batch.acks} == {("prod%orders", "prod%jobs")}
    assert batch.acks[0].bits == "AQI="
    assert (batch.acks[0].pop_ms, batch.acks[0].invisible_ms) == (1_000, 60_000)
    assert (batch.acks[0].queue_id, batch.acks[0].revive_queue) == (0, 2)


def test_brokers_are_asked_each_and_failures_are_told_by_message() -> None:
    servers = servers_with(brokers="abc")
    gone = ConnectFailed("b:1", "no")
    servers.answer("b:1", MANY, gone)
    servers.answer("c:1", ACK, refusal(ResponseCode.NO_MESSAGE))
    outcomes = acked(
        servers,
        receipt(3),
        receipt(3, broker="b"),
        receipt(4),
        receipt(3, broker="c"),
        receipt(4, broker="b"),
    )
    assert outcomes[0] is outcomes[2] is None
    assert outcomes[1] is outcomes[4] is gone
    assert isinstance(outcomes[3], NotFound)
    assert servers.asked(MANY) == ["a:1", "b:1"]
    assert servers.asked(ACK) == ["c:1"]


def test_broker_without_batches_gets_one_request_per_message() -> None:
    servers = servers_with()
    servers.answer("a:1", MANY, refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    servers.answer("a:1", ACK, reply(), refusal(ResponseCode.NO_MESSAGE), reply())
    outcomes = acked(servers, receipt(3), receipt(4), receipt(5))
    assert [type(outcome) for outcome in outcomes] == [type(None), NotFound, type(None)]


def test_message_far_from_the_start_of_its_checkpoint_is_acknowledged_alone() -> None:
    servers = servers_with()
    far = 3 + SPAN_MAX
    assert acked(servers, receipt(3), receipt(far), receipt(4)) == [None] * 3
    (batch,) = batches(servers)
    assert batch.acks is not None
    assert [list(ack.offsets()) for ack in batch.acks] == [[3, 4]]
    assert servers.fields(ACK)["offset"] == str(far)


def test_a_request_has_a_limit() -> None:
    servers = servers_with()
    assert acked(servers, *(receipt(3 + index) for index in range(513))) == [None] * 513
    assert len(batches(servers)) == 1
    assert servers.fields(ACK)["offset"] == "515"


def test_nothing_to_acknowledge() -> None:
    assert acked(servers_with()) == []
