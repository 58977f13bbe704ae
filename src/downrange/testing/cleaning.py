"""Deletes what a test left on the embedded cluster, so that the next test finds it empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.admin.changes import delete_topic
from downrange.client.flows.admin.groups import delete_group
from downrange.client.flows.admin.topics import list_topics
from downrange.testing.topic_reader import find_all_masters, find_queue_ends
from downrange.wire.bodies import GroupOffsetsBody, GroupTableBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import AllGroupsRequest
from downrange.wire.system_names import (
    HOLDING_TOPICS,
    REVIVE_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    TRACE_TOPIC,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow

#: System topics whose messages would concern the next test. They cannot be deleted.
_HOLDING: Final = HOLDING_TOPICS | {TRACE_TOPIC}


def clean(core: ClientCore, *, deadline: float) -> Flow[bool]:
    """Delete all topics and groups that are not the servers' own.

    Returns:
        False if that is not enough: a system topic holds messages, such as delayed ones, which
        would be delivered in the next test.

    Raises:
        RocketMQError: A server did not answer.
    """
    masters = yield from find_all_masters(core, deadline=deadline)
    if not masters:  # the test has stopped the broker
        return False
    topics = yield from list_topics(core, deadline=deadline)
    for topic in topics:
        if topic.name in _HOLDING or topic.name.startswith(REVIVE_TOPIC_PREFIX):
            for address in masters.values():
                queues = yield from find_queue_ends(core, address, topic.name, deadline=deadline)
                if any(ends.max_offset for ends in queues.values()):
                    return False
    for topic in topics:
        if topic.kind != "system":
            yield from delete_topic(core, topic.name, deadline=deadline)
    for group in (yield from _find_groups(core, masters.values(), deadline)):
        yield from delete_group(core, group, deadline=deadline)
    return True


def _find_groups(core: ClientCore, addresses: Iterable[str], deadline: float) -> Flow[set[str]]:
    """Return the groups with settings or offsets, without the servers' own."""
    groups: set[str] = set()
    for address in addresses:
        reply = yield from core.ask(address, request_command(AllGroupsRequest()), deadline)
        groups |= decode_body(GroupTableBody, reply.body).subscription_group_table.keys()
        command = Command(int(RequestCode.GET_ALL_CONSUMER_OFFSET))
        reply = yield from core.ask(address, command, deadline)
        places = decode_body(GroupOffsetsBody, reply.body).offset_table
        groups |= {place.rpartition("@")[2] for place in places}
    return {
        group
        for group in groups
        if group not in SYSTEM_GROUPS and not group.startswith(SYSTEM_GROUP_PREFIX)
    }
