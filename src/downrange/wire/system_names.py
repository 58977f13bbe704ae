"""Names that mean something to a broker: its own topics and groups, prefixes, what is legal."""

from __future__ import annotations

import re
from typing import Final

DEFAULT_TOPIC: Final = "TBW102"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_DONE_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKED_OUT_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
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
#: Topics that belong to the broker: no tool may create or delete them.
SYSTEM_TOPICS: Final = frozenset(
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
    }
)
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
#: Topics that no client may send to: their records mean something to the broker itself.
CLOSED_TOPICS: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, HALF_DONE_TOPIC, TIMER_TOPIC})

TOPIC_BYTES_MAX: Final = 127
#: Retry and dead-letter topics carry a group's name behind their prefix.
GROUP_TOPIC_BYTES_MAX: Final = 255
GROUP_BYTES_MAX: Final = 120

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")

FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def retry_topic(group: str) -> str:
    """Return where messages go that a group shall get again."""
    return f"{RETRY_PREFIX}{group}"


def dead_letter_topic(group: str) -> str:
    """Return where messages go that a group gave up on."""
    return f"{DEAD_LETTER_PREFIX}{group}"


def is_system_topic(topic: str) -> bool:
    """Whether a topic is the broker's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def topic_problem(topic: str) -> str | None:
    """Return what is wrong with a topic's name, or None."""
    if not topic.strip():
        return "The specified topic is blank."
    if _LEGAL.fullmatch(topic) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    is_of_group = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    limit = GROUP_TOPIC_BYTES_MAX if is_of_group else TOPIC_BYTES_MAX
    if len(topic) > limit:
        return f"The specified topic is longer than topic max length {limit}."
    return None


def group_problem(group: str) -> str | None:
    """Return what is wrong with a group's name, or None."""
    if not group.strip():
        return "The specified group is blank."
    if len(group) > GROUP_BYTES_MAX:
        return f"The specified group is longer than group max length {GROUP_BYTES_MAX}."
    if _LEGAL.fullmatch(group) is None:
        return "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None
