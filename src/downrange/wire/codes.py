"""The numbers of the protocol: request codes, response codes, flags, languages.

Names and numbers are those of the Java classes `RequestCode` and `ResponseCode` in releases 4.9.4
and 5.5.0; `tests/apache/test_codes.py` compares them with the real classes. A peer may be of a
newer release: `named` returns a number that is not in the enum as a plain `int`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final, TypeVar

CodeT = TypeVar("CodeT", bound=IntEnum)


class RequestCode(IntEnum):
    """The kind of a request."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18  # 5.x
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_CLIENT_CONFIG = 47  # 5.x
    UPDATE_AND_CREATE_ACL_CONFIG = 50  # 4.9 only
    DELETE_ACL_CONFIG = 51  # 4.9 only
    GET_BROKER_CLUSTER_ACL_INFO = 52  # 4.9 only
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53  # 4.9 only
    GET_BROKER_CLUSTER_ACL_CONFIG = 54  # 4.9 only
    GET_TIMER_CHECK_POINT = 60  # 5.x
    GET_TIMER_METRICS = 61  # 5.x
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217  # 5.x
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225  # 5.x
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343  # 5.x
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345  # 5.x
    GET_TOPIC_CONFIG = 351  # 5.x
    GET_SUBSCRIPTIONGROUP_CONFIG = 352  # 5.x
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353  # 5.x
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354  # 5.x
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355  # 5.x
    LITE_PULL_MESSAGE = 361  # 5.x
    RECALL_MESSAGE = 370  # 5.x
    QUERY_ASSIGNMENT = 400  # 5.x
    SET_MESSAGE_REQUEST_MODE = 401  # 5.x
    GET_ALL_MESSAGE_REQUEST_MODE = 402  # 5.x
    UPDATE_AND_CREATE_STATIC_TOPIC = 513  # 5.x
    GET_BROKER_MEMBER_GROUP = 901  # 5.x
    ADD_BROKER = 902  # 5.x
    REMOVE_BROKER = 903  # 5.x
    BROKER_HEARTBEAT = 904  # 5.x
    NOTIFY_MIN_BROKER_ID_CHANGE = 905  # 5.x
    EXCHANGE_BROKER_HA_INFO = 906  # 5.x
    GET_BROKER_HA_STATUS = 907  # 5.x
    RESET_MASTER_FLUSH_OFFSET = 908  # 5.x
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001  # 5.x
    CONTROLLER_ELECT_MASTER = 1002  # 5.x
    CONTROLLER_REGISTER_BROKER = 1003  # 5.x
    CONTROLLER_GET_REPLICA_INFO = 1004  # 5.x
    CONTROLLER_GET_METADATA_INFO = 1005  # 5.x
    CONTROLLER_GET_SYNC_STATE_DATA = 1006  # 5.x
    GET_BROKER_EPOCH_CACHE = 1007  # 5.x
    NOTIFY_BROKER_ROLE_CHANGED = 1008  # 5.x
    UPDATE_CONTROLLER_CONFIG = 1009  # 5.x
    GET_CONTROLLER_CONFIG = 1010  # 5.x
    CLEAN_BROKER_DATA = 1011  # 5.x
    CONTROLLER_GET_NEXT_BROKER_ID = 1012  # 5.x
    CONTROLLER_APPLY_BROKER_ID = 1013  # 5.x
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001  # 5.x
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002  # 5.x
    GET_COLD_DATA_FLOW_CTR_INFO = 2003  # 5.x
    SET_COMMITLOG_READ_MODE = 2004  # 5.x
    AUTH_CREATE_USER = 3001  # 5.x
    AUTH_UPDATE_USER = 3002  # 5.x
    AUTH_DELETE_USER = 3003  # 5.x
    AUTH_GET_USER = 3004  # 5.x
    AUTH_LIST_USER = 3005  # 5.x
    AUTH_CREATE_ACL = 3006  # 5.x
    AUTH_UPDATE_ACL = 3007  # 5.x
    AUTH_DELETE_ACL = 3008  # 5.x
    AUTH_GET_ACL = 3009  # 5.x
    AUTH_LIST_ACL = 3010  # 5.x
    SWITCH_TIMER_ENGINE = 5001  # 5.x
    POP_MESSAGE = 200050  # 5.x
    ACK_MESSAGE = 200051  # 5.x
    PEEK_MESSAGE = 200052  # 5.x
    CHANGE_MESSAGE_INVISIBLETIME = 200053  # 5.x
    NOTIFICATION = 200054  # 5.x
    POLLING_INFO = 200055  # 5.x
    POP_ROLLBACK = 200056  # 5.x
    POP_LITE_MESSAGE = 200070  # 5.x
    LITE_SUBSCRIPTION_CTL = 200071  # 5.x
    ACK_LITE_MESSAGE = 200072  # 5.x
    NOTIFY_UNSUBSCRIBE_LITE = 200073  # 5.x
    GET_BROKER_LITE_INFO = 200074  # 5.x
    GET_PARENT_TOPIC_INFO = 200075  # 5.x
    GET_LITE_TOPIC_INFO = 200076  # 5.x
    GET_LITE_CLIENT_INFO = 200077  # 5.x
    GET_LITE_GROUP_INFO = 200078  # 5.x
    TRIGGER_LITE_DISPATCH = 200079  # 5.x
    BATCH_ACK_MESSAGE = 200151  # 5.x


class ResponseCode(IntEnum):
    """The result of a request; only `SUCCESS` means that it was executed.

    A 4.9 broker uses 209 to 211 for failed changes of its access file; 5.x uses them for pop.
    """

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29  # 5.x
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212  # 5.x
    BROADCAST_CONSUMPTION = 213  # 5.x
    FLOW_CONTROL = 215  # 5.x
    NOT_LEADER_FOR_QUEUE = 501  # 5.x
    ILLEGAL_OPERATION = 604  # 5.x
    GO_AWAY = 1500  # 5.x
    CONTROLLER_FENCED_MASTER_EPOCH = 2000  # 5.x
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001  # 5.x
    CONTROLLER_INVALID_MASTER = 2002  # 5.x
    CONTROLLER_INVALID_REPLICAS = 2003  # 5.x
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004  # 5.x
    CONTROLLER_INVALID_REQUEST = 2005  # 5.x
    CONTROLLER_BROKER_NOT_ALIVE = 2006  # 5.x
    CONTROLLER_NOT_LEADER = 2007  # 5.x
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008  # 5.x
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009  # 5.x
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010  # 5.x
    CONTROLLER_MASTER_STILL_EXIST = 2011  # 5.x
    CONTROLLER_ELECT_MASTER_FAILED = 2012  # 5.x
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013  # 5.x
    CONTROLLER_BROKER_ID_INVALID = 2014  # 5.x
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015  # 5.x
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016  # 5.x
    LMQ_QUOTA_EXCEEDED = 2017  # 5.x
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018  # 5.x
    USER_NOT_EXIST = 3001  # 5.x
    POLICY_NOT_EXIST = 3002  # 5.x


class CommandFlag(IntFlag):
    """Bits of a command's `flag`."""

    REPLY = 1
    ONEWAY = 2


class HeaderCodec(IntEnum):
    """The encoding of a command's header; the high byte of a frame's header word."""

    JSON = 0
    BINARY = 1  # Java calls it ROCKETMQ


class Language(IntEnum):
    """The language of the sender. Brokers treat CPP differently, so it must not be used here."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class SysFlag(IntFlag):
    """Single bits of a message's `sysFlag`."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEEDS_UNWRAP = 0x40
    INNER_BATCH = 0x80


#: The bits of `sysFlag` that a client may set: compression and its type, several tags. A broker
#: sets the others: host, batch and transaction bits change how a record is read back.
CLIENT_FLAGS: Final = 0x1 | 0x2 | 0x700


class TransactionFlag(IntEnum):
    """The two transaction bits of a message's `sysFlag`; also the outcome in END_TRANSACTION."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class PullFlag(IntFlag):
    """Bits of a pull request's `sysFlag`."""

    COMMIT_OFFSET = 0x1
    SUSPEND = 0x2
    SUBSCRIPTION = 0x4
    CLASS_FILTER = 0x8
    LITE = 0x10


class Permission(IntFlag):
    """Bits of a topic's `perm`."""

    INHERIT = 0x1
    WRITE = 0x2
    READ = 0x4
    PRIORITY = 0x8


class ReleaseVersion(IntEnum):
    """Ordinals of Java's version enum that change the behaviour of a peer."""

    V4_9_3 = 399  # the last to get route JSON with unquoted keys
    V4_9_4 = 401
    V4_9_8 = 409
    V5_0_0 = 413  # compressed registrations carry the queue mapping from here on
    V5_1_3 = 439  # SQL92 filters have CONTAINS, STARTSWITH and ENDSWITH from here on
    V5_3_3 = 479
    V5_5_0 = 513


#: The version in our commands: 5.3.3, so that name servers answer with standard JSON.
OUR_VERSION = int(ReleaseVersion.V5_3_3)


#: From V4_0_0_SNAPSHOT to V5_9_9, each release has two ordinals: its snapshot, then itself.
_FIRST_ORDINAL = 212
_LAST_ORDINAL = 611


def release_name(ordinal: int) -> str:
    """Return the release of a version ordinal, such as "5.5.0"; the number itself for others."""
    if not _FIRST_ORDINAL <= ordinal <= _LAST_ORDINAL:
        return str(ordinal)
    half, is_release = divmod(ordinal - _FIRST_ORDINAL, 2)
    text = ".".join(str(400 + half))
    return text if is_release else f"{text}-SNAPSHOT"


def named(codes: type[CodeT], number: int) -> CodeT | int:
    """Return the member of `codes` with this number, or the number itself if there is none."""
    try:
        return codes(number)
    except ValueError:
        return number
