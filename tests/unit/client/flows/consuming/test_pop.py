from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.pop import (
    Notified,
    PopBatch,
    PopStatus,
    pop,
    wait_for_messages,
)
from downrange.client.flows.consuming.pull import by_sql, by_tags
from downrange.errors import InvalidField, NotSupported, PopNotSupported, TopicNotFound
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.pop_headers import NotificationReply, PopReply
from downrange.wire.pop_receipts import PLAIN, RETRY, Receipt
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

if TYPE_CHECKING:
    from downrange.wire.command import Command

DEADLINE = 130.0
POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
NOTIFICATION = RequestCode.NOTIFICATION


def servers_with(*, namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer_route("orders" if namespace is None else f"{namespace}%orders", route("a"))
    return servers


def popped(body: bytes, *, starts: str | None = "0 0 3", rest: int = 0) -> Command:
    header = PopReply(
        pop_time=1_000,
        invisible_time=60_000,
        revive_qid=2,
        rest_num=rest,
        start_offset_info=starts,
        msg_offset_info="not read",
    )
    return reply(header, body=body)


def run_pop(servers: FakeServers, **settings: Any) -> PopBatch:
    settings = {"invisible": 60.0, "deadline": DEADLINE} | settings
    return servers.run(pop(servers.core, "jobs", "orders", "a", **settings))


def test_pop_brings_messages_with_receipts() -> None:
    servers = servers_with()
    retry = record("orders", 1, properties="POP_CK\x0117 900 60000 5 1 a 0 1\x02")
    body = record("orders", 3) + record("orders", 9, queue=1) + retry
    servers.answer("a:1", POP, popped(body, starts="0 0 3;0 1 8;1 0 1", rest=7))
    batch = run_pop(servers)
    assert batch.status is PopStatus.FOUND
    assert batch.rest_count == 7
    assert batch.asked_at == servers.clock.now()
    assert [each.receipt for each in batch.popped] == [
        Receipt(3, 1_000, 60_000, 2, PLAIN, "a", 0, 3),
        Receipt(8, 1_000, 60_000, 2, PLAIN, "a", 1, 9),
        Receipt(17, 900, 60_000, 5, RETRY, "a", 0, 1),
    ]
    assert [each.message.offset for each in batch.popped] == [3, 9, 1]


def test_pop_says_what_it_wants() -> None:
    servers = servers_with(namespace="prod")
    servers.answer("a:1", POP, refusal(ResponseCode.POLLING_TIMEOUT))
    run_pop(
        servers,
        queue_number=1,
        max_count=8,
        invisible=2.5,
        poll=1.5,
        message_filter=by_sql("amount > 100"),
        start="latest",
    )
    assert servers.fields(POP) == {
        "consumerGroup": "prod%jobs",
        "topic": "prod%orders",
        "queueId": "1",
        "maxMsgNums": "8",
        "invisibleTime": "2500",
        "pollTime": "1500",
        "bornTime": str(servers.clock.wall_ms()),
        "initMode": "1",
        "expType": "SQL92",
        "exp": "amount > 100",
        "order": "false",
    }


def test_pop_that_does_not_wait_has_no_time_so_that_clocks_need_not_agree() -> None:
    servers = servers_with()
    servers.answer("a:1", POP, refusal(ResponseCode.POLLING_TIMEOUT))
    run_pop(servers)
    fields = servers.fields(POP)
    assert (fields["bornTime"], fields["pollTime"], fields["queueId"]) == ("0", "0", "-1")
    assert (fields["exp"], fields["expType"], fields["initMode"]) == ("*", "TAG", "0")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.POLLING_TIMEOUT, PopStatus.EMPTY),
        (ResponseCode.PULL_NOT_FOUND, PopStatus.EMPTY),
        (ResponseCode.NO_MESSAGE, PopStatus.EMPTY),
        (ResponseCode.POLLING_FULL, PopStatus.FULL),
    ],
)
def test_pop_without_messages_says_why(code: ResponseCode, status: PopStatus) -> None:
    servers = servers_with()
    servers.answer("a:1", POP, refusal(code))
    batch = run_pop(servers)
    assert (batch.status, batch.popped, batch.rest_count) == (status, [], 0)


def test_pop_with_an_empty_success() -> None:
    servers = servers_with()
    servers.answer("a:1", POP, popped(b"", starts=None))
    assert run_pop(servers).popped == []


def test_pop_acknowledges_messages_whose_tags_only_have_the_same_hash() -> None:
    servers = servers_with()
    body = record("orders", 3, properties="TAGS\x01AaAa\x02")
    body += record("orders", 4, properties="TAGS\x01BBBB\x02")
    servers.answer("a:1", POP, popped(body))
    servers.answer("a:1", ACK, reply())
    batch = run_pop(servers, message_filter=by_tags("AaAa"))
    assert [each.message.tags for each in batch.popped] == ["AaAa"]
    assert servers.fields(ACK)["offset"] == "4"


def test_pop_acknowledges_nothing_when_all_tags_are_wanted() -> None:
    servers = servers_with()
    servers.answer("a:1", POP, popped(record("orders", 3, properties="TAGS\x01new\x02")))
    assert len(run_pop(servers, message_filter=by_tags("new || paid")).popped) == 1
    assert not servers.asked(ACK)


def test_pop_refused() -> None:
    servers = servers_with()
    servers.answer("a:1", POP, refusal(ResponseCode.TOPIC_NOT_EXIST))
    with pytest.raises(TopicNotFound):
        run_pop(servers)


def test_pop_of_an_old_broker() -> None:
    servers = servers_with()
    servers.answer("a:1", POP, refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    with pytest.raises(PopNotSupported, match="needs RocketMQ 5") as raised:
        run_pop(servers)
    assert isinstance(raised.value, NotSupported)


def test_reply_without_the_start_of_a_queue() -> None:
    servers = servers_with()
    servers.answer("a:1", POP, popped(record("orders", 3, queue=1)))
    with pytest.raises(InvalidField, match="no entry for queue 1"):
        run_pop(servers)


# ---- waiting -----------------------------------------------------------------------------------


def run_wait(servers: FakeServers, poll: float = 5.0) -> Notified:
    flow = wait_for_messages(
        servers.core,
        "jobs",
        "orders",
        "a",
        poll=poll,
        message_filter=by_tags("new"),
        deadline=DEADLINE,
    )
    return servers.run(flow)


def test_wait_says_what_it_waits_for() -> None:
    servers = servers_with(namespace="prod")
    servers.answer("a:1", NOTIFICATION, reply(NotificationReply(has_msg=True)))
    assert run_wait(servers) == Notified(has_messages=True, is_full=False)
    assert servers.fields(NOTIFICATION) == {
        "consumerGroup": "prod%jobs",
        "topic": "prod%orders",
        "queueId": "-1",
        "pollTime": "5000",
        "bornTime": str(servers.clock.wall_ms()),
        "order": "false",
        "expType": "TAG",
        "exp": "new",
    }


def test_wait_may_end_without_a_message() -> None:
    servers = servers_with()
    servers.answer("a:1", NOTIFICATION, reply(NotificationReply(polling_full=True)))
    assert run_wait(servers, 0.0) == Notified(has_messages=False, is_full=True)
    assert servers.fields(NOTIFICATION)["bornTime"] == "0"
    servers.answer("a:1", NOTIFICATION, refusal(ResponseCode.POLLING_TIMEOUT))
    assert run_wait(servers) == Notified(has_messages=False, is_full=False)


def test_wait_refused() -> None:
    servers = servers_with()
    servers.answer("a:1", NOTIFICATION, refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    with pytest.raises(PopNotSupported):
        run_wait(servers)
