"""One typed header per request and reply.

The class names are ours, the fields are those of the Java header classes of releases 4.9.4 and
5.5.0; a field of only one of them is optional. `Int32` and `Int64` are Java's `int` and `long`. A
field that Java declares as a primitive and does not require has Java's default, 0 or false. So has
a field that Java declares as required but servers do not need: a send without a group is stored
(docs/compatibility.md). Such a field is always written.

Order: sending, pulling, offsets, queries, transactions, clients, topics and groups, name server.
"""

from __future__ import annotations

from msgspec import field

from downrange.wire.codes import RequestCode as Code
from downrange.wire.fields import Header, Int32, Int64, reply, request

# ---- sending -----------------------------------------------------------------------------------


@request(Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE)
class SendRequest(Header, kw_only=True):
    """Send one message, with full field names (V1)."""

    producer_group: str = ""
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 0
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = field(name="bname", default=None)


@request(Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2)
class SendRequestV2(Header, kw_only=True):
    """Send one message or a batch, with letters as field names (V2)."""

    producer_group: str = field(name="a", default="")
    topic: str = field(name="b")
    default_topic: str = field(name="c", default="")
    default_topic_queue_nums: Int32 = field(name="d", default=0)
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(name="i", default=None)
    reconsume_times: Int32 | None = field(name="j", default=None)
    unit_mode: bool | None = field(name="k", default=None)
    max_reconsume_times: Int32 | None = field(name="l", default=None)
    batch: bool | None = field(name="m", default=None)
    broker_name: str | None = field(name="n", default=None)


@reply(
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.SEND_BATCH_MESSAGE,
    Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2,
)
class SendReply(Header):
    """Where a message was stored; for a batch, all ids, joined by commas, and the first offset."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = field(name="MSG_REGION", default=None)
    trace_on: bool | None = field(name="TRACE_ON", default=None)


@request(Code.CONSUMER_SEND_MSG_BACK)
class SendBackRequest(Header):
    """Send a message back for another delivery, or to the dead-letter topic."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = field(name="bname", default=None)


@request(Code.RECALL_MESSAGE)
class RecallRequest(Header):
    """Recall a timed message before its delivery (5.x)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = field(name="bname", default=None)


@reply(Code.RECALL_MESSAGE)
class RecallReply(Header):
    """The id of the recalled message."""

    msg_id: str


@request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
class PushReplyRequest(Header):
    """Push the reply to a request message: from the broker to the requester."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False


# ---- pulling -----------------------------------------------------------------------------------


@request(Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE)
class PullRequest(Header):
    """Read messages of one queue from an offset on."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    sub_version: Int64 = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_forward_client_id: str | None = field(name="proxyFrowardClientId", default=None)  # sic
    broker_name: str | None = field(name="bname", default=None)


@reply(Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE)
class PullReply(Header):
    """The next offset; also sent with the codes for "nothing found" and "offset moved"."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


# ---- offsets -----------------------------------------------------------------------------------


@request(Code.QUERY_CONSUMER_OFFSET)
class GroupOffsetRequest(Header):
    """Ask for the offset of a group in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = field(name="bname", default=None)


@request(Code.UPDATE_CONSUMER_OFFSET)
class CommitOffsetRequest(Header):
    """Commit the offset of a group in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    broker_name: str | None = field(name="bname", default=None)


@request(Code.SEARCH_OFFSET_BY_TIMESTAMP)
class OffsetByTimeRequest(Header):
    """Ask for the offset of the message that was stored at a time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    broker_name: str | None = field(name="bname", default=None)


@request(Code.GET_MAX_OFFSET)
class MaxOffsetRequest(Header):
    """Ask for the offset behind a queue's last message."""

    topic: str
    queue_id: Int32
    committed: bool = True
    broker_name: str | None = field(name="bname", default=None)


@request(Code.GET_MIN_OFFSET)
class MinOffsetRequest(Header):
    """Ask for the offset of a queue's first message."""

    topic: str
    queue_id: Int32
    broker_name: str | None = field(name="bname", default=None)


@reply(
    Code.QUERY_CONSUMER_OFFSET,
    Code.SEARCH_OFFSET_BY_TIMESTAMP,
    Code.GET_MAX_OFFSET,
    Code.GET_MIN_OFFSET,
)
class OffsetReply(Header):
    """A queue offset."""

    offset: Int64


@request(Code.GET_EARLIEST_MSG_STORETIME)
class EarliestTimeRequest(Header):
    """Ask when a queue's first message was stored."""

    topic: str
    queue_id: Int32
    broker_name: str | None = field(name="bname", default=None)


@reply(Code.GET_EARLIEST_MSG_STORETIME)
class EarliestTimeReply(Header):
    """A store time in ms; -1 for an empty queue."""

    timestamp: Int64


@request(Code.CLONE_GROUP_OFFSET)
class CloneOffsetsRequest(Header):
    """Copy the offsets of one group to another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


# ---- queries -----------------------------------------------------------------------------------


@request(Code.QUERY_MESSAGE)
class QueryByKeyRequest(Header):
    """Find messages by key. The index has only hashes, so the reply may contain others, too."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    last_key: str | None = None
    is_unique_key: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)


@reply(Code.QUERY_MESSAGE)
class QueryReply(Header):
    """Time and offset of the newest message in the index; both are 0 if nothing was found."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


@request(Code.VIEW_MESSAGE_BY_ID)
class ViewRequest(Header):
    """Read the one message at a commit-log offset."""

    offset: Int64
    topic: str | None = None


@request(Code.QUERY_CONSUME_QUEUE)
class QueueUnitsRequest(Header):
    """Ask for the units of a queue's index, and whether a group's filter accepts them."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


# ---- transactions ------------------------------------------------------------------------------


@request(Code.END_TRANSACTION)
class EndTransactionRequest(Header):
    """Commit or roll back a half message; the state is a `TransactionFlag`."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = field(name="bname", default=None)


@request(Code.CHECK_TRANSACTION_STATE)
class CheckTransactionRequest(Header):
    """Ask a producer for the outcome of a half message: from the broker."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = field(name="bname", default=None)


@request(Code.RESUME_CHECK_HALF_MESSAGE)
class ResumeCheckRequest(Header):
    """Restart the checks of a half message; the id is its offset id."""

    msg_id: str
    topic: str | None = None


# ---- clients -----------------------------------------------------------------------------------


@reply(Code.HEART_BEAT)
class HeartbeatReply(Header):
    """Whether a broker accepts short heartbeats (5.x); 4.9 sends no fields."""

    supports_v2: bool = field(name="IS_SUPPORT_HEART_BEAT_V2", default=False)
    subscription_changed: bool = field(name="IS_SUB_CHANGE", default=False)


@request(Code.UNREGISTER_CLIENT)
class UnregisterClientRequest(Header):
    """Remove a client from its groups."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@request(Code.GET_CONSUMER_LIST_BY_GROUP)
class GroupMembersRequest(Header):
    """Ask for the client ids of a consumer group."""

    consumer_group: str


@request(Code.NOTIFY_CONSUMER_IDS_CHANGED)
class MembersChangedRequest(Header):
    """Notify a consumer that its group gained or lost a member: from the broker."""

    consumer_group: str


@request(Code.GET_CONSUMER_RUNNING_INFO)
class RunningStateRequest(Header):
    """Ask a consumer, through the broker, for its running state."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@request(Code.CONSUME_MESSAGE_DIRECTLY)
class ConsumeDirectlyRequest(Header):
    """Have one consumer process one message now."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


@request(Code.RESET_CONSUMER_CLIENT_OFFSET, Code.INVOKE_BROKER_TO_RESET_OFFSET)
class ResetOffsetRequest(Header):
    """Reset a group's offsets: from a tool to the broker, and from the broker to consumers."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 = -1
    offset: Int64 | None = None


@request(Code.GET_CONSUMER_STATUS_FROM_CLIENT, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
class ConsumerStatusRequest(Header):
    """Ask for the offsets of a group's members."""

    topic: str
    group: str
    client_addr: str | None = None


@request(Code.QUERY_CORRECTION_OFFSET)
class CorrectionOffsetsRequest(Header):
    """Ask how far the slowest group has read in each queue of a topic.

    Attributes:
        topic: The topic.
        filter_groups: Groups to leave out, separated by commas.
        compare_group: The group that wants to follow the slowest one.
    """

    topic: str
    filter_groups: str | None = None
    compare_group: str | None = None


# ---- topics and groups -------------------------------------------------------------------------


@request(Code.UPDATE_AND_CREATE_TOPIC)
class CreateTopicRequest(Header):
    """Create a topic or change it."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@request(Code.DELETE_TOPIC_IN_BROKER)
class DeleteTopicRequest(Header):
    """Delete a topic on a broker."""

    topic: str


@request(Code.GET_TOPIC_CONFIG)
class TopicConfigRequest(Header):
    """Ask a broker for one topic's settings (5.x)."""

    topic: str


@request(Code.GET_ALL_TOPIC_CONFIG)
class AllTopicsRequest(Header):
    """Ask a broker for all topics; 5.5 can return them in pages."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


@reply(Code.GET_ALL_TOPIC_CONFIG)
class AllTopicsReply(Header):
    """The number of all topics; 4.9 does not send it."""

    total_topic_num: Int32 | None = None


@request(Code.GET_TOPIC_STATS_INFO)
class TopicStatsRequest(Header):
    """Ask for the offsets of all queues of a topic."""

    topic: str


@request(Code.GET_CONSUME_STATS)
class ConsumeStatsRequest(Header):
    """Ask for the progress of a group in all its queues."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@request(Code.GET_CONSUMER_CONNECTION_LIST)
class ConsumerConnectionsRequest(Header):
    """Ask for the connected members of a consumer group."""

    consumer_group: str


@request(Code.GET_PRODUCER_CONNECTION_LIST)
class ProducerConnectionsRequest(Header):
    """Ask for the connected members of a producer group."""

    producer_group: str


@request(Code.DELETE_SUBSCRIPTIONGROUP)
class DeleteGroupRequest(Header):
    """Delete a consumer group, and its offsets: releases differ in the name of that field."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False  # 4.9


@request(Code.GET_SUBSCRIPTIONGROUP_CONFIG)
class GroupConfigRequest(Header):
    """Ask a broker for one group's settings (5.x)."""

    group: str


@request(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
class AllGroupsRequest(Header):
    """Ask a broker for all groups; 5.5 can return them in pages."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


@reply(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
class AllGroupsReply(Header):
    """The number of all groups; 4.9 does not send it."""

    total_group_num: Int32 | None = None


@request(Code.QUERY_TOPIC_CONSUME_BY_WHO)
class TopicConsumersRequest(Header):
    """Ask which groups read a topic."""

    topic: str


@request(Code.QUERY_CONSUME_TIME_SPAN)
class ConsumeTimeSpanRequest(Header):
    """Ask for the period of the messages that a group has not read yet."""

    topic: str
    group: str


@request(Code.QUERY_TOPICS_BY_CONSUMER)
class GroupTopicsRequest(Header):
    """Ask which topics a group reads (5.x)."""

    group: str


@request(Code.QUERY_SUBSCRIPTION_BY_CONSUMER)
class GroupSubscriptionRequest(Header):
    """Ask for the subscription of a group to a topic (5.x)."""

    group: str
    topic: str


@request(Code.GET_BROKER_CONSUME_STATS)
class BrokerConsumeStatsRequest(Header):
    """Ask for the progress of all groups of a broker."""

    is_order: bool = False


@request(Code.UPDATE_AND_GET_GROUP_FORBIDDEN)
class ForbidGroupRequest(Header):
    """Forbid a group to read a topic or allow it, or ask whether it may (5.x)."""

    group: str
    topic: str
    readable: bool | None = None


@request(Code.VIEW_BROKER_STATS_DATA)
class BrokerStatsRequest(Header):
    """Ask for one of a broker's counters, such as TOPIC_PUT_NUMS of a topic."""

    stats_name: str
    stats_key: str


@reply(Code.GET_BROKER_CONFIG)
class BrokerConfigReply(Header):
    """The data version of the settings, as JSON."""

    version: str


# ---- name server -------------------------------------------------------------------------------


@request(Code.GET_ROUTEINFO_BY_TOPIC)
class RouteRequest(Header):
    """Ask which brokers hold a topic."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = field(name="__ZONE_NAME", default=None)
    zone_mode: bool | None = field(name="__ZONE_MODE", default=None)


@request(Code.REGISTER_BROKER)
class RegisterBrokerRequest(Header):
    """Register a broker and its topics at a name server."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = field(name="bodyCrc32", default=0)
    zone_name: str | None = field(name="__ZONE_NAME", default=None)


@reply(Code.REGISTER_BROKER)
class RegisterBrokerReply(Header):
    """The master of a slave; empty for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@request(Code.UNREGISTER_BROKER)
class UnregisterBrokerRequest(Header):
    """Unregister a broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@request(Code.QUERY_DATA_VERSION)
class QueryDataVersionRequest(Header):
    """Ask whether a name server has this data version of a broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@reply(Code.QUERY_DATA_VERSION)
class QueryDataVersionReply(Header):
    """Whether a new registration is needed."""

    changed: bool


@request(Code.BROKER_HEARTBEAT)
class BrokerHeartbeatRequest(Header):
    """Send a broker's heartbeat to a name server (5.x)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None  # sic
    election_priority: Int32 | None = None


@request(Code.GET_BROKER_MEMBER_GROUP)
class BrokerMembersRequest(Header):
    """Ask for the replicas of one broker name (5.x)."""

    cluster_name: str
    broker_name: str


@request(Code.GET_TOPICS_BY_CLUSTER)
class ClusterTopicsRequest(Header):
    """Ask for the topics of one cluster."""

    cluster: str


@request(Code.DELETE_TOPIC_IN_NAMESRV)
class DeleteRouteRequest(Header):
    """Delete a topic's route from a name server."""

    topic: str
    cluster_name: str | None = None


@request(Code.REGISTER_TOPIC_IN_NAMESRV)
class RegisterTopicRequest(Header):
    """Set the route of a topic at a name server (5.x)."""

    topic: str


@request(Code.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermissionRequest(Header):
    """Have a name server announce a broker as read-only."""

    broker_name: str


@reply(Code.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermissionReply(Header):
    """The number of topics that were changed."""

    wipe_topic_count: Int32


@request(Code.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermissionRequest(Header):
    """Have a name server announce a broker as writable again."""

    broker_name: str


@reply(Code.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermissionReply(Header):
    """The number of topics that were changed."""

    add_topic_count: Int32


@request(Code.PUT_KV_CONFIG)
class PutKeyValueRequest(Header):
    """Store a value in a name server's namespace."""

    namespace: str
    key: str
    value: str


@request(Code.GET_KV_CONFIG)
class GetKeyValueRequest(Header):
    """Read a value from a name server's namespace."""

    namespace: str
    key: str


@reply(Code.GET_KV_CONFIG)
class GetKeyValueReply(Header):
    """The value."""

    value: str | None = None


@request(Code.DELETE_KV_CONFIG)
class DeleteKeyValueRequest(Header):
    """Delete a value from a name server's namespace."""

    namespace: str
    key: str


@request(Code.GET_KVLIST_BY_NAMESPACE)
class ListKeyValuesRequest(Header):
    """Read a name server's whole namespace."""

    namespace: str
