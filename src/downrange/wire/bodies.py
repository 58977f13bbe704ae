"""JSON bodies as types: routes, clusters, topics, registrations, heartbeats, groups, statistics.

Class names are ours; the names on the wire are those of the Java classes.

Reading accepts every form that Java writes (`fastjson`). Unknown members are ignored, a missing or
null one has its default, and a value of the wrong type raises `MalformedBody` with its path.
Enumerations stay strings, so that unknown names are kept. Writing gives strict JSON in alphabetical
order, as in Java, without null members. Map keys are objects where the Java class has them, which
is the one form that all releases read.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from downrange.errors import MalformedBody
from downrange.model import QueueId
from downrange.wire import fastjson

BodyT = TypeVar("BodyT", bound="Body")


class Body(Struct, rename="camel", kw_only=True):
    """Base of all typed JSON bodies."""

    def encode(self) -> bytes:
        """Write the body.

        Raises:
            Unencodable: A string holds half a surrogate pair.
        """
        return fastjson.dumps(_plain(self))


def decode_body(kind: type[BodyT], data: bytes) -> BodyT:
    """Read a JSON body.

    Raises:
        MalformedBody: The bytes are not JSON, or a member is of the wrong type.
    """
    return convert_body(kind, fastjson.loads(data))


def convert_body(kind: type[BodyT], value: Any) -> BodyT:
    """Convert decoded JSON to a body.

    Raises:
        MalformedBody: A member is of the wrong type.
    """
    try:
        return msgspec.convert(_without_nulls(value), kind, strict=False)
    except msgspec.ValidationError as error:
        raise MalformedBody(kind.__name__, str(error)) from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """Convert bodies to dictionaries without None values; a queue as map key becomes an object."""
    if isinstance(value, Struct):
        members = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return {
            wire_name: _plain(item)
            for name, wire_name in members
            if (item := getattr(value, name)) is not None
        }
    if isinstance(value, dict):
        return {
            fastjson.ObjectKey(_plain(key)) if isinstance(key, Struct) else key: _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


# ---- routes and clusters -----------------------------------------------------------------------


class BrokerQueues(Body):
    """How many queues of a topic one broker has (Java: QueueData)."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerReplicas(Body):
    """The processes behind one broker name (Java: BrokerData); id 0 is the master."""

    broker_name: str
    broker_addrs: dict[int, str]
    cluster: str | None = None
    zone_name: str | None = None
    enable_acting_master: bool | None = None


class RouteBody(Body):
    """Which brokers hold a topic (Java: TopicRouteData)."""

    queue_datas: list[BrokerQueues] = []
    broker_datas: list[BrokerReplicas] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterBody(Body):
    """All brokers of a name server (Java: ClusterInfo)."""

    broker_addr_table: dict[str, BrokerReplicas] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMembersBody(Body):
    """The replicas of one broker name (Java: GetBrokerMemberGroupResponseBody)."""

    broker_member_group: BrokerReplicas | None = None


class TopicNamesBody(Body):
    """Names of topics (Java: TopicList)."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class KeyValueBody(Body):
    """Strings by name (Java: KVTable): a name server's namespace, a broker's runtime figures."""

    table: dict[str, str] = {}


# ---- topics and registration -------------------------------------------------------------------


class DataVersion(Body):
    """The version of a broker's topics; it changes with them. 4.9 has no `state_version`."""

    timestamp: int = 0
    counter: int = 0
    state_version: int | None = None


class TopicConfig(Body):
    """One topic's settings on a broker; 4.9 has no `attributes`."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


class TopicTableBody(Body):
    """All topics of a broker (Java: TopicConfigSerializeWrapper and its 5.x subclass)."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_info_map: dict[str, Any] | None = None
    topic_queue_mapping_detail_map: dict[str, Any] | None = None


class TopicListBody(Body):
    """Topics to create or change (Java: CreateTopicListRequestBody, 5.x)."""

    topic_config_list: list[TopicConfig] = []


class RegisterBrokerBody(Body):
    """A broker's registration at a name server; `registration` has its compressed form."""

    topic_config_serialize_wrapper: TopicTableBody = field(default_factory=TopicTableBody)
    filter_server_list: list[str] = []


# ---- clients -----------------------------------------------------------------------------------


class Subscription(Body):
    """What a consumer group reads of one topic (Java: SubscriptionData)."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ProducerMember(Body):
    """A producer group of a client (Java: ProducerData)."""

    group_name: str


class ConsumerMember(Body):
    """A consumer group of a client (Java: ConsumerData)."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False


class HeartbeatBody(Body):
    """A client's heartbeat to brokers (Java: HeartbeatData); the last two fields are 5.x."""

    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerMember] = []
    consumer_data_set: list[ConsumerMember] = []
    heartbeat_fingerprint: int | None = None
    without_sub: bool | None = None


class CheckClientBody(Body):
    """A subscription for a broker to check (Java: CheckClientRequestBody)."""

    client_id: str
    group: str
    subscription_data: Subscription
    namespace: str | None = None


class GroupMembersBody(Body):
    """Client ids of a consumer group (Java: GetConsumerListByGroupResponseBody)."""

    consumer_id_list: list[str] = []


class LockQueuesBody(Body):
    """Queues to lock or unlock (Java: LockBatchRequestBody)."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueId] = []
    only_this_broker: bool | None = None


class LockedQueuesBody(Body):
    """Queues that were locked (Java: LockBatchResponseBody)."""

    locked: list[QueueId] = field(name="lockOKMQSet", default_factory=list)


class ClientConnection(Body):
    """One connected client (Java: Connection)."""

    client_id: str
    client_addr: str
    language: str | None = None
    version: int = 0


class ProducerConnectionsBody(Body):
    """The members of a producer group (Java: ProducerConnection)."""

    connection_set: list[ClientConnection] = []


class ConsumerConnectionsBody(Body):
    """The members of a consumer group and what they read (Java: ConsumerConnection)."""

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, Subscription] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ResetOffsetBody(Body):
    """The new offsets of a group after a reset."""

    offset_table: dict[QueueId, int] = {}


class ConsumerStatusBody(Body):
    """The offsets of a group's members (Java: GetConsumerStatusBody)."""

    message_queue_table: dict[QueueId, int] = {}
    consumer_table: dict[str, dict[QueueId, int]] = {}


class ConsumeDirectlyBody(Body):
    """A consumer's result for one message (Java: ConsumeMessageDirectlyResult)."""

    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0
    order: bool = False
    auto_commit: bool = True


class ProducerEntry(Body):
    """One connected producer (Java: ProducerInfo)."""

    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str | None = None
    version: int = 0
    last_update_timestamp: int = 0


class AllProducersBody(Body):
    """All connected producers by group (Java: ProducerTableInfo)."""

    data: dict[str, list[ProducerEntry]] = {}


# ---- groups and statistics ---------------------------------------------------------------------


class GroupConfig(Body):
    """One consumer group's settings on a broker (Java: SubscriptionGroupConfig)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool | None = None
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int | None = None
    consume_timeout_minute: int | None = None
    group_retry_policy: dict[str, Any] | None = None
    subscription_data_set: list[Any] | None = None
    attributes: dict[str, str] | None = None


class GroupTableBody(Body):
    """All consumer groups of a broker (Java: SubscriptionGroupWrapper)."""

    subscription_group_table: dict[str, GroupConfig] = {}
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] | None = None


class GroupListBody(Body):
    """Groups to create or change (Java: SubscriptionGroupList, 5.x)."""

    group_config_list: list[GroupConfig] = []


class GroupNamesBody(Body):
    """Names of groups (Java: GroupList)."""

    group_list: list[str] = []


class GroupSubscriptionBody(Body):
    """What a group reads of a topic (Java: QuerySubscriptionResponseBody, 5.x)."""

    group: str
    topic: str
    subscription_data: Subscription | None = None


class TopicOffset(Body):
    """The first offset of one queue, and the offset behind the last one."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStatsBody(Body):
    """The offsets of all queues of a topic (Java: TopicStatsTable)."""

    offset_table: dict[QueueId, TopicOffset] = {}
    topic_put_tps: float | None = None


class ConsumeOffset(Body):
    """The progress of a group in one queue (Java: OffsetWrapper)."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int | None = None
    last_timestamp: int = 0


class ConsumeStatsBody(Body):
    """The progress of a group in all its queues (Java: ConsumeStats)."""

    offset_table: dict[QueueId, ConsumeOffset] = {}
    consume_tps: float = 0.0


class BrokerConsumeStatsBody(Body):
    """The progress of all groups of a broker (Java: ConsumeStatsList)."""

    consume_stats_list: list[dict[str, list[ConsumeStatsBody]]] = []
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int | None = None


class QueueTimeSpan(Body):
    """The store times of a queue's first and last message and of a group's next one, or -1."""

    message_queue: QueueId
    min_time_stamp: int = -1
    max_time_stamp: int = -1
    consume_time_stamp: int = -1
    delay_time: int = 0


class TimeSpansBody(Body):
    """The times of a topic's queues (Java: QueryConsumeTimeSpanBody)."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueueUnit(Body):
    """One unit of a queue's index (Java: ConsumeQueueData)."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    eval: bool = False
    msg: str | None = None


class QueueUnitsBody(Body):
    """A part of a queue's index (Java: QueryConsumeQueueResponseBody)."""

    queue_data: list[QueueUnit] = []
    max_queue_index: int = 0
    min_queue_index: int = 0
    subscription_data: Subscription | None = None
    filter_data: str | None = None


class ForbiddenBody(Body):
    """Whether a group may read a topic (Java: GroupForbidden, 5.x)."""

    group: str
    topic: str
    readable: bool = True


class CorrectionOffsetsBody(Body):
    """How far the slowest group has read, by queue id (Java: QueryCorrectionOffsetBody)."""

    correction_offsets: dict[int, int] = {}


class TimedCount(Body):
    """Timed messages of a topic that wait, and when that number changed (Java: Metric, 5.x)."""

    count: int = 0
    time_stamp: int = 0


class TimedCountsBody(Body):
    """Timed messages that wait, by topic (Java: TimerMetricsSerializeWrapper, 5.x)."""

    timing_count: dict[str, TimedCount] = {}
    data_version: DataVersion = field(default_factory=DataVersion)


class Count(Body):
    """A counter over a period (Java: BrokerStatsItem)."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class CountsBody(Body):
    """A counter over the last minute, hour and day (Java: BrokerStatsData)."""

    stats_minute: Count = field(default_factory=Count)
    stats_hour: Count = field(default_factory=Count)
    stats_day: Count = field(default_factory=Count)


class GroupOffsetsBody(Body):
    """Offsets of all groups, by `topic@group` and queue id; also consumerOffset.json."""

    offset_table: dict[str, dict[int, int]] = {}
    data_version: DataVersion | None = None


class DelayOffsetsBody(Body):
    """The progress of delivery per delay level; also delayOffset.json."""

    offset_table: dict[int, int] = {}
    data_version: DataVersion | None = None
