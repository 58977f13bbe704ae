"""Namespaces: a prefix that separates the topics and groups of one tenant from those of others.

Servers see names with the namespace, users see them without it. The functions that add and remove
it agree with Java's `NamespaceUtil` of 4.9.4 and 5.5.0. They are called for each message, so their
results are cached.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from downrange.model import QueueId
from downrange.wire.system_names import (
    GROUP_TOPIC_PREFIXES,
    SYSTEM_GROUP_PREFIX,
    is_client_system_topic,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEPARATOR: Final = "%"

#: How many names with their namespaces are cached; a client uses a few.
_REMEMBERED_MAX: Final = 4096
_INSTANCE_HOST: Final = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\.", re.ASCII)


@lru_cache(_REMEMBERED_MAX)
def with_namespace(name: str, namespace: str | None) -> str:
    """Return a topic's or group's name as servers know it.

    Retry and dead-letter topics carry the namespace behind their prefix, before the group. System
    names, and names that have the namespace already, stay as they are.

    Example:
        >>> with_namespace("orders", "prod"), with_namespace("%RETRY%billing", "prod")
        ('prod%orders', '%RETRY%prod%billing')
    """
    if not namespace or not name or _is_system_name(name):
        return name
    prefix, rest = _split_prefix(name)
    mark = namespace + _SEPARATOR
    return name if rest.startswith(mark) else f"{prefix}{mark}{rest}"


@lru_cache(_REMEMBERED_MAX)
def without_namespace(name: str, namespace: str | None) -> str:
    """Return a topic's or group's name as users know it.

    A name of another namespace, or without one, stays as it is.
    """
    if not namespace:
        return name
    prefix, rest = _split_prefix(name)
    return prefix + rest.removeprefix(namespace + _SEPARATOR)


def named_queue(queue: QueueId, namespace: str | None) -> QueueId:
    """Return a queue with the namespace in its topic, for servers."""
    if namespace is None:
        return queue
    return QueueId(with_namespace(queue.topic, namespace), queue.broker, queue.number)


def shown_queue(queue: QueueId, namespace: str | None) -> QueueId:
    """Return a queue without the namespace in its topic, for users."""
    if namespace is None:
        return queue
    return QueueId(without_namespace(queue.topic, namespace), queue.broker, queue.number)


def namespace_of_endpoint(address: str) -> str | None:
    """Return the namespace that the host of a cloud's instance names, or None.

    Example:
        >>> namespace_of_endpoint("http://MQ_INST_1234_abc.example.com:80")
        'MQ_INST_1234_abc'
    """
    found = _INSTANCE_HOST.match(address)
    return None if found is None else found[1]


def namespace_in_use(given: str | None, addresses: Sequence[str]) -> str | None:
    """Return the namespace of a client: the given one, or the one that its first address names."""
    if given is not None or not addresses:
        return given
    return namespace_of_endpoint(addresses[0])


def _is_system_name(name: str) -> bool:
    return is_client_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX)


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in GROUP_TOPIC_PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
