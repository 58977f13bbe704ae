"""The ends of the logs of brokers, from which on messages are new."""

from __future__ import annotations

import pytest

from downrange.errors import ServerError
from downrange.testing.topic_reader import find_log_ends
from downrange.wire.bodies import KeyValueBody
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.admin.test_changes import cluster
from tests.unit.client.flows.fake_servers import NAME_SERVER, FakeServers, refusal, reply

FIGURES = RequestCode.GET_BROKER_RUNTIME_INFO
REFUSED = refusal(ResponseCode.SYSTEM_ERROR)


@pytest.fixture
def servers() -> FakeServers:
    servers = FakeServers()
    servers.answer(NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO, reply(body=cluster(main="a")))
    return servers


def test_a_broker_that_has_just_started_is_asked_again(servers: FakeServers) -> None:
    figures = reply(body=KeyValueBody(table={"commitLogMaxOffset": "42"}))
    servers.answer("a:1", FIGURES, REFUSED, REFUSED, figures)
    deadline = servers.clock.now() + 10.0
    assert servers.run(find_log_ends(servers.core, deadline=deadline)) == {"a": 42}


def test_a_refusal_is_raised_at_the_deadline(servers: FakeServers) -> None:
    servers.answer("a:1", FIGURES, REFUSED)
    deadline = servers.clock.now() + 2.0
    with pytest.raises(ServerError):
        servers.run(find_log_ends(servers.core, deadline=deadline))
    assert servers.clock.now() <= deadline
