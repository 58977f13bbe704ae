"""Names with a meaning: system topics, prefixes, and the namespace that is put before names.

One rule: what a server sees has the namespace, what a user sees has not. The two functions that put
it on and take it off agree with Java's `NamespaceUtil` of 4.9.4 and 5.5.0; they are called for each
message and so remember their answers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

DEFAULT_TOPIC: Final = "TBW102"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
_SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_SEPARATOR: Final = "%"

#: Topics that brokers write themselves; a client's message there would be misread.
FORBIDDEN_TOPICS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
#: Topics that come with a cluster; those that begin with `rmq_sys_` belong to them, too.
SYSTEM_TOPICS: Final = FORBIDDEN_TOPICS | {
    DEFAULT_TOPIC,
    TRACE_TOPIC,
    "BenchmarkTest",
    "CHECKPOINT_TOPIC",
}

#: How many names with their namespaces are remembered; a client uses a handful.
_REMEMBERED_MAX: Final = 4096
_INSTANCE_HOST: Final = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\.", re.ASCII)


def is_system_topic(name: str) -> bool:
    """Whether a topic is the cluster's own."""
    return name in SYSTEM_TOPICS or name.startswith(_SYSTEM_TOPIC_PREFIX)


@lru_cache(_REMEMBERED_MAX)
def with_namespace(name: str, namespace: str | None) -> str:
    """Return a topic's or group's name as servers know it.

    Retry and dead-letter topics carry the namespace behind their prefix, before the group. Names of
    the system, and those that have the namespace already, stay as they are.

    Example:
        >>> with_namespace("orders", "prod"), with_namespace("%RETRY%billing", "prod")
        ('prod%orders', '%RETRY%prod%billing')
    """
    if not namespace or not name or is_system_topic(name) or name.startswith(_SYSTEM_GROUP_PREFIX):
        return name
    prefix, rest = _split_prefix(name)
    mark = namespace + _SEPARATOR
    return name if rest.startswith(mark) else f"{prefix}{mark}{rest}"


@lru_cache(_REMEMBERED_MAX)
def without_namespace(name: str, namespace: str | None) -> str:
    """Return a server's name of a topic or group as users know it.

    A name of another namespace, or of none, stays as it is.
    """
    if not namespace:
        return name
    prefix, rest = _split_prefix(name)
    return prefix + rest.removeprefix(namespace + _SEPARATOR)


def namespace_of_endpoint(address: str) -> str | None:
    """Return the namespace that the host of a cloud's instance names, or None.

    Example:
        >>> namespace_of_endpoint("http://MQ_INST_1234_abc.example.com:80")
        'MQ_INST_1234_abc'
    """
    found = _INSTANCE_HOST.match(address)
    return None if found is None else found[1]


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
