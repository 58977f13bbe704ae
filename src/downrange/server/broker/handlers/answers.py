"""Shared by handlers: their type, immediate answers, groups and topics created on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from downrange.server.outputs import Output, Peer, Reply, TablesChanged, refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.server.broker.state import BrokerState
    from downrange.wire.bodies import GroupConfig, TopicConfig
    from downrange.wire.fields import Header

    #: A function of the broker, the request, its sender and the time. A request without a `Reply`
    #: among its outputs is answered later, by a `LateReply`.
    Handler: TypeAlias = Callable[[BrokerState, Command, Peer, int], Sequence[Output]]


def succeed(
    header: Header | None = None, body: bytes = b"", remark: str | None = None
) -> list[Output]:
    """Answer at once: success."""
    return [Reply(Command(0, {} if header is None else header.to_fields(), body, remark))]


def refuse(code: ResponseCode, remark: str) -> list[Output]:
    """Answer at once: refused, and why."""
    return [Reply(refusal(code, remark))]


def sending_forbidden(state: BrokerState, what: str = "message") -> Command:
    """Return the refusal of a send that the broker's settings forbid, in Apache's words."""
    remark = f"the broker[{state.host.host}] sending {what} is forbidden"
    return refusal(ResponseCode.NO_PERMISSION, remark)


def succeed_when_saved(state: BrokerState, body: bytes = b"") -> list[Output]:
    """Answer success as soon as the tables are saved as they are now.

    A repeated request changes nothing, but waits too: the first one may not be saved yet.
    """
    return [TablesChanged(state.tables_version, is_confirmed=True), *succeed(body=body)]


def ensure_group(
    state: BrokerState, group: str, now_ms: int, outputs: list[Output]
) -> GroupConfig | None:
    """Return a group's settings; create the group if it is missing and that is allowed.

    Args:
        state: The broker.
        group: The group's name.
        now_ms: The time.
        outputs: Gets a `TablesChanged` if the group was created.
    """
    config = state.groups.get(group)
    if config is None:
        config = state.groups.get_or_create(group, state.options, now_ms)
        if config is not None:
            outputs.append(TablesChanged(state.tables_version))
    return config


def ensure_topic(
    state: BrokerState, topic: str, queues: int, perm: int, now_ms: int, outputs: list[Output]
) -> TopicConfig:
    """Return a topic's settings; create the topic if it is missing.

    Args:
        state: The broker.
        topic: The topic's name.
        queues: How many queues a new topic has.
        perm: Permissions of a new topic.
        now_ms: The time.
        outputs: Gets a `TablesChanged` if the topic was created.
    """
    config = state.topics.get(topic)
    if config is None:
        config = state.topics.ensure(topic, queues, perm, now_ms)
        outputs.append(TablesChanged(state.tables_version))
    return config
