"""Our `Admin` and Java members: what they say, resets while they run, and what `mqadmin` shows.

Each release of the Java client runs on the Apache servers of its release, the newer one also on
ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from downrange import Admin, ClientOptions, Message, Producer, ProducerOptions
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from downrange.embedded import Cluster
    from downrange.model import QueueId
    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import JavaClient


@pytest.mark.parametrize(
    ("java", "servers"),
    [("5.5.0", "apache"), ("5.5.0", "ours"), ("4.9.4", "apache")],
    indirect=["java"],
    scope="session",
)
def test_java_members_are_shown_and_reset(
    servers: str,
    java: JavaClient,
    ours: Cluster,
    apache_versions: ApacheVersions,
    unique_name: UniqueName,
    request: pytest.FixtureRequest,
) -> None:
    release = str(request.node.callspec.params["java"])
    name_server = ours.name_server
    if servers == "apache":
        name_server = apache_versions.cluster(release).name_server
    topic, group = unique_name("topic"), unique_name("group")
    with (
        Admin(name_server, client_options=ClientOptions(call_timeout=30.0)) as admin,
        Producer(
            admin.client, group=unique_name("producers"), options=ProducerOptions(timeout=30.0)
        ) as producer,
    ):
        admin.create_topic(topic, queues=2)
        admin.create_group(group)
        ids = [producer.send(Message(topic, b"%d" % number)).message_id for number in range(4)]
        often = {"persistConsumerOffsetInterval": 200}
        consumer = java.start_consumer(name_server, group, {topic: "*"}, options=often)
        try:
            java.received(consumer, 4, timeout=60.0)
            wait_until(lambda: admin.group_lag(group, topic=topic).messages == 0)
            found = admin.group_members(group, with_filters=True)
            (member,) = found.members
            assert (member.language, member.version) == ("JAVA", release)
            assert {each.topic for each in member.filters or ()} == {topic, f"%RETRY%{group}"}
            lag = admin.group_lag(group, topic=topic, with_owners=True)
            assert {queue.owner for queue in lag.queues} == {member.client_id}
            state = admin.running_state(group, member.client_id, with_stack=True)
            committed = {each.queue: each.committed for each in state.queues}
            assert {queue.queue: queue.end for queue in lag.queues}.items() <= committed.items()
            assert state.properties["PROP_CLIENT_VERSION"] == f"V{release.replace('.', '_')}"
            assert "ConsumeMessageThread" in (state.stack or "")
            result = admin.consume_directly(group, member.client_id, topic, ids[0])
            assert result.is_consumed
            java.received(consumer, 5, timeout=60.0)

            shown = java.mqadmin(name_server, "consumerProgress", "-g", group)
            for queue in lag.queues:
                row = next(line for line in shown.splitlines() if _is_row(line, topic, queue.queue))
                assert [int(cell) for cell in re.findall(r"\s(\d+)(?=\s)", row)[1:4]] == [
                    *(queue.end, queue.committed, queue.messages),
                ]

            admin.reset_offsets(group, topic, "earliest")
            java.received(consumer, 9, timeout=60.0)
        finally:
            java.stop(consumer)


def _is_row(line: str, topic: str, queue: QueueId) -> bool:
    cells = line.split()
    return cells[:3] == [topic, queue.broker, str(queue.number)]
