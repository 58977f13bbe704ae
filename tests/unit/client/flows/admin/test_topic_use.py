from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.admin.topic_use import queue_ranges, topic_groups, topic_traffic
from downrange.errors import ServerFailure
from downrange.model import QueueId
from downrange.wire.bodies import Count, CountsBody, GroupNamesBody, TopicOffset, TopicStatsBody
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import EarliestTimeReply
from tests.unit.client.flows.admin.test_changes import DEADLINE
from tests.unit.client.flows.fake_servers import FakeServers, refusal, reply, route

if TYPE_CHECKING:
    from downrange.wire.command import Command

EARLIEST = RequestCode.GET_EARLIEST_MSG_STORETIME


def test_ranges_have_the_times_of_the_first_and_the_last_message() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("a"))
    table = {
        QueueId("orders", "a", 0): TopicOffset(
            min_offset=1, max_offset=3, last_update_timestamp=2000
        ),
        QueueId("orders", "a", 1): TopicOffset(),
    }
    stats = TopicStatsBody(offset_table=table)
    servers.answer("a:1", RequestCode.GET_TOPIC_STATS_INFO, reply(body=stats))
    servers.answer("a:1", EARLIEST, reply(EarliestTimeReply(1000)))
    full, empty = servers.run(queue_ranges(servers.core, "orders", deadline=DEADLINE))
    first, last = (datetime.fromtimestamp(second, UTC) for second in (1, 2))
    assert (full.first, full.end, full.first_stored_at, full.last_stored_at) == (1, 3, first, last)
    assert (empty.first_stored_at, empty.last_stored_at) == (None, None)
    servers.answer("a:1", EARLIEST, refusal(ResponseCode.SYSTEM_ERROR))
    with pytest.raises(ServerFailure):
        servers.run(queue_ranges(servers.core, "orders", deadline=DEADLINE))


def test_groups_and_their_traffic_are_added_up_over_brokers() -> None:
    servers = FakeServers(namespace="prod")
    servers.answer_route("prod%orders", route("ab"))
    for broker, group in (("a", "prod%billing"), ("b", "prod%audit")):
        body = GroupNamesBody(group_list=[group])
        servers.answer(f"{broker}:1", RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, reply(body=body))
    counts = CountsBody(stats_minute=Count(sum=60, tps=1.0), stats_day=Count(sum=600))
    code = RequestCode.VIEW_BROKER_STATS_DATA
    servers.answer("a:1", code, reply(body=counts))
    servers.answer(
        "b:1",
        code,
        lambda command: (
            reply(body=counts)
            if command.fields["statsKey"] == "prod%orders@prod%audit"
            else refusal(ResponseCode.SYSTEM_ERROR)
        ),
    )
    assert servers.run(topic_groups(servers.core, "orders", deadline=DEADLINE)) == [
        *("audit", "billing"),
    ]
    found = servers.run(topic_traffic(servers.core, "orders", deadline=DEADLINE))
    assert [(each.group, each.rate, each.minute, each.day) for each in found] == [
        (None, 1.0, 60, 600),
        ("audit", 2.0, 120, 1200),
        ("billing", 1.0, 60, 600),
    ]
    (alone,) = servers.run(
        topic_traffic(servers.core, "orders", with_groups=False, deadline=DEADLINE)
    )
    assert (alone.group, alone.rate, alone.mean_bytes) == (None, 1.0, None)


def _counter(bodies: dict[str, CountsBody], command: Command) -> Command:
    return reply(body=bodies[command.fields["statsName"]])


def test_sizes_and_days_go_by_the_longest_time_that_has_a_sample() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("abc"))
    code = RequestCode.VIEW_BROKER_STATS_DATA
    day, hour = Count(sum=600), Count(sum=60)
    counts = {
        "a": (CountsBody(stats_minute=Count(sum=6), stats_hour=hour, stats_day=day), 1000),
        "b": (CountsBody(stats_minute=Count(sum=6), stats_hour=hour), 2000),
    }
    for broker, (body, size) in counts.items():
        sizes = CountsBody(
            stats_minute=Count(sum=body.stats_minute.sum * size),
            stats_hour=Count(sum=body.stats_hour.sum * size),
            stats_day=Count(sum=body.stats_day.sum * size),
        )
        by_name = {"TOPIC_PUT_NUMS": body, "TOPIC_PUT_SIZE": sizes}
        servers.answer(f"{broker}:1", code, partial(_counter, by_name))
    servers.answer("c:1", code, refusal(ResponseCode.SYSTEM_ERROR))
    (sent,) = servers.run(
        topic_traffic(servers.core, "orders", with_groups=False, with_sizes=True, deadline=DEADLINE)
    )
    assert (sent.minute, sent.day) == (12, 660)
    assert sent.mean_bytes == (600 * 1000 + 60 * 2000) / 660
