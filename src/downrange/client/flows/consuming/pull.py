"""One pull: the request for messages of a queue from an offset on, its filters and its reply."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, overload

import msgspec

from downrange.client.flows.names import named_queue, with_namespace, without_namespace
from downrange.client.flows.routing.lookup import find_readable, find_replica, refresh_route
from downrange.client.flows.routing.routes import MASTER
from downrange.errors import OptionError, QueueMoved
from downrange.filters.sql import Sql
from downrange.model import QueueId, QueueOffset, ReceivedMessage
from downrange.wire.bodies import CheckClientBody, Subscription
from downrange.wire.codes import PullFlag, ReleaseVersion, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import PullReply, PullRequest
from downrange.wire.reply_messages import MessageT, messages_in, place

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow

_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)
_SUSPEND: Final = int(PullFlag.SUSPEND)


class Filter(msgspec.Struct, frozen=True):
    """Which messages to read.

    Attributes:
        text: The expression for the broker.
        kind: "TAG" or "SQL92".
        tags: The tags to read, all if empty. A broker compares only hashes of tags, so `pull`
            compares the tags again.
        sql: The checked expression of the kind "SQL92".
    """

    text: str = "*"
    kind: str = "TAG"
    tags: frozenset[str] = frozenset()
    sql: Sql | None = None


EVERYTHING: Final = Filter()


def by_tags(text: str) -> Filter:
    """Return the filter for tags such as "new || paid"; "*" reads everything."""
    if text.strip() in ("", "*"):
        return EVERYTHING
    tags = frozenset(tag.strip() for tag in text.split("||")) - {""}
    if not tags:
        raise OptionError(f"tags={text!r} contains no tag; write tags as 'new || paid'")
    return Filter(text, "TAG", tags)


def by_sql(sql: str | Sql) -> Filter:
    """Return the filter for an expression over properties, such as "amount > 100".

    Raises:
        InvalidSql: The expression is wrong.
    """
    checked = sql if isinstance(sql, Sql) else Sql(sql)
    return Filter(checked.expression, "SQL92", sql=checked)


class PullStatus(Enum):
    """How a pull ended.

    FOUND: There are messages; the comparison of tags may have removed all of them.
    NO_NEW: The offset is the end of the queue.
    NO_MATCH: There are messages, but none that matches the filter.
    MOVED: The queue does not have that offset, or the group was reset; `next_offset` is valid.
    """

    FOUND = int(ResponseCode.SUCCESS)
    NO_NEW = int(ResponseCode.PULL_NOT_FOUND)
    NO_MATCH = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    MOVED = int(ResponseCode.PULL_OFFSET_MOVED)


_STATUSES: Final = {status.value: status for status in PullStatus}


class PullBatch(msgspec.Struct, frozen=True):
    """The result of a pull.

    Attributes:
        status: How it ended.
        messages: The messages, in order.
        next_offset: The offset for the next pull.
        min_offset: The offset of the queue's first message.
        max_offset: The offset that the queue's next message will get.
        replica: Id of the replica that the broker suggests for the next pull.
        version: The broker's release, a number of Java's version enum.
    """

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    replica: int = MASTER
    version: int = 0


class RawPull(msgspec.Struct, frozen=True, gc=False):
    """The result of a pull, with the records not decoded.

    Attributes:
        status: How it ended.
        body: Stored records, one after the other, in the format of the commit log.
        next_offset: The offset for the next pull.
        min_offset: The offset of the queue's first message.
        max_offset: The offset that the queue's next message will get.
        replica: Id of the replica that the broker suggests for the next pull.
        offset_delta: For a queue of a static topic: what to add to the offsets of the records.
            Their queue numbers are those of the broker's own queue. None for other topics.
        version: The broker's release, a number of Java's version enum.
    """

    status: PullStatus
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    replica: int = MASTER
    offset_delta: int | None = None
    version: int = 0


def pull(
    core: ClientCore,
    queue: QueueId,
    offset: int,
    *,
    group: str,
    max_count: int = 32,
    max_bytes: int | None = None,
    message_filter: Filter = EVERYTHING,
    subscription_version: int | None = None,
    suspend: float = 0.0,
    replica: int = MASTER,
    deadline: float,
    decode_body: bool = True,
    message_class: type[ReceivedMessage] = ReceivedMessage,
) -> Flow[PullBatch]:
    """Read messages of a queue from an offset on; for arguments and errors see `pull_raw`.

    Without `decode_body`, bodies stay compressed. For `message_class` see `read_messages`.
    """
    found = yield from pull_raw(
        core,
        queue,
        offset,
        group=group,
        max_count=max_count,
        max_bytes=max_bytes,
        message_filter=message_filter,
        subscription_version=subscription_version,
        suspend=suspend,
        replica=replica,
        deadline=deadline,
    )
    messages = read_messages(
        core, found.body, queue.broker, decode_body=decode_body, message_class=message_class
    )
    if found.offset_delta is not None:
        _place_in(messages, queue, found.offset_delta)
    if message_filter.tags:
        messages = [message for message in messages if message.tags in message_filter.tags]
    return PullBatch(
        found.status,
        messages,
        QueueOffset(found.next_offset),
        QueueOffset(found.min_offset),
        QueueOffset(found.max_offset),
        found.replica,
        found.version,
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
    subscription_version: int | None = None,
    suspend: float = 0.0,
    replica: int = MASTER,
    deadline: float,
) -> Flow[RawPull]:
    """Read messages of a queue from an offset on, as encoded records.

    Args:
        core: The client.
        queue: The queue, without the namespace.
        offset: The first offset to read.
        group: The consumer group; the broker keeps statistics by it.
        max_count: Most messages; a broker returns at most 32 unless it is configured otherwise.
        max_bytes: Most bytes. Our own broker returns more than the usual 256 KiB when both this
            and `max_count` ask for more than the defaults.
        message_filter: Which messages. A broker compares only hashes of tags: compare them again.
        subscription_version: For a member of a group: the broker goes by the subscription of this
            version that the heartbeat brought, instead of one in the request.
        suspend: Seconds that the broker waits for a message when there is none. An Apache broker
            checks this time only every five seconds, so make the deadline later by that much.
        replica: Id of the replica to read from, if the route has it.
        deadline: When to give up.

    Raises:
        RouteNotFound: No route names the queue's broker.
        ServerError: The broker refused.
        RocketMQError: The broker did not answer.
    """
    named = named_queue(queue, core.options.namespace)
    is_member = subscription_version is not None
    header = PullRequest(
        consumer_group=with_namespace(group, core.options.namespace),
        topic=named.topic,
        queue_id=named.number,
        queue_offset=offset,
        max_msg_nums=max_count,
        sys_flag=(0 if is_member else _SUBSCRIPTION) | (_SUSPEND if suspend > 0 else 0),
        suspend_timeout_millis=int(suspend * 1000),
        sub_version=subscription_version or 0,
        subscription=None if is_member else message_filter.text,
        expression_type=message_filter.kind,
        max_msg_bytes=max_bytes,
    )
    try:
        return (yield from _pull_from(core, named, replica, header, deadline))
    except QueueMoved:
        yield from refresh_route(core, named.topic, deadline)
    return (yield from _pull_from(core, named, replica, header, deadline))


def _pull_from(
    core: ClientCore, queue: QueueId, replica: int, header: PullRequest, deadline: float
) -> Flow[RawPull]:
    address = yield from find_replica(core, queue, replica, deadline)
    reply = yield from core.call(address, request_command(header), deadline)
    status = _STATUSES.get(reply.code)
    if status is None:
        topic = without_namespace(queue.topic, core.options.namespace)
        raise core.refused(reply, address, topic)
    found = PullReply.from_fields(reply.fields)
    return RawPull(
        status,
        reply.body or b"",
        found.next_begin_offset,
        found.min_offset,
        found.max_offset,
        found.suggest_which_broker_id,
        found.offset_delta,
        reply.version,
    )


def _place_in(messages: list[ReceivedMessage], queue: QueueId, delta: int) -> None:
    """Give messages of a physical queue the logical queue that they belong to."""
    for message in messages:
        place(message, queue, message.offset + delta)


@overload
def read_messages(
    core: ClientCore, body: bytes, broker: str, *, decode_body: bool = True
) -> list[ReceivedMessage]: ...
@overload
def read_messages(
    core: ClientCore,
    body: bytes,
    broker: str,
    *,
    decode_body: bool = True,
    message_class: type[MessageT],
) -> list[MessageT]: ...
def read_messages(
    core: ClientCore,
    body: bytes,
    broker: str,
    *,
    decode_body: bool = True,
    message_class: type[ReceivedMessage] = ReceivedMessage,
) -> list[Any]:
    """Return the messages in the body of a reply, without the namespace in their topics.

    All checks are made here; reading a field of a message cannot fail (`wire/reply_messages.py`).

    Args:
        core: The client.
        body: The body of the reply.
        broker: The name of the broker that sent it.
        decode_body: Whether to decompress bodies.
        message_class: The class of the messages, see `messages_in`.

    Raises:
        MalformedRecord: A record is damaged.
        MalformedBody: A body cannot be decompressed, or an inner batch is malformed.
    """
    options, namespace = core.options, core.options.namespace
    return messages_in(
        body,
        broker,
        message_class,
        body_bytes_max=options.body_bytes_max if decode_body else None,
        shown_topic=partial(without_namespace, namespace=namespace) if namespace else None,
    )


def check_filter(
    core: ClientCore, topic: str, group: str, message_filter: Filter, deadline: float
) -> Flow[None]:
    """Let a broker check an SQL expression: in a pull, a malformed one would match everything.

    Raises:
        SqlNotSupported: The broker has SQL filters switched off.
        InvalidSql: The broker is too old for the expression.
        ServerError: The broker refuses the expression.
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
    # A static topic may have queues that no broker serves now.
    served = (queue for queue in route.readable if route.broker_of(queue) in route.brokers)
    queue = next(served, route.readable[0])
    address = yield from find_replica(core, queue, MASTER, deadline)
    reply = yield from core.ask(address, command, deadline, topic)
    sql = message_filter.sql
    if sql is not None and sql.has_search and reply.version < ReleaseVersion.V5_1_3:
        raise sql.refused_by_old_broker(address)  # it would ignore a part of the expression
