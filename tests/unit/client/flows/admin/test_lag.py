from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from downrange.client.flows.admin.lag import group_lag
from downrange.errors import ConnectFailed, GroupNotFound
from downrange.model import QueueId
from downrange.wire.bodies import (
    ConsumeOffset,
    ConsumeStatsBody,
    QueueTimeSpan,
    TimeSpansBody,
)
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.admin.test_changes import DEADLINE
from tests.unit.client.flows.admin.test_groups import servers_with_groups
from tests.unit.client.flows.admin.test_members import CONNECTIONS, STATE, connections, state
from tests.unit.client.flows.fake_servers import FakeServers, refusal, reply

STATS = RequestCode.GET_CONSUME_STATS
TIMES = RequestCode.QUERY_CONSUME_TIME_SPAN
BEHIND, LEVEL = QueueId("prod%orders", "a", 0), QueueId("prod%orders", "a", 1)


def servers_behind() -> FakeServers:
    servers = servers_with_groups("prod%billing", namespace="prod")
    body = ConsumeStatsBody(
        offset_table={
            BEHIND: ConsumeOffset(
                broker_offset=9, consumer_offset=4, pull_offset=6, last_timestamp=2000
            ),
            LEVEL: ConsumeOffset(broker_offset=3, consumer_offset=3),
        },
        consume_tps=2.0,
    )
    servers.answer("a:1", STATS, reply(body=body))
    servers.answer("b:1", STATS, refusal(ResponseCode.TOPIC_NOT_EXIST))
    return servers


def answer_age(servers: FakeServers, delay_ms: int, first_ms: int) -> None:
    spans = [
        QueueTimeSpan(message_queue=queue, delay_time=delay_ms, min_time_stamp=first_ms)
        for queue in (BEHIND, LEVEL)
    ]
    servers.answer("a:1", TIMES, reply(body=TimeSpansBody(consume_time_span_set=spans)))


def test_lag_is_shown_in_messages_and_time() -> None:
    servers = servers_behind()
    answer_age(servers, 5000, servers.clock.wall_ms() - 6000)
    lag = servers.run(group_lag(servers.core, "billing", topic="orders", deadline=DEADLINE))
    assert servers.fields(STATS) == {"consumerGroup": "prod%billing", "topic": "prod%orders"}
    behind, level = lag.queues
    assert (behind.queue, behind.messages, behind.in_flight) == (QueueId("orders", "a", 0), 5, 2)
    assert (behind.age, behind.consumed_at) == (
        timedelta(seconds=5),
        datetime.fromtimestamp(2, UTC),
    )
    assert (level.messages, level.age, level.in_flight, level.consumed_at) == (0, None, None, None)
    assert (lag.messages, lag.age, lag.rate, lag.unanswered) == (5, timedelta(seconds=5), 2.0, ())


def test_the_first_message_counts_when_that_of_the_group_has_expired() -> None:
    servers = servers_behind()
    now_ms = servers.clock.wall_ms()
    answer_age(servers, now_ms + 1, now_ms - 7000)
    lag = servers.run(group_lag(servers.core, "billing", deadline=DEADLINE))
    assert lag.age == timedelta(seconds=7)


def test_lag_is_shown_without_the_times_of_a_broker_that_fails() -> None:
    servers = servers_behind()
    servers.answer("a:1", TIMES, refusal(ResponseCode.SYSTEM_ERROR))
    servers.answer("b:1", STATS, ConnectFailed("b:1", "refused"))
    lag = servers.run(group_lag(servers.core, "billing", deadline=DEADLINE))
    assert (lag.messages, lag.age) == (5, None)
    assert [each.broker for each in lag.unanswered] == ["b"]


def test_queues_have_the_members_that_read_them() -> None:
    servers = servers_behind()
    answer_age(servers, 5000, 0)
    servers.answer("a:1", CONNECTIONS, reply(body=connections("one")))
    servers.answer("b:1", CONNECTIONS, refusal(ResponseCode.CONSUMER_NOT_ONLINE))
    body = state({}, BEHIND, LEVEL)
    body.mq_table[LEVEL].droped = True
    servers.answer("a:1", STATE, reply(body=body))
    lag = servers.run(group_lag(servers.core, "billing", with_owners=True, deadline=DEADLINE))
    assert [queue.owner for queue in lag.queues] == ["one", None]
    assert lag.age == timedelta(seconds=5)


def test_a_group_that_has_read_nothing_is_not_behind_unless_it_does_not_exist() -> None:
    servers = servers_with_groups("billing", brokers="a")
    servers.answer("a:1", STATS, reply(body=ConsumeStatsBody()))
    lag = servers.run(group_lag(servers.core, "billing", deadline=DEADLINE))
    assert (lag.queues, lag.messages, lag.age) == ((), 0, None)
    with pytest.raises(GroupNotFound):
        servers.run(group_lag(servers.core, "gone", deadline=DEADLINE))
