"""A member on our wire layer, asked by the real brokers on behalf of mqadmin."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from downrange.model import QueueId
from downrange.wire import bodies
from downrange.wire.codes import HeaderCodec, Language, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.consumer_bodies import (
    ConsumeRates,
    ConsumeResult,
    QueueRunningState,
    RunningProperty,
    RunningStateBody,
    decode_reset,
)
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CommitOffsetRequest,
    ConsumeDirectlyRequest,
    ConsumerStatusRequest,
    CreateTopicRequest,
    MembersChangedRequest,
    ResetOffsetRequest,
    RunningStateRequest,
)
from downrange.wire.records import decode_record
from tests.apache import probe
from tests.apache.java_client import message
from tests.conversations.peers import Peer, SocketChannel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tests.apache.cluster import ApacheCluster
    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient


class Member:
    """A push consumer of a group: connected, registered, and asked what brokers ask."""

    def __init__(self, address: str, broker: str, topic: str, group: str) -> None:
        self.peer = Peer(SocketChannel(address), HeaderCodec.JSON)
        self.topic, self.group, self.client_id = topic, group, f"127.0.0.1@{group}"
        self.queue = QueueId(topic, broker, 0)
        self.subscription = bodies.Subscription(topic=topic, sub_version=1)

    def join(self) -> None:
        member = bodies.ConsumerMember(
            group_name=self.group, subscription_data_set=[self.subscription]
        )
        heartbeat = bodies.HeartbeatBody(client_id=self.client_id, consumer_data_set=[member])
        self.succeed(Command(RequestCode.HEART_BEAT, {}, heartbeat.encode()))

    def succeed(self, command: Command) -> Command:
        reply = self.peer.ask(command)
        assert reply.code == ResponseCode.SUCCESS, reply
        return reply

    def answer_while(
        self, ask: Callable[[], str], answers: dict[RequestCode, bytes]
    ) -> tuple[list[Command], str]:
        """Answer requests while a tool runs; return the requests and what the tool printed."""
        requests: list[Command] = []
        with ThreadPoolExecutor(1) as pool:
            printed = pool.submit(ask)
            for code, body in answers.items():
                try:
                    request = self.peer.wait_request(code)
                except TimeoutError:
                    shown = printed.result()
                    raise AssertionError(f"no request {code}; the tool printed {shown}") from None
                self.peer.answer(request, Command(ResponseCode.SUCCESS, {}, body))
                requests.append(request)
            return requests, printed.result()

    def state(self, name_server: str) -> bytes:
        """Return a running state as tools expect it of a push consumer."""
        return RunningStateBody(
            properties={
                RunningProperty.NAME_SERVERS: name_server,
                RunningProperty.CONSUME_TYPE: "CONSUME_PASSIVELY",
                RunningProperty.CLIENT_VERSION: "V5_3_3",
                RunningProperty.THREADS: "20",
                RunningProperty.ORDERLY: "false",
                RunningProperty.STARTED_MS: "1700000000000",
            },
            subscription_set=[self.subscription],
            mq_table={self.queue: QueueRunningState(commit_offset=41, cached_msg_count=42)},
            status_table={self.topic: ConsumeRates(consume_ok_rate=43.5)},
            jstack="a stack of threads",
        ).encode()


@pytest.fixture
def member(apache: ApacheCluster, unique_name: UniqueName) -> Iterator[Member]:
    broker = apache.brokers[0]
    member = Member(broker.address, broker.name, unique_name("topic"), unique_name("group"))
    topic = CreateTopicRequest(
        topic=member.topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
    )
    member.succeed(request_command(topic))
    member.join()
    # The name server learns of the retry topic, where mqadmin looks for a group, a moment later.
    wait_until(lambda: probe.route(apache.name_server, f"%RETRY%{member.group}"))
    yield member
    member.peer.close()


def test_mqadmin_shows_the_running_state_of_a_member(
    apache: ApacheCluster, java_client: JavaClient, member: Member
) -> None:
    answers = {RequestCode.GET_CONSUMER_RUNNING_INFO: member.state(apache.name_server)}

    def tool(*arguments: str) -> str:
        return java_client.mqadmin(apache.name_server, *arguments, "-g", member.group)

    connections = tool("consumerConnection")
    assert member.client_id in connections
    assert "CLUSTERING" in connections
    [request], shown = member.answer_while(
        lambda: tool("consumerStatus", "-i", member.client_id, "-s"), answers
    )
    header = RunningStateRequest.from_fields(request.fields)
    assert (header.consumer_group, header.client_id) == (member.group, member.client_id)
    assert header.jstack_enable
    for text in ("V5_3_3", member.topic, "41", "42", "43.5", "a stack of threads"):
        assert text in shown
    _, listed = member.answer_while(lambda: tool("consumerStatus"), answers)
    assert member.client_id in listed
    assert "Rebalance OK" in listed


def test_a_broker_collects_the_offsets_of_a_member(apache: ApacheCluster, member: Member) -> None:
    body = bodies.ConsumerStatusBody(message_queue_table={member.queue: 4711})
    question = ConsumerStatusRequest(topic=member.topic, group=member.group)
    tool = Peer(SocketChannel(apache.brokers[0].address), HeaderCodec.JSON)
    call = tool.start(
        request_command(question, code=RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    )
    request = member.peer.wait_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    assert ConsumerStatusRequest.from_fields(request.fields) == question
    member.peer.answer(request, Command(ResponseCode.SUCCESS, {}, body.encode()))
    collected = bodies.decode_body(bodies.ConsumerStatusBody, tool.finish(call).body)
    assert collected.consumer_table == {member.client_id: {member.queue: 4711}}
    tool.close()


def test_a_member_handles_a_message_for_mqadmin(
    apache: ApacheCluster, java_client: JavaClient, member: Member, unique_name: UniqueName
) -> None:
    producer = java_client.start_producer(apache.name_server, unique_name("producers"))
    [sent] = java_client.send(producer, [message(member.topic, b"now")])
    java_client.stop(producer)
    result = bodies.ConsumeDirectlyBody(
        consume_result=ConsumeResult.THREW, remark="our remark", spent_time_mills=44
    )
    which = ["-i", sent["offsetMsgId"], "-g", member.group, "-d", member.client_id]
    answers = {RequestCode.CONSUME_MESSAGE_DIRECTLY: result.encode()}
    if apache.version.startswith("5."):  # it looks first whether the member is a push consumer
        which += ["-t", member.topic]
        state = member.state(apache.name_server)
        answers = {RequestCode.GET_CONSUMER_RUNNING_INFO: state, **answers}
    (*_, request), shown = member.answer_while(
        lambda: java_client.mqadmin(apache.name_server, "queryMsgById", *which), answers
    )
    header = ConsumeDirectlyRequest.from_fields(request.fields)
    assert (header.consumer_group, header.client_id) == (member.group, member.client_id)
    assert header.msg_id == sent["offsetMsgId"]
    assert decode_record(request.body).body == b"now"
    for text in ("CR_THROW_EXCEPTION", "our remark", "44"):
        assert text in shown


@contextmanager
def _resets_by_request(apache: ApacheCluster, member: Member) -> Generator[None]:
    """Have a 5.x broker inform members of a reset, which is not its default."""
    if apache.version.startswith("4."):
        yield
        return
    setting = b"useServerSideResetOffset="
    member.succeed(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, setting + b"false"))
    try:
        yield
    finally:
        member.succeed(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, setting + b"true"))


def test_the_tool_that_resets_a_group_decides_about_the_form_of_the_offsets(
    apache: ApacheCluster, member: Member
) -> None:
    """The member has the language PYTHON in all cases."""
    offset = CommitOffsetRequest(
        consumer_group=member.group, topic=member.topic, queue_id=0, commit_offset=0
    )
    member.succeed(request_command(offset))
    tool = Peer(SocketChannel(apache.brokers[0].address), HeaderCodec.JSON)
    with _resets_by_request(apache, member):
        for language, begin in (
            (Language.JAVA, b'{"offsetTable":{{'),
            (Language.PYTHON, b'{"offsetTable":{{'),
            (Language.CPP, b'{"offsetTable":[{'),
        ):
            reset = ResetOffsetRequest(
                topic=member.topic, group=member.group, timestamp=0, is_force=True
            )
            command = request_command(reset, code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
            command.language = language
            reply = tool.ask(command)
            assert reply.code == ResponseCode.SUCCESS, reply
            request = member.peer.wait_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
            assert request.body.startswith(begin)
            assert decode_reset(request.body) == {member.queue: 0}
            header = ResetOffsetRequest.from_fields(request.fields)
            assert (header.topic, header.group) == (member.topic, member.group)
    tool.close()


def test_a_member_is_informed_of_another_one(apache: ApacheCluster, member: Member) -> None:
    broker = apache.brokers[0]
    other = Member(broker.address, broker.name, member.topic, member.group)
    other.client_id += "-2"
    other.join()
    request = member.peer.wait_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert MembersChangedRequest.from_fields(request.fields).consumer_group == member.group
    other.peer.close()
