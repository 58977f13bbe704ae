"""The permissions that each request code needs; one table for brokers and name servers.

To read a topic, or information about it, needs SUB, to write to it PUB; a consumer group needs
SUB. Requests about the whole broker, requests that change more than the progress of a group, and
all codes that are not in the table need an administrator.

This is stricter than Apache: 4.9 allows most codes to every signed request, among them batches and
changes of the access file. Here every request that names a topic or a group needs a permission for
it. A request that gives a position in the log instead (33, 36) must name the topic it expects
there; its handler compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from downrange.wire.bodies import (
    AssignmentQueryBody,
    Body,
    CheckClientBody,
    HeartbeatBody,
    LockQueuesBody,
    decode_body,
)
from downrange.wire.codes import RequestCode as Code
from downrange.wire.system_names import HANDOVER_SUFFIX, RETRY_PREFIX

DENY: Final = 0
PUB: Final = 1
SUB: Final = 2

ResourceKind: TypeAlias = Literal["topic", "group"]


class Role(Enum):
    """The accounts that may send a request at all."""

    ANYONE = "every account"
    ADMIN = "administrators"


class Resource(NamedTuple):
    """A topic or group in the body of a request, with the permission that it needs."""

    kind: ResourceKind
    name: str
    permission: int


class FieldResource(NamedTuple):
    """A topic or group in a header field.

    Attributes:
        field: The name of the field.
        is_optional: Whether the field may be absent.
        group_field: The field of the group, if the topic may be pop's retry topic of that group;
            see `popped_topic`.
    """

    kind: ResourceKind
    field: str
    permission: int
    is_optional: bool = False
    group_field: str | None = None


class Need(msgspec.Struct, frozen=True):
    """The permissions that one request code needs.

    Attributes:
        fields: Resources in header fields.
        read_body: Returns the resources in the body; may raise `MalformedBody`.
        role: The accounts that may send it at all.
        is_of_names: A name server allows it without an account, unless the rules forbid that.
    """

    fields: tuple[FieldResource, ...] = ()
    read_body: Callable[[bytes], Iterator[Resource]] | None = None
    role: Role = Role.ANYONE
    is_of_names: bool = False


# ---- resources in bodies -------------------------------------------------------------------------


class PopAcknowledgement(Body):
    """The needed part of one entry in a batch of acknowledgements (Java: BatchAck)."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")


class PopAcknowledgementsBody(Body):
    """A batch of acknowledgements (Java: BatchAckMessageRequestBody, 5.x)."""

    acks: list[PopAcknowledgement]


def popped_topic(topic: str, group: str) -> str:
    """Return the topic whose permission is needed, where a topic may be pop's retry topic.

    A message that was delivered before is popped from `%RETRY%group_topic`, and its receipt is
    acknowledged there. Java clients that let the broker share the queues subscribe to it. The name
    is ambiguous: it is also that of the retry topic of a group "group_topic". So it is read in this
    way for requests that show no messages, and not for pulls.
    """
    return topic.removeprefix(f"{RETRY_PREFIX}{group}_") or topic


def _to_read(group: str, *topics: str) -> Iterator[Resource]:
    yield Resource("group", group, SUB)
    for topic in topics:
        yield Resource("topic", topic, SUB)


def _of_heartbeat(body: bytes) -> Iterator[Resource]:
    for member in decode_body(HeartbeatBody, body).consumer_data_set:
        yield from _to_read(
            member.group_name,
            *(
                popped_topic(subscription.topic, member.group_name)
                for subscription in member.subscription_data_set
            ),
        )


def _of_locks(body: bytes) -> Iterator[Resource]:
    locks = decode_body(LockQueuesBody, body)
    group = locks.consumer_group.removesuffix(HANDOVER_SUFFIX)
    return _to_read(group, *{queue.topic: None for queue in locks.mq_set})


def _of_client_check(body: bytes) -> Iterator[Resource]:
    check = decode_body(CheckClientBody, body)
    return _to_read(check.group, check.subscription_data.topic)


def _of_assignment(body: bytes) -> Iterator[Resource]:
    query = decode_body(AssignmentQueryBody, body)
    return _to_read(query.consumer_group, popped_topic(query.topic, query.consumer_group))


def _of_pop_acknowledgements(body: bytes) -> Iterator[Resource]:
    for entry in decode_body(PopAcknowledgementsBody, body).acks:
        yield from _to_read(entry.group, popped_topic(entry.topic, entry.group))


# ---- the table -----------------------------------------------------------------------------------

ADMIN: Final = Need(role=Role.ADMIN)
_SIGNED_IN: Final = Need()
_ROUTES: Final = Need(is_of_names=True)
_REGISTRATION: Final = Need(role=Role.ADMIN, is_of_names=True)

_READ_TOPIC: Final = FieldResource("topic", "topic", SUB)
_MAYBE_READ_TOPIC: Final = FieldResource("topic", "topic", SUB, is_optional=True)
_RECEIPT_TOPIC: Final = FieldResource("topic", "topic", SUB, group_field="consumerGroup")
_CONSUMER_GROUP: Final = FieldResource("group", "consumerGroup", SUB)
_GROUP: Final = FieldResource("group", "group", SUB)

_TABLE: Final[tuple[tuple[Need, tuple[Code, ...]], ...]] = (
    # Writing. A 4.9 client ends a transaction without naming the topic.
    (
        Need((FieldResource("topic", "topic", PUB),)),
        (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE, Code.RECALL_MESSAGE),
    ),
    (
        Need((FieldResource("topic", "b", PUB),)),
        (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2),
    ),
    (Need((FieldResource("topic", "topic", PUB, is_optional=True),)), (Code.END_TRANSACTION,)),
    # Reading, and the progress of a group in a topic.
    (
        Need((_READ_TOPIC, _CONSUMER_GROUP)),
        (
            Code.PULL_MESSAGE,
            Code.LITE_PULL_MESSAGE,
            Code.QUERY_CONSUMER_OFFSET,
            Code.UPDATE_CONSUMER_OFFSET,
            Code.POP_MESSAGE,
            Code.PEEK_MESSAGE,
            Code.NOTIFICATION,
            Code.POLLING_INFO,
        ),
    ),
    (
        Need((_RECEIPT_TOPIC, _CONSUMER_GROUP)),
        (Code.ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME),
    ),
    (
        Need((_READ_TOPIC, _GROUP)),
        (
            Code.INVOKE_BROKER_TO_RESET_OFFSET,
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            Code.QUERY_CONSUME_TIME_SPAN,
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
        ),
    ),
    (
        Need((FieldResource("topic", "originTopic", SUB), _GROUP)),
        (Code.CONSUMER_SEND_MSG_BACK,),
    ),
    (
        Need((_READ_TOPIC,)),
        (
            Code.QUERY_MESSAGE,
            Code.VIEW_MESSAGE_BY_ID,
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            Code.GET_MAX_OFFSET,
            Code.GET_MIN_OFFSET,
            Code.GET_EARLIEST_MSG_STORETIME,
            Code.GET_TOPIC_STATS_INFO,
            Code.GET_TOPIC_CONFIG,
            Code.QUERY_TOPIC_CONSUME_BY_WHO,
        ),
    ),
    # Groups and their members.
    (
        Need((_CONSUMER_GROUP,)),
        (
            Code.GET_CONSUMER_LIST_BY_GROUP,
            Code.GET_CONSUMER_CONNECTION_LIST,
            Code.GET_CONSUMER_RUNNING_INFO,
        ),
    ),
    (Need((_CONSUMER_GROUP, _MAYBE_READ_TOPIC)), (Code.GET_CONSUME_STATS,)),
    (Need((_GROUP,)), (Code.QUERY_TOPICS_BY_CONSUMER, Code.GET_SUBSCRIPTIONGROUP_CONFIG)),
    (
        Need((FieldResource("group", "consumerGroup", SUB, is_optional=True),)),
        (Code.UNREGISTER_CLIENT,),
    ),
    (Need(read_body=_of_heartbeat), (Code.HEART_BEAT,)),
    (Need(read_body=_of_locks), (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ)),
    (Need(read_body=_of_client_check), (Code.CHECK_CLIENT_CONFIG,)),
    (Need(read_body=_of_assignment), (Code.QUERY_ASSIGNMENT,)),
    (Need(read_body=_of_pop_acknowledgements), (Code.BATCH_ACK_MESSAGE,)),
    # Requests about neither a topic nor a group.
    (_SIGNED_IN, (Code.GET_BROKER_RUNTIME_INFO, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)),
    # The broker as a whole.
    (
        ADMIN,
        (
            Code.UPDATE_AND_CREATE_TOPIC,
            Code.UPDATE_AND_CREATE_TOPIC_LIST,
            Code.DELETE_TOPIC_IN_BROKER,
            Code.GET_ALL_TOPIC_CONFIG,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            Code.DELETE_SUBSCRIPTIONGROUP,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Code.GET_ALL_CONSUMER_OFFSET,
            Code.GET_ALL_DELAY_OFFSET,
            Code.GET_PRODUCER_CONNECTION_LIST,
            Code.GET_ALL_PRODUCER_INFO,
            Code.UPDATE_BROKER_CONFIG,
            Code.GET_BROKER_CONFIG,
            Code.GET_TIMER_CHECK_POINT,
            Code.GET_TIMER_METRICS,
            Code.CONSUME_MESSAGE_DIRECTLY,
            Code.QUERY_CONSUME_QUEUE,
            Code.RESUME_CHECK_HALF_MESSAGE,
            Code.SET_MESSAGE_REQUEST_MODE,
            # It names only one of the groups whose offsets it shows.
            Code.QUERY_CORRECTION_OFFSET,
            Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
            Code.GET_ALL_MESSAGE_REQUEST_MODE,
            Code.POP_ROLLBACK,
            Code.CLEAN_EXPIRED_CONSUMEQUEUE,
            Code.CLEAN_UNUSED_TOPIC,
            Code.DELETE_EXPIRED_COMMITLOG,
            # They show or change the progress of all groups.
            Code.CLONE_GROUP_OFFSET,
            Code.VIEW_BROKER_STATS_DATA,
            Code.GET_BROKER_CONSUME_STATS,
        ),
    ),
    # Name servers.
    (
        _ROUTES,
        (
            Code.GET_ROUTEINFO_BY_TOPIC,
            Code.GET_BROKER_CLUSTER_INFO,
            Code.GET_BROKER_MEMBER_GROUP,
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            Code.GET_TOPICS_BY_CLUSTER,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            Code.GET_UNIT_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            Code.GET_KV_CONFIG,
            Code.GET_KVLIST_BY_NAMESPACE,
            Code.GET_NAMESRV_CONFIG,
        ),
    ),
    (
        _REGISTRATION,
        (
            Code.REGISTER_BROKER,
            Code.UNREGISTER_BROKER,
            Code.QUERY_DATA_VERSION,
            Code.BROKER_HEARTBEAT,
        ),
    ),
    (
        ADMIN,
        (
            Code.PUT_KV_CONFIG,
            Code.DELETE_KV_CONFIG,
            Code.WIPE_WRITE_PERM_OF_BROKER,
            Code.ADD_WRITE_PERM_OF_BROKER,
            Code.DELETE_TOPIC_IN_NAMESRV,
            Code.REGISTER_TOPIC_IN_NAMESRV,
            Code.UPDATE_NAMESRV_CONFIG,
        ),
    ),
)

#: Request code -> the permissions it needs; a code that is missing here needs `ADMIN`.
NEEDS: Final[dict[int, Need]] = {int(code): need for need, codes in _TABLE for code in codes}
