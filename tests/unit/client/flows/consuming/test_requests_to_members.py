from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from downrange.client.flows.consuming.member_requests import Member, serve_member
from downrange.model import QueueId, ReceivedMessage
from downrange.wire.bodies import ConsumeDirectlyBody
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.consumer_bodies import RunningStateBody
from tests.unit.client.flows.fake_servers import FakeServers, record, route

if TYPE_CHECKING:
    from downrange.client.flows.effects import Flow

A0 = QueueId("orders", "a", 0)


class Told:
    """A member that keeps what it is asked."""

    message_class = ReceivedMessage

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def members_changed(self) -> None:
        self.asked.append("changed")

    def reset(self, offsets: dict[QueueId, int]) -> Flow[None]:
        self.asked.append(offsets)
        return
        yield

    def positions(self) -> dict[QueueId, int]:
        return {A0: 5, QueueId("refunds", "a", 0): 6}

    def running_state(self) -> RunningStateBody:
        return RunningStateBody()

    def consume_directly(self, message: ReceivedMessage) -> Flow[ConsumeDirectlyBody]:
        self.asked.append((message.topic, message.queue.broker, message.body))
        return ConsumeDirectlyBody(consume_result="CR_SUCCESS")
        yield


class World:
    """A client with a member of the group "jobs"."""

    def __init__(self, namespace: str | None = None) -> None:
        self.servers = FakeServers(namespace=namespace)
        self.member = Told()
        self.group = "jobs" if namespace is None else f"{namespace}%jobs"
        assert isinstance(self.member, Member)
        self.servers.core.consumers[self.group] = self.member  # type: ignore[assignment]
        serve_member(self.servers.core)

    def ask(self, code: RequestCode, body: bytes = b"", **fields: str) -> Any:
        command = Command(int(code), fields, body)
        handler = self.servers.core.handlers[int(code)]
        return self.servers.run(handler("a:1", command))


def test_members_are_told_of_others() -> None:
    world = World()
    for group in ("jobs", "gone"):
        assert world.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, consumerGroup=group) is None
    assert world.member.asked == ["changed"]


def test_offsets_are_reset() -> None:
    world = World("shop")
    body = json.dumps(
        {"offsetTable": [{"topic": "shop%orders", "brokerName": "a", "queueId": 0, "offset": 9}]}
    ).encode()
    for group in ("shop%jobs", "gone"):
        world.ask(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            body,
            topic="shop%orders",
            group=group,
            timestamp="0",
            isForce="true",
        )
    assert world.member.asked == [{A0: 9}]


def test_positions_of_a_topic_are_answered() -> None:
    world = World("shop")
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    answer = world.ask(code, topic="shop%orders", group="shop%jobs")
    assert b"shop%orders" in answer.body
    assert b"refunds" not in answer.body
    missing = world.ask(code, topic="orders", group="gone")
    assert (missing.code, missing.remark) == (1, "this client has no consumer of group gone")


def test_the_running_state_is_answered_with_stacks_if_they_are_asked_for() -> None:
    world = World()
    world.servers.core.read_stacks = lambda: "stacks"
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    without = world.ask(code, consumerGroup="jobs", clientId="c", jstackEnable="false")
    assert b"stacks" not in without.body
    found = world.ask(code, consumerGroup="jobs", clientId="c", jstackEnable="true")
    assert b'"jstack":"stacks"' in found.body
    assert world.ask(code, consumerGroup="gone", clientId="c", jstackEnable="true").code == 1


def test_a_message_is_handled_for_a_tool() -> None:
    world = World()
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    fields = {"consumerGroup": "jobs", "clientId": "c", "msgId": "m"}
    answer = world.ask(code, record("orders", 3), **fields, brokerName="b")
    assert b"CR_SUCCESS" in answer.body
    assert world.member.asked == [("orders", "b", b"x")]
    world.servers.answer_route("orders", route("a"))
    assert world.ask(code, record("orders", 3), **fields).code == 0
    assert world.ask(code, b"", **fields).remark == "the request has no message"
    assert "cannot be read" in world.ask(code, b"\x00\x00", **fields).remark
    assert world.ask(code, record("orders", 3), **fields | {"consumerGroup": "gone"}).code == 1
