"""Checks of a cluster and its topics before Spark starts.

Spark needs seconds to start, and reports an unreachable server or a missing topic as an error of a
Java stream. These checks take milliseconds and raise the client's own errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.pipelines.folders import absolute, local_path
from downrange.pipelines.topic_copy import client_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.pipelines.options import ClusterOptions


def check_sources(
    cluster: ClusterOptions, topics: Iterable[str], *, checkpoint: str | None = None
) -> None:
    """Check that a cluster answers and that its topics can be read.

    Args:
        cluster: The cluster.
        topics: The topics.
        checkpoint: Where a stream keeps its offsets; None for a batch. A stream that continues may
            read topics that were deleted since, so only those of a new stream are checked. Whether
            it is new is known only of a folder on this machine.

    Raises:
        RouteNotFound: A topic does not exist, or has no queues to read.
        RocketMQError: No name server can be reached.
    """
    from downrange import Admin

    may_be_missing = checkpoint is not None and not _is_new(checkpoint)
    with client_of(cluster) as client, Admin(client) as admin:
        for topic in () if may_be_missing else topics:
            admin.read_queues(topic)


def check_target(cluster: ClusterOptions, topic: str) -> None:
    """Check that a cluster answers and that a topic can be sent to, or is created by a send.

    Raises:
        RouteNotFound: The topic does not exist and is not created automatically, or has no queues
            to write to.
        RocketMQError: No name server can be reached.
    """
    from downrange.client.flows.names import with_namespace
    from downrange.client.flows.routing.lookup import find_writable
    from downrange.wire.system_names import DEFAULT_TOPIC

    with client_of(cluster) as client:
        core = client.core
        name = with_namespace(topic, core.options.namespace)
        deadline = core.clock.now() + core.options.call_timeout
        client.run(find_writable(core, name, deadline, default_topic=DEFAULT_TOPIC, queue_count=1))


def _is_new(checkpoint: str) -> bool:
    folder = local_path(absolute(checkpoint))
    return folder is not None and not folder.exists()
