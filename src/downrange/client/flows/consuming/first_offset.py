"""Where a group begins in a queue that was just assigned to a member.

At the group's committed offset. Without one, the option `start` counts, and the offset found is
committed at once: a member that is killed before its first commit must not make the next one begin
later, at a newer "latest".
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from downrange.client.flows.consuming.offsets import (
    group_offset,
    max_offset,
    min_offset,
    search_offset,
    set_group_offset,
)
from downrange.client.flows.names import named_queue, with_namespace
from downrange.client.flows.routing.lookup import find_master
from downrange.errors import NoPermission, ServerError
from downrange.model import QueueOffset
from downrange.wire.bodies import GroupOffsetsBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.model import QueueId
    from downrange.options.clients import GroupStart


class FirstOffset(msgspec.Struct, frozen=True):
    """Where a member begins in a queue, and why.

    Attributes:
        offset: The offset of the first message.
        reason: "committed", "latest", "earliest", a time, or "retry topic".
    """

    offset: QueueOffset
    reason: str


def first_offset(
    core: ClientCore, group: str, queue: QueueId, start: GroupStart, *, deadline: float
) -> Flow[FirstOffset]:
    """Return where a group begins in a queue; commit the offset if it had none.

    Raises:
        RocketMQError: The broker did not answer.
    """
    committed = yield from group_offset(core, group, queue, deadline=deadline)
    if committed is not None and (
        committed > 0 or (yield from _is_committed(core, group, queue, start, deadline))
    ):
        return FirstOffset(committed, "committed")
    found = yield from start_offset(core, queue, start, deadline=deadline)
    yield from set_group_offset(core, group, queue, found.offset, deadline=deadline)
    return found


def start_offset(
    core: ClientCore, queue: QueueId, start: GroupStart, *, deadline: float
) -> Flow[FirstOffset]:
    """Return where a group without an offset begins.

    In a retry topic "latest" means its first message: messages in it were sent back by this group.
    With a time it is the next new message, as in Java.

    Raises:
        RocketMQError: The broker did not answer.
    """
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if isinstance(start, datetime) and not is_retry:
        offset = yield from search_offset(core, queue, start, deadline=deadline)
        return FirstOffset(offset, f"first message from {start.isoformat()} on")
    if start == "latest" and not is_retry:
        return FirstOffset((yield from max_offset(core, queue, deadline=deadline)), "latest")
    if isinstance(start, datetime):
        return FirstOffset((yield from max_offset(core, queue, deadline=deadline)), "retry topic")
    try:
        offset = yield from min_offset(core, queue, deadline=deadline)
    except NoPermission:  # 5.x: an account may subscribe, but not ask; the first pull finds it
        offset = QueueOffset(0)
    return FirstOffset(offset, "retry topic" if is_retry else "earliest")


def _is_committed(
    core: ClientCore, group: str, queue: QueueId, start: GroupStart, deadline: float
) -> Flow[bool]:
    """Return whether the group has committed offset 0.

    A 4.9 broker also answers 0 for a group without an offset, if the queue's first message is in
    memory. Then a new group that is to start at "latest" would read the whole history. So the
    broker's table of offsets is read; only a queue with messages needs that. Otherwise 0 is
    committed, so that it is in the table when messages arrive while no member runs.
    """
    if start == "earliest" or (yield from max_offset(core, queue, deadline=deadline)) == 0:
        yield from set_group_offset(core, group, queue, QueueOffset(0), deadline=deadline)
        return True
    named = named_queue(queue, core.options.namespace)
    address = yield from find_master(core, named, deadline)
    try:
        reply = yield from core.ask(
            address, Command(int(RequestCode.GET_ALL_CONSUMER_OFFSET)), deadline
        )
    except ServerError:
        return True  # without the right to read the table: never skip a message
    table = decode_body(GroupOffsetsBody, reply.body).offset_table
    name = with_namespace(group, core.options.namespace)
    return named.number in table.get(f"{named.topic}@{name}", {})
