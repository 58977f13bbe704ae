from __future__ import annotations

from datetime import UTC, datetime

import pytest

from downrange.client.flows.admin.waiting import delay_offsets, timed_messages
from downrange.errors import ServerFailure
from downrange.wire.bodies import DelayOffsetsBody, TimedCount, TimedCountsBody
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.admin.test_changes import DEADLINE, cluster
from tests.unit.client.flows.fake_servers import NAME_SERVER, FakeServers, refusal, reply

DELAYS, TIMERS = RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_TIMER_METRICS


def servers_of(namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer(NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO, reply(body=cluster(main="ab")))
    return servers


def test_delivered_offsets_are_those_of_each_broker() -> None:
    servers = servers_of()
    servers.answer("a:1", DELAYS, reply(body=DelayOffsetsBody(offset_table={3: 7})))
    servers.answer("b:1", DELAYS, reply(body=DelayOffsetsBody()))
    found = servers.run(delay_offsets(servers.core, deadline=DEADLINE))
    assert found == {"a": {3: 7}, "b": {}}


def test_timed_messages_leave_out_brokers_of_4_9() -> None:
    servers = servers_of("prod")
    counts = {"prod%orders": TimedCount(count=2, time_stamp=1000)}
    servers.answer("a:1", TIMERS, reply(body=TimedCountsBody(timing_count=counts)))
    servers.answer("b:1", TIMERS, refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    found = servers.run(timed_messages(servers.core, deadline=DEADLINE))
    assert found.keys() == {"a"}
    (orders,) = found["a"]
    assert (orders.topic, orders.waiting) == ("orders", 2)
    assert orders.changed_at == datetime.fromtimestamp(1, UTC)


def test_a_broker_that_fails_to_count_timed_messages_is_an_error() -> None:
    servers = servers_of()
    servers.answer("a:1", TIMERS, reply(body=TimedCountsBody()))
    servers.answer("b:1", TIMERS, refusal(ResponseCode.SYSTEM_ERROR, "broken"))
    with pytest.raises(ServerFailure, match="broken"):
        servers.run(timed_messages(servers.core, deadline=DEADLINE))
