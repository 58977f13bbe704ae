"""Request-reply: heartbeats before a request, matching of replies, and what a reply carries."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.effects import Wait
from downrange.client.flows.producing.pending_requests import PendingRequests
from downrange.client.flows.producing.request_reply import reply, reply_to, request
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import ConnectFailed, InvalidMessage, RequestTimedOut, SendFailed
from downrange.model import LogOffset, Message, QueueId, QueueOffset, ReceivedMessage
from downrange.options import ProducerOptions
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.compression import Compression, compress
from downrange.wire.headers import PushReplyRequest
from downrange.wire.properties import decode_properties, encode_properties
from tests.unit.client.flows.fake_servers import refusal, route
from tests.unit.client.flows.producer_world import ProducerWorld

HEART_BEAT, SEND = RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
#: The id that `FakeRandomness` returns.
ID = "00000000-0000-0000-0000-000000000000"
QUOTE = Message("quotes", b"ACME")
REPLY_TOPIC = "C1_REPLY_TOPIC"


def asking(**settings: Any) -> ProducerWorld:
    """Return a producer for requests to "quotes" on broker "a" of cluster "C1"."""
    here = ProducerWorld(**settings)
    body = route(["a"])
    body.broker_datas[0].cluster = "C1"
    name = "quotes" if here.client.options.namespace is None else "ns%quotes"
    here.servers.answer_route(name, body)
    here.servers.answer_route(REPLY_TOPIC, body)
    return here


def ask(here: ProducerWorld, **settings: Any) -> ReceivedMessage:
    rules = here.producer.waiting_rules
    return here.run(request(here.producer, QUOTE, RoundRobin(), rules, **settings))


def push(
    body: bytes = b"12.5", *, correlation_id: str | None = ID, sys_flag: int = 0, topic: str = "R"
) -> Command:
    """Return the push of a broker for a reply."""
    properties = {"UNIQ_KEY": "R1", "TAGS": "t", "MSG_TYPE": "reply"}
    if correlation_id is not None:
        properties["CORRELATION_ID"] = correlation_id
    header = PushReplyRequest(
        producer_group="answering",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=sys_flag,
        born_timestamp=5,
        flag=9,
        born_host="10.0.0.3:1",
        store_host="10.0.0.2:2",
        store_timestamp=6,
        properties=encode_properties(properties),
    )
    return Command(int(PUSH), header.to_fields(), body)


def answered_with(here: ProducerWorld, command: Command) -> None:
    """Deliver a reply while the request waits."""
    here.servers.interpreter.on_wait.append(lambda: here.run(here.client.answer("a:1", command)))


# ---- requests ------------------------------------------------------------------------------------


def test_a_request_carries_its_id_the_client_and_the_time() -> None:
    here = asking()
    answered_with(here, push())
    ask(here, timeout=2.5)
    (command,) = here.sent(SEND)
    properties = decode_properties(command.fields["i"])
    assert properties["CORRELATION_ID"] == ID
    assert properties["REPLY_TO_CLIENT"] == here.client.client_id
    assert properties["TTL"] == "2500"


def test_a_reply_ends_the_request_that_it_belongs_to() -> None:
    here = asking()
    answered_with(here, push())
    reply = ask(here)
    assert (reply.message_id, reply.body, reply.tags, reply.flag) == ("R1", b"12.5", "t", 9)
    assert reply.queue == QueueId("R", "a", 3)
    assert (reply.born_host, reply.born_at_ms, reply.stored_at_ms) == ("10.0.0.3:1", 5, 6)
    assert reply.properties["ARRIVE_TIME"] == str(here.clock.wall_ms())
    assert len(here.producer.requests) == 0


def test_a_compressed_reply_is_unpacked() -> None:
    here = asking()
    packed, sys_flag = compress(b"x" * 5000, Compression.ZSTD)
    answered_with(here, push(packed, sys_flag=sys_flag))
    assert ask(here).body == b"x" * 5000


def test_a_reply_in_a_namespace_has_plain_names() -> None:
    here = asking(namespace="ns")
    answered_with(here, push(topic="ns%R"))
    assert ask(here).topic == "R"


def test_a_reply_may_come_before_the_send_is_answered() -> None:
    here = asking()
    flow = request(here.producer, QUOTE, RoundRobin(), here.producer.waiting_rules)
    effect = next(flow)
    while getattr(getattr(effect, "command", None), "code", None) != SEND:
        effect = flow.send(here.servers.perform(effect))
    here.run(here.client.answer("a:1", push()))
    waiting = flow.send(here.servers.perform(effect))
    assert isinstance(waiting, Wait)
    with pytest.raises(StopIteration) as done:
        flow.send(here.servers.perform(waiting))
    assert done.value.value.body == b"12.5"


def test_a_push_of_a_broker_is_answered() -> None:
    here = asking()
    answered_with(here, push())
    ask(here)
    answer = here.run(here.client.answer("a:1", push()))
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_a_request_without_a_reply_times_out() -> None:
    here = asking()
    with pytest.raises(RequestTimedOut, match=r"no reply came within 2\.5 s") as caught:
        ask(here, timeout=2.5)
    assert (caught.value.topic, caught.value.code) == ("quotes", 10006)
    assert len(here.producer.requests) == 0


def test_a_late_reply_is_counted_and_taken() -> None:
    here = asking()
    with pytest.raises(RequestTimedOut):
        ask(here)
    answer = here.run(here.client.answer("b:1", push()))
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert here.producer.counts.late_replies == 1


@pytest.mark.parametrize("correlation_id", ["of another client", None])
def test_a_reply_to_a_request_of_another_client_is_not_counted_as_late(
    correlation_id: str | None,
) -> None:
    here = asking()
    answered_with(here, push())
    ask(here)
    here.run(here.client.answer("a:1", push(correlation_id=correlation_id)))
    assert here.producer.counts.late_replies == 0


def test_a_reply_that_cannot_be_read_is_refused() -> None:
    here = asking()
    answered_with(here, push(b"no zlib", sys_flag=1))
    with pytest.raises(RequestTimedOut):
        ask(here)
    answer = here.run(here.client.answer("a:1", push(b"no zlib", sys_flag=1)))
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is malformed" in (answer.remark or "")


def test_a_request_that_no_broker_stores_fails_at_once() -> None:
    here = asking()
    here.servers.answer("a:1", SEND, refusal(ResponseCode.MESSAGE_ILLEGAL))
    started = here.clock.now()
    with pytest.raises(SendFailed):
        ask(here)
    assert here.clock.now() == started
    assert len(here.producer.requests) == 0


def test_a_request_that_waits_counts_for_back_pressure() -> None:
    here = asking()
    flow = request(
        here.producer, QUOTE, RoundRobin(), here.producer.submit_rules, timeout=1.0, is_limited=True
    )
    effect = next(flow)
    while not isinstance(effect, Wait):
        effect = flow.send(here.servers.perform(effect))
    assert here.producer.permits.in_flight == 1
    flow.close()
    assert here.producer.permits.in_flight == 0


def test_requests_that_were_given_up_are_forgotten_in_the_end() -> None:
    pending = PendingRequests()
    for number in range(1001):
        pending.open(str(number))
        pending.close(str(number))
    assert not pending.has("0")
    assert pending.has("1")
    assert pending.has("1000")


# ---- heartbeats first ----------------------------------------------------------------------------


def test_brokers_of_topic_and_reply_topic_get_a_heartbeat_before_the_request() -> None:
    here = asking()
    body = route(["a", "b"])
    here.servers.answer_route(REPLY_TOPIC, body)
    here.servers.answer("b:1", HEART_BEAT, Command(0))
    answered_with(here, push())
    ask(here)
    assert here.servers.asked(HEART_BEAT) == ["a:1", "b:1"]
    assert here.codes()[-1] == SEND
    answered_with(here, push())
    ask(here)
    assert here.codes()[-2:] == [SEND, SEND]


def test_a_request_goes_out_although_the_reply_topic_cannot_be_found() -> None:
    here = asking()
    here.servers.answer_route(REPLY_TOPIC, None)
    answered_with(here, push())
    ask(here)
    assert here.servers.asked(HEART_BEAT) == ["a:1"]


def test_a_request_goes_out_although_no_name_server_answers_any_more() -> None:
    here = asking()
    answered_with(here, push())
    ask(here)
    here.client.routes.forget(REPLY_TOPIC)
    here.servers.answer(
        "ns:9876", RequestCode.GET_ROUTEINFO_BY_TOPIC, ConnectFailed("ns:9876", "refused")
    )
    answered_with(here, push())
    assert ask(here).body == b"12.5"


def test_brokers_without_a_cluster_name_get_a_heartbeat_themselves() -> None:
    here = asking()
    here.servers.answer_route("quotes", route(["a"]))
    answered_with(here, push())
    ask(here)
    assert here.servers.asked(HEART_BEAT) == ["a:1"]
    assert here.client.routes.topics() == ["quotes"]


# ---- replies -------------------------------------------------------------------------------------


def received(**properties: str) -> ReceivedMessage:
    """Return a message with these properties."""
    return ReceivedMessage(
        message_id="Q1",
        queue=QueueId("quotes", "a", 0),
        offset=QueueOffset(0),
        body=b"ACME",
        properties=properties,
        offset_id="",
        log_offset=LogOffset(0),
        flag=0,
        born_at_ms=0,
        born_host="",
        stored_at_ms=0,
    )


REQUEST = received(CLUSTER="C1", CORRELATION_ID="X", REPLY_TO_CLIENT="10.0.0.9@1", TTL="3000")


def answer(here: ProducerWorld, to: ReceivedMessage = REQUEST, **settings: Any) -> Command:
    rules = here.producer.waiting_rules
    message = reply_to(to, b"12.5", **settings)
    here.run(reply(here.producer, to, message, RoundRobin(), rules))
    (command,) = here.sent(RequestCode.SEND_REPLY_MESSAGE_V2)
    return command


def test_a_reply_goes_to_the_reply_topic_and_says_whom_it_is_for() -> None:
    here = asking()
    command = answer(here, tags="t", keys=["k"], properties={"colour": "red"})
    assert (command.fields["b"], command.body) == (REPLY_TOPIC, b"12.5")
    properties = decode_properties(command.fields["i"])
    assert (properties["MSG_TYPE"], properties["CORRELATION_ID"]) == ("reply", "X")
    assert (properties["REPLY_TO_CLIENT"], properties["TTL"]) == ("10.0.0.9@1", "3000")
    assert (properties["TAGS"], properties["KEYS"], properties["colour"]) == ("t", "k", "red")


def test_a_reply_to_a_request_without_a_time_has_none() -> None:
    here = asking()
    to = received(CLUSTER="C1", CORRELATION_ID="X", REPLY_TO_CLIENT="10.0.0.9@1")
    assert "TTL" not in decode_properties(answer(here, to).fields["i"])


def test_the_reply_topic_has_no_namespace() -> None:
    here = asking(namespace="ns")
    assert answer(here).fields["b"] == REPLY_TOPIC


def test_replies_are_sent_with_long_names_where_those_are_asked_for() -> None:
    here = asking(options=ProducerOptions(header_version=1))
    (stored,) = here.servers._answers["a:1", int(RequestCode.SEND_REPLY_MESSAGE_V2)]
    here.servers.answer("a:1", RequestCode.SEND_REPLY_MESSAGE, stored)
    message = reply_to(REQUEST, b"12.5")
    flow = reply(here.producer, REQUEST, message, RoundRobin(), here.producer.async_rules)
    here.run(flow)
    assert len(here.sent(RequestCode.SEND_REPLY_MESSAGE)) == 1


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_a_message_that_is_no_request_cannot_be_replied_to(missing: str) -> None:
    here = asking()
    properties = {name: text for name, text in REQUEST.properties.items() if name != missing}
    with pytest.raises(InvalidMessage, match=f"no property {missing}") as caught:
        answer(here, received(**properties))
    assert (caught.value.code, caught.value.topic) == (10007, "quotes")
    assert here.servers.calls == []
