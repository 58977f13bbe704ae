"""What brokers ask the members of a group, for other members and for tools.

Codes served: 40 NOTIFY_CONSUMER_IDS_CHANGED (members came or went), 220
RESET_CONSUMER_CLIENT_OFFSET, 221 GET_CONSUMER_STATUS_FROM_CLIENT (offsets), 307
GET_CONSUMER_RUNNING_INFO, 309 CONSUME_MESSAGE_DIRECTLY. They are registered once per client, and
find the member by the group in the request.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from downrange.client.flows.consuming.pull import read_messages
from downrange.client.flows.effects import UserCall
from downrange.client.flows.names import named_queue, shown_queue, with_namespace
from downrange.errors import RocketMQError
from downrange.wire.bodies import ConsumerStatusBody
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.consumer_bodies import decode_reset
from downrange.wire.headers import (
    ConsumeDirectlyRequest,
    ConsumerStatusRequest,
    MembersChangedRequest,
    ResetOffsetRequest,
    RunningStateRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.model import QueueId, ReceivedMessage
    from downrange.wire.bodies import ConsumeDirectlyBody
    from downrange.wire.consumer_bodies import RunningStateBody

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_FAILURE: Final = int(ResponseCode.SYSTEM_ERROR)


@runtime_checkable
class Member(Protocol):
    """A member of a group that brokers may ask.

    Attributes:
        message_class: The class of the messages that it handles.
    """

    message_class: type[ReceivedMessage]

    def members_changed(self) -> None:
        """Divide the queues anew."""
        ...

    def reset(self, offsets: dict[QueueId, int]) -> Flow[None]:
        """Continue queues, without the namespace, at other offsets."""
        ...

    def positions(self) -> dict[QueueId, int]:
        """Return the offsets that the member has reached."""
        ...

    def running_state(self) -> RunningStateBody:
        """Return its state, for tools."""
        ...

    def consume_directly(self, message: ReceivedMessage) -> Flow[ConsumeDirectlyBody]:
        """Handle a message now, out of turn; offsets stay as they are."""
        ...


def serve_member(core: ClientCore) -> None:
    """Answer the requests of brokers to the members of groups."""
    table: dict[RequestCode, Callable[[ClientCore, str, Command], Flow[Command | None]]] = {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _members_changed,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _positions,
        RequestCode.GET_CONSUMER_RUNNING_INFO: _running_state,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    }
    for code, answer in table.items():
        core.handlers[int(code)] = partial(answer, core)


def _members_changed(core: ClientCore, address: str, command: Command) -> Flow[Command | None]:
    del address
    group = MembersChangedRequest.from_fields(command.fields).consumer_group
    member = core.consumers.get(group)
    if isinstance(member, Member):
        member.members_changed()
    return None
    yield  # a flow


def _reset(core: ClientCore, address: str, command: Command) -> Flow[Command | None]:
    del address
    header = ResetOffsetRequest.from_fields(command.fields)
    member = core.consumers.get(header.group)
    if isinstance(member, Member):
        namespace = core.options.namespace
        offsets = decode_reset(command.body)
        yield from member.reset(
            {shown_queue(queue, namespace): offset for queue, offset in offsets.items()}
        )
    return None  # brokers send it without waiting for an answer


def _positions(core: ClientCore, address: str, command: Command) -> Flow[Command | None]:
    del address
    header = ConsumerStatusRequest.from_fields(command.fields)
    member = core.consumers.get(header.group)
    if not isinstance(member, Member):
        return _not_here(header.group)
    named = {
        named_queue(queue, core.options.namespace): offset
        for queue, offset in member.positions().items()
    }
    topic = with_namespace(header.topic, core.options.namespace)
    table = {queue: offset for queue, offset in named.items() if queue.topic == topic}
    return Command(_SUCCESS, body=ConsumerStatusBody(message_queue_table=table).encode())
    yield  # a flow


def _running_state(core: ClientCore, address: str, command: Command) -> Flow[Command | None]:
    del address
    header = RunningStateRequest.from_fields(command.fields)
    member = core.consumers.get(header.consumer_group)
    if not isinstance(member, Member):
        return _not_here(header.consumer_group)
    state = member.running_state()
    if header.jstack_enable:
        state.jstack = yield UserCall(core.read_stacks)
    return Command(_SUCCESS, body=state.encode())


def _consume_directly(core: ClientCore, address: str, command: Command) -> Flow[Command | None]:
    header = ConsumeDirectlyRequest.from_fields(command.fields)
    member = core.consumers.get(header.consumer_group)
    if not isinstance(member, Member):
        return _not_here(header.consumer_group)
    broker = header.broker_name or core.routes.broker_at(address) or ""
    try:
        messages = read_messages(core, command.body, broker, message_class=member.message_class)
    except RocketMQError as error:
        return Command(_FAILURE, remark=f"the message cannot be read: {error}")
    if not messages:
        return Command(_FAILURE, remark="the request has no message")
    result = yield from member.consume_directly(messages[0])
    return Command(_SUCCESS, body=result.encode())


def _not_here(group: str) -> Command:
    remark = f"this client has no consumer of group {group}"
    return Command(_FAILURE, remark=remark)
