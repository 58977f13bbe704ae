from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from downrange.client.flows.admin.reports import OffsetReset, QueueReset, Shift
from downrange.client.flows.admin.resets import apply_reset, group_topics, plan_clone, plan_reset
from downrange.errors import (
    ConnectFailed,
    GroupNotFound,
    NoPermission,
    OptionError,
    PartlyDone,
    ServerFailure,
)
from downrange.model import QueueId
from downrange.wire.bodies import (
    ConsumeOffset,
    ConsumeStatsBody,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsBody,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import OffsetReply
from tests.unit.client.flows.admin.test_changes import DEADLINE, cluster, servers_with
from tests.unit.client.flows.admin.test_groups import ALL, table
from tests.unit.client.flows.admin.test_members import CONNECTIONS, OFFLINE, connections
from tests.unit.client.flows.fake_servers import FakeServers, refusal, reply, route, static_route

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
CONFIG = RequestCode.GET_BROKER_CONFIG
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
A, B = QueueId("orders", "a", 0), QueueId("orders", "b", 0)
AT = datetime(2026, 1, 31, tzinfo=UTC)


def servers_with_topic(namespace: str | None = None, *, committed: int | None = 4) -> FakeServers:
    """Return two brokers with one readable queue each, which holds the offsets 2 to 9."""
    topic = "orders" if namespace is None else f"{namespace}%orders"
    servers = servers_with(cluster(main="ab"), namespace=namespace)
    servers.answer_route(topic, route("ab", queues=1))
    groups = ("billing", "audit", "prod%billing")
    for broker in "ab":
        servers.answer(f"{broker}:1", ALL, reply(body=table(*groups)))
        ends = {
            QueueId(topic, broker, number): TopicOffset(min_offset=2, max_offset=9)
            for number in (0, 1)  # the second one can only be written
        }
        stats = TopicStatsBody(offset_table=ends)
        servers.answer(f"{broker}:1", RequestCode.GET_TOPIC_STATS_INFO, reply(body=stats))
        answer = refusal(ResponseCode.QUERY_NOT_FOUND)
        if committed is not None:
            answer = reply(OffsetReply(committed))
        servers.answer(f"{broker}:1", RequestCode.QUERY_CONSUMER_OFFSET, answer)
        servers.answer(f"{broker}:1", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, reply(OffsetReply(7)))
        servers.answer(f"{broker}:1", COMMIT, reply())
    return servers


def by_server(servers: FakeServers, brokers: str = "ab") -> None:
    """Have brokers keep resets themselves, as 5.x does."""
    for broker in brokers:
        text = b"#\nbrokerName=x\nuseServerSideResetOffset=true\n"
        servers.answer(f"{broker}:1", CONFIG, reply(body=text))
        servers.answer(f"{broker}:1", RESET, reply(body=ResetOffsetBody()))


def plan(servers: FakeServers, to: Any) -> OffsetReset:
    return servers.run(plan_reset(servers.core, "billing", "orders", to, deadline=DEADLINE))


@pytest.mark.parametrize(
    ("to", "new", "is_cut", "repeated", "skipped"),
    [
        ("earliest", 2, False, 4, 0),
        ("latest", 9, False, 0, 10),
        (AT, 7, False, 0, 6),
        (5, 5, False, 0, 2),
        (0, 2, True, 4, 0),
        (99, 9, True, 0, 10),
        (Shift(-1), 3, False, 2, 0),
        (Shift(2), 6, False, 0, 4),
    ],
)
def test_a_preview_says_what_would_change(
    to: Any, new: int, is_cut: bool, repeated: int, skipped: int
) -> None:
    servers = servers_with_topic()
    found = plan(servers, to)
    queue = QueueReset(queue=A, old=4, new=new, first=2, end=9, is_cut=is_cut)
    assert found.queues == (queue, msgspec.structs.replace(queue, queue=B))
    assert (found.repeated, found.skipped, found.is_done) == (repeated, skipped, False)
    assert not servers.asked(RESET) + servers.asked(COMMIT)


def test_a_group_without_an_offset_counts_from_the_first_message() -> None:
    servers = servers_with_topic(committed=None)
    found = plan(servers, Shift(1))
    assert [(queue.old, queue.new, queue.change) for queue in found.queues] == [(None, 3, 1)] * 2


def test_a_mapping_changes_only_its_queues() -> None:
    servers = servers_with_topic()
    (found,) = plan(servers, {B: 8}).queues
    assert (found.queue, found.new) == (B, 8)


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("soon", "is not 'earliest', 'latest', a datetime"),
        (None, "is not 'earliest'"),
        (-1, "to=-1 is below 0; use Shift"),
        (True, "to must be an int"),
        (datetime(2026, 1, 1), "has no time zone"),
        (Shift("1"), "messages of Shift must be an int"),  # type: ignore[arg-type]
        ({}, "names no queue"),
        ({"a": 1}, "each key of to"),
        ({A: -1}, "is below 0"),
        ({QueueId("orders", "z", 0): 1}, "topic 'orders' does not have the queue"),
    ],
)
def test_a_wrong_target_is_refused(to: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        plan(servers_with_topic(), to)


def test_a_group_that_does_not_exist_cannot_be_reset() -> None:
    servers = servers_with_topic()
    with pytest.raises(GroupNotFound, match="group 'gone' does not exist"):
        servers.run(plan_reset(servers.core, "gone", "orders", "latest", deadline=DEADLINE))


def test_a_broker_that_fails_ends_the_preview() -> None:
    servers = servers_with_topic()
    servers.answer("b:1", RequestCode.QUERY_CONSUMER_OFFSET, refusal(ResponseCode.SYSTEM_ERROR))
    with pytest.raises(ServerFailure, match="b:1"):
        plan(servers, "latest")


# ---- applying ------------------------------------------------------------------------------------


def test_a_broker_that_keeps_resets_gets_the_offset_of_each_queue() -> None:
    servers = servers_with_topic("prod")
    by_server(servers)
    done = servers.run(apply_reset(servers.core, plan(servers, 5), deadline=DEADLINE))
    assert (done.is_done, [queue.new for queue in done.queues]) == (True, [5, 5])
    assert servers.asked(RESET) == ["a:1", "b:1"]
    assert servers.fields(RESET) == {
        "topic": "prod%orders",
        "group": "prod%billing",
        "timestamp": "0",
        "isForce": "true",
        "queueId": "0",
        "offset": "5",
    }
    assert not servers.asked(COMMIT)


def by_members(servers: FakeServers, *, members: bool) -> None:
    """Have brokers tell resets to members, as 4.9 does."""
    for broker in "ab":
        servers.answer(f"{broker}:1", CONFIG, reply(body=b"brokerName=x\n"))
        answer = reply(body=connections("one")) if members else OFFLINE
        servers.answer(f"{broker}:1", CONNECTIONS, answer)
        told = ResetOffsetBody(offset_table={A: 8})
        servers.answer(f"{broker}:1", RESET, reply(body=told))


@pytest.mark.parametrize(("to", "time"), [(AT, 1769817600000), ("earliest", 0), ("latest", -1)])
def test_an_old_broker_tells_its_members_a_time(to: Any, time: int) -> None:
    servers = servers_with_topic()
    by_members(servers, members=True)
    planned = plan(servers, to)
    done = servers.run(apply_reset(servers.core, planned, deadline=DEADLINE))
    assert servers.fields(RESET)["timestamp"] == str(time)
    assert "offset" not in servers.fields(RESET)
    assert servers.asked(COMMIT) == ["a:1", "b:1"]
    assert [queue.new for queue in done.queues] == [8, planned.queues[1].new]


def test_an_old_broker_cannot_tell_its_members_an_offset() -> None:
    servers = servers_with_topic()
    by_members(servers, members=True)
    with pytest.raises(OptionError, match=r"broker a at a:1 can tell connected members") as error:
        servers.run(apply_reset(servers.core, plan(servers, 5), deadline=DEADLINE))
    assert "Stop the 1 member(s) first" in str(error.value)
    assert not servers.asked(COMMIT)


def test_an_old_broker_without_members_gets_commits() -> None:
    servers = servers_with_topic()
    by_members(servers, members=False)
    for to in (5, "latest"):
        servers.run(apply_reset(servers.core, plan(servers, to), deadline=DEADLINE))
    assert servers.asked(COMMIT) == ["a:1", "b:1", "a:1", "b:1"]
    assert not servers.asked(RESET)


def test_a_reset_that_one_broker_refuses_names_both() -> None:
    servers = servers_with_topic()
    by_server(servers)
    servers.answer("b:1", RESET, refusal(ResponseCode.NO_PERMISSION))
    planned = plan(servers, 5)
    with pytest.raises(PartlyDone, match="done on a, but not on b") as error:
        servers.run(apply_reset(servers.core, planned, deadline=DEADLINE))
    assert isinstance(error.value.failures["b"], NoPermission)
    servers.answer("a:1", CONFIG, ConnectFailed("a:1", "refused"))
    with pytest.raises(ConnectFailed):
        servers.run(apply_reset(servers.core, planned, deadline=DEADLINE))
    with pytest.raises(OptionError, match="reset must be an OffsetReset of plan_reset"):
        servers.run(apply_reset(servers.core, "latest", deadline=DEADLINE))  # type: ignore[arg-type]


def test_a_static_topic_gets_commits() -> None:
    servers = servers_with_topic()
    servers.answer_route("orders", static_route({"a": [0], "b": [1]}, total=2))
    logical = QueueId("orders", "__syslo__global__", 0)
    reset = OffsetReset(
        group="billing",
        topic="orders",
        queues=(QueueReset(queue=logical, old=1, new=3, first=0, end=9),),
    )
    done = servers.run(apply_reset(servers.core, reset, deadline=DEADLINE))
    assert done.is_done
    assert len(servers.asked(COMMIT)) == 1


# ---- clones --------------------------------------------------------------------------------------


def test_a_clone_gives_the_offsets_of_another_group() -> None:
    servers = servers_with_topic()
    old = {"billing": 4, "audit": 6}
    servers.answer(
        "a:1",
        RequestCode.QUERY_CONSUMER_OFFSET,
        lambda command: reply(OffsetReply(old[command.fields["consumerGroup"]])),
    )
    servers.answer("b:1", RequestCode.QUERY_CONSUMER_OFFSET, refusal(ResponseCode.QUERY_NOT_FOUND))

    def clone(source: str, target: str) -> OffsetReset:
        return servers.run(plan_clone(servers.core, source, target, "orders", deadline=DEADLINE))

    found = clone("audit", "billing")
    assert [(queue.queue, queue.old, queue.new) for queue in found.queues] == [(A, 4, 6)]
    with pytest.raises(OptionError, match="the same group"):
        clone("audit", "audit")
    servers.answer("a:1", RequestCode.QUERY_CONSUMER_OFFSET, refusal(ResponseCode.QUERY_NOT_FOUND))
    with pytest.raises(OptionError, match="group 'audit' has no offset in topic 'orders'"):
        clone("audit", "billing")


def test_the_topics_of_a_group_are_those_with_offsets() -> None:
    servers = servers_with(cluster(main="ab"), namespace="prod")
    for broker, topic in (("a", "prod%orders"), ("b", "%RETRY%prod%billing")):
        table = {QueueId(topic, broker, 0): ConsumeOffset()}
        body = ConsumeStatsBody(offset_table=table)
        servers.answer(f"{broker}:1", RequestCode.GET_CONSUME_STATS, reply(body=body))

    def topics(with_retries: bool) -> list[str]:
        return servers.run(
            group_topics(servers.core, "billing", with_retries=with_retries, deadline=DEADLINE)
        )

    assert topics(False) == ["orders"]
    assert topics(True) == ["%RETRY%billing", "orders"]
