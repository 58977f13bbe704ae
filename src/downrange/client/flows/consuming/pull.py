"""One pull: what lies in a queue from an offset on, and where a reader begins."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from downrange.client.flows.admin.messages import (
    group_offset,
    max_offset,
    min_offset,
    named_queue,
    read_messages,
    search_offset,
)
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.routes import MASTER, find_readable
from downrange.errors import OptionError, RouteNotFound
from downrange.model import QueueId, QueueOffset, ReceivedMessage
from downrange.wire.bodies import CheckClientBody, Subscription
from downrange.wire.codes import PullFlag, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import PullReply, PullRequest

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow

#: Where to begin: where the group is (or at the first message when it has not begun), at the first
#: message there is, at the next one to come, at what was stored from a time on, or at an offset.
Start: TypeAlias = Literal["committed", "earliest", "latest"] | datetime | int

_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)
_SUSPEND: Final = int(PullFlag.SUSPEND)


class Filter(msgspec.Struct, frozen=True):
    """Which messages a reader wants.

    Attributes:
        text: What the broker is told.
        kind: "TAG" or "SQL92".
        tags: The tags that are wanted, all if empty. A broker compares hashes of them only, so
            they are compared again here.
    """

    text: str = "*"
    kind: str = "TAG"
    tags: frozenset[str] = frozenset()


EVERYTHING: Final = Filter()


def by_tags(text: str) -> Filter:
    """Return the filter for tags such as "new || paid"; "*" takes everything."""
    if text.strip() in ("", "*"):
        return EVERYTHING
    tags = frozenset(tag.strip() for tag in text.split("||")) - {""}
    if not tags:
        raise OptionError(f"tags={text!r} names none; write them as 'new || paid'")
    return Filter(text, "TAG", tags)


def by_sql(text: str) -> Filter:
    """Return the filter for an expression over properties, such as "amount > 100"."""
    if not text.strip():
        raise OptionError("the SQL expression is empty")
    return Filter(text, "SQL92")


class PullStatus(Enum):
    """How a pull ended.

    FOUND: There are messages. A filter may have left none of them.
    NO_NEW: The end of the queue.
    NO_MATCH: There are messages, but none that the broker's filter takes.
    MOVED: The queue does not have that offset, or the group was reset; `next_offset` is good.
    """

    FOUND = int(ResponseCode.SUCCESS)
    NO_NEW = int(ResponseCode.PULL_NOT_FOUND)
    NO_MATCH = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    MOVED = int(ResponseCode.PULL_OFFSET_MOVED)


_STATUSES: Final = {status.value: status for status in PullStatus}


class PullBatch(msgspec.Struct, frozen=True):
    """What a pull brought.

    Attributes:
        status: How it ended.
        messages: What was found, in order.
        next_offset: Where to go on.
        min_offset: The queue's first.
        max_offset: The queue's next.
        replica: Id of the replica that the broker wants to be asked next.
    """

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    replica: int = MASTER


class RawPull(msgspec.Struct, frozen=True, gc=False):
    """What a pull brought, undecoded.

    Attributes:
        status: How it ended.
        body: Stored records, back to back, as they lie in the broker's log.
        next_offset: Where to go on.
        min_offset: The queue's first.
        max_offset: The queue's next.
        replica: Id of the replica that the broker wants to be asked next.
    """

    status: PullStatus
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    replica: int = MASTER


def pull(
    core: ClientCore,
    queue: QueueId,
    offset: int,
    *,
    group: str,
    max_count: int = 32,
    message_filter: Filter = EVERYTHING,
    suspend: float = 0.0,
    replica: int = MASTER,
    deadline: float,
) -> Flow[PullBatch]:
    """Read messages of a queue from an offset on; arguments and errors as of `pull_raw`."""
    found = yield from pull_raw(
        core,
        queue,
        offset,
        group=group,
        max_count=max_count,
        message_filter=message_filter,
        suspend=suspend,
        replica=replica,
        deadline=deadline,
    )
    messages = read_messages(core, found.body, queue.broker) if found.body else []
    if message_filter.tags:
        messages = [message for message in messages if message.tags in message_filter.tags]
    return PullBatch(
        found.status,
        messages,
        QueueOffset(found.next_offset),
        QueueOffset(found.min_offset),
        QueueOffset(found.max_offset),
        found.replica,
    )


def pull_raw(
    core: ClientCore,
    queue: QueueId,
    offset: int,
    *,
    group: str,
    max_count: int = 32,
    max_bytes: int | None = None,
    message_filter: Filter = EVERYTHING,
    suspend: float = 0.0,
    replica: int = MASTER,
    deadline: float,
) -> Flow[RawPull]:
    """Read messages of a queue from an offset on, as the bytes that the broker has.

    Args:
        core: The client.
        queue: The queue.
        offset: The first that is message_filter.
        group: In whose name; the broker counts by it.
        max_count: How many at most; a broker gives 32 unless it is set up otherwise.
        max_bytes: How many bytes at most; a broker of ours that is asked for more than the usual
            256 KiB, and for more than 32 messages, gives more.
        message_filter: Which messages. By tags, a broker compares only hashes: compare them again.
        suspend: How long the broker waits for a message when there is none. An Apache broker looks
            at this time every five seconds only, so give a deadline that is later by as much.
        replica: Id of the replica to ask, if it is there.
        deadline: When to give up.

    Raises:
        RouteNotFound: Nobody knows the queue's broker.
        ServerError: The broker refused.
        RocketMQError: The broker did not answer.
    """
    named = named_queue(core, queue)
    address = yield from _find_replica(core, named, replica, deadline)
    header = PullRequest(
        consumer_group=with_namespace(group, core.options.namespace),
        topic=named.topic,
        queue_id=named.number,
        queue_offset=offset,
        max_msg_nums=max_count,
        sys_flag=_SUBSCRIPTION | _SUSPEND if suspend > 0 else _SUBSCRIPTION,
        suspend_timeout_millis=int(suspend * 1000),
        subscription=message_filter.text,
        expression_type=message_filter.kind,
        max_msg_bytes=max_bytes,
    )
    reply = yield from core.call(address, request_command(header), deadline)
    status = _STATUSES.get(reply.code)
    if status is None:
        raise core.refused(reply, address, queue.topic)
    found = PullReply.from_fields(reply.fields)
    return RawPull(
        status,
        reply.body or b"",
        found.next_begin_offset,
        found.min_offset,
        found.max_offset,
        found.suggest_which_broker_id,
    )


def _find_replica(core: ClientCore, queue: QueueId, replica: int, deadline: float) -> Flow[str]:
    """Return the address of the wanted replica, of the master, or of whichever there is."""
    route = yield from find_readable(core, queue.topic, deadline)
    replicas = route.brokers.get(queue.broker)
    if not replicas:
        problem = f" to broker {queue.broker!r}; there are {sorted(route.brokers)}"
        raise RouteNotFound(queue.topic, core.name_servers.addresses, problem)
    return replicas[replica if replica in replicas else min(replicas)]


def check_filter(
    core: ClientCore, topic: str, group: str, message_filter: Filter, deadline: float
) -> Flow[None]:
    """Let a broker look at an SQL expression: in a pull, a broken one would match everything.

    Raises:
        ServerError: The broker does not understand it, or none at all.
        RocketMQError: The broker did not answer.
    """
    namespace = core.options.namespace
    name = with_namespace(topic, namespace)
    route = yield from find_readable(core, name, deadline)
    subscription = Subscription(
        topic=name, sub_string=message_filter.text, expression_type=message_filter.kind
    )
    body = CheckClientBody(
        client_id=core.client_id,
        group=with_namespace(group, namespace),
        subscription_data=subscription,
    )
    command = Command(int(RequestCode.CHECK_CLIENT_CONFIG), body=body.encode())
    address = yield from _find_replica(core, route.readable[0], MASTER, deadline)
    yield from core.ask(address, command, deadline, topic)


def find_start(
    core: ClientCore, queue: QueueId, group: str, start: Start, *, deadline: float
) -> Flow[QueueOffset]:
    """Return the offset that a start means now.

    Raises:
        OptionError: It means nothing.
        RouteNotFound: Nobody knows the queue's broker.
        RocketMQError: The broker did not answer.
    """
    if isinstance(start, int) and start >= 0:
        return QueueOffset(start)
    if isinstance(start, datetime):
        return (yield from search_offset(core, queue, start, deadline=deadline))
    if start == "latest":
        return (yield from max_offset(core, queue, deadline=deadline))
    if start == "committed":
        committed = yield from group_offset(core, group, queue, deadline=deadline)
        if committed is not None:
            return committed
    elif start != "earliest":
        raise OptionError(
            f"start={start!r} is no offset, no datetime, and none of committed, earliest, latest"
        )
    return (yield from min_offset(core, queue, deadline=deadline))
