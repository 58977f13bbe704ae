"""Reserved names: topics, groups and prefixes of the servers, and the rules for all names.

Client and broker take every reserved name from here. The sets of topics that refuse sends differ
between them on purpose: our broker adds its timer's topic.
"""

from __future__ import annotations

import re
from typing import Final

from downrange.wire.limits import GROUP_BYTES_MAX, GROUP_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX

# ---- topics --------------------------------------------------------------------------------------

#: The template of topics that are created by sending (autoCreateTopicEnable).
DEFAULT_TOPIC: Final = "TBW102"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
#: Messages with a delay level wait here, in one queue per level.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
#: Messages with a delivery time wait here.
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
#: The region follows: the topic of traces at a cloud provider.
CLOUD_TRACE_PREFIX: Final = "rmq_sys_TRACE_DATA_"
#: Messages of transactions that are not decided yet, and the records of those that are.
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_DONE_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: Half messages that were checked too often without a decision.
CHECKED_OUT_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Topics of Apache 5.x that our broker does not have; it reserves their names all the same.
_ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
_ROCKSDB_HALF_DONE_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
_CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
#: What the topics of a consumer group begin with; the group follows.
GROUP_TOPIC_PREFIXES: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
#: Follows the name of a group in its locks for handovers. Under the group's own name, brokers take
#: locks as a sign of orderly consumption: what is sent to the retry topic becomes a dead letter.
HANDOVER_SUFFIX: Final = "@handover"
#: The name of a cluster follows: checkpoints and acknowledgements of popped messages.
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
#: Follows the name of a cluster: the topic of replies to requests.
REPLY_SUFFIX: Final = "_REPLY_TOPIC"

#: Reserved by our broker as by 5.5.0 (Java: TopicValidator); a tool cannot create or delete them.
BROKER_SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        SCHEDULE_TOPIC,
        TRACE_TOPIC,
        HALF_TOPIC,
        HALF_DONE_TOPIC,
        CHECKED_OUT_TOPIC,
        _ROCKSDB_HALF_TOPIC,
        _ROCKSDB_HALF_DONE_TOPIC,
        _CHECKPOINT_TOPIC,
    }
)
#: System topics as a client sees them; a namespace is not put before them.
CLIENT_SYSTEM_TOPICS: Final = BROKER_SYSTEM_TOPICS

#: Topics in which the broker stores messages of other topics until they are due or decided.
HOLDING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, HALF_DONE_TOPIC, TIMER_TOPIC})
_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_DONE_TOPIC,
        CHECKED_OUT_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        _ROCKSDB_HALF_TOPIC,
        _ROCKSDB_HALF_DONE_TOPIC,
    }
)
#: Our broker refuses sends to these: the timer topic, too, because it would misread such records.
BROKER_FORBIDDEN_TOPICS: Final = _FORBIDDEN_TOPICS | {TIMER_TOPIC}
#: A client refuses these before it sends, as Java's does (NOT_ALLOWED_SEND_TOPIC_SET of 5.5.0,
#: which does not have the timer topic).
CLIENT_FORBIDDEN_TOPICS: Final = _FORBIDDEN_TOPICS

# ---- groups --------------------------------------------------------------------------------------

#: Java's name for "no group was given". Clients refuse it: unrelated programs would share it.
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
#: The broker keeps its own progress with transactions under this group.
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
#: Apache's broker reads the revive topic as this group.
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
#: Tools read as this group; it exists on every broker.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
#: Groups that a broker has from the start.
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)

# ---- rules ---------------------------------------------------------------------------------------

#: The characters of topics, groups, brokers, clusters and namespaces.
LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")

#: Java's brokers put this line behind some remarks.
FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def retry_topic(group: str) -> str:
    """Return the topic of the messages that a group gets again."""
    return f"{RETRY_PREFIX}{group}"


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the topic of the messages of a topic that a group pops again."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(group: str, topic: str) -> str:
    """Return the second form of it, which is unambiguous (Java: enableRetryTopicV2)."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def revive_topic(cluster: str) -> str:
    """Return the topic of checkpoints and acknowledgements of popped messages."""
    return f"{REVIVE_TOPIC_PREFIX}{cluster}"


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that a group failed to process too often."""
    return f"{DEAD_LETTER_PREFIX}{group}"


def is_broker_system_topic(topic: str) -> bool:
    """Whether a topic belongs to our broker itself."""
    return topic in BROKER_SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_client_system_topic(topic: str) -> bool:
    """Whether a topic belongs to the servers, of whatever version they are."""
    return topic in CLIENT_SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def topic_problem(topic: str) -> str | None:
    """Return why a broker refuses a topic's name, in Java's words, or None if it is legal."""
    if not topic.strip():
        return "The specified topic is blank."
    if LEGAL_NAME.fullmatch(topic) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    is_of_group = topic.startswith(GROUP_TOPIC_PREFIXES)
    limit = GROUP_TOPIC_BYTES_MAX if is_of_group else TOPIC_BYTES_MAX
    if len(topic) > limit:
        return f"The specified topic is longer than topic max length {limit}."
    return None


def group_problem(group: str) -> str | None:
    """Return why a broker refuses a group's name, in Java's words, or None if it is legal."""
    if not group.strip():
        return "The specified group is blank."
    if len(group) > GROUP_BYTES_MAX:
        return f"The specified group is longer than group max length {GROUP_BYTES_MAX}."
    if LEGAL_NAME.fullmatch(group) is None:
        return "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None
