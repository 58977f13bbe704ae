"""Locks on queues at the brokers."""

from __future__ import annotations

from downrange.client.flows.consuming.queue_locks import lock, unlock
from downrange.errors import ConnectFailed
from downrange.model import QueueId
from downrange.wire.bodies import LockQueuesBody, decode_body
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.system_names import HANDOVER_SUFFIX
from tests.unit.client.flows.consuming.group_stage import A0, A1, GROUP, ME, TOPIC, Stage
from tests.unit.client.flows.fake_servers import NAME_SERVER, refusal

B0 = QueueId(TOPIC, "b", 0)


def test_one_request_per_broker_names_its_queues() -> None:
    stage = Stage(brokers="ab")
    stage.refused = {A1}
    flow = lock(stage.servers.core, GROUP, [A0, A1, B0], deadline=103)
    assert stage.run(flow) == ({A0, B0}, {A1})
    assert stage.queues_asked(RequestCode.LOCK_BATCH_MQ) == [{A0, A1}, {B0}]
    body = decode_body(LockQueuesBody, stage.servers.calls[-1][1].body)
    assert (body.consumer_group, body.client_id) == (GROUP, ME)


def test_queues_of_a_broker_that_does_not_answer_are_neither_locked_nor_refused() -> None:
    stage = Stage(brokers="ab")
    stage.servers.answer("a:1", RequestCode.LOCK_BATCH_MQ, ConnectFailed("a:1", "away"))
    assert stage.run(lock(stage.servers.core, GROUP, [A0, B0], deadline=103)) == ({B0}, set())


def test_queues_without_a_master_are_left_out() -> None:
    stage = Stage()
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    stage.servers.answer(NAME_SERVER, code, ConnectFailed(NAME_SERVER, "away"))
    assert stage.run(lock(stage.servers.core, GROUP, [A0], deadline=103)) == (set(), set())


def test_locks_for_handovers_may_be_forbidden() -> None:
    stage = Stage()
    refused = refusal(ResponseCode.NO_PERMISSION)
    stage.servers.answer("a:1", RequestCode.LOCK_BATCH_MQ, refused)
    group = GROUP + HANDOVER_SUFFIX
    assert stage.run(lock(stage.servers.core, group, [A0], deadline=103)) == ({A0}, set())
    assert stage.run(lock(stage.servers.core, GROUP, [A0], deadline=103)) == (set(), set())


def test_unlock_counts_requests_that_failed() -> None:
    stage = Stage(brokers="ab")
    stage.servers.answer("a:1", RequestCode.UNLOCK_BATCH_MQ, ConnectFailed("a:1", "away"))
    assert stage.run(unlock(stage.servers.core, GROUP, [A0, B0], deadline=103)) == 1


def test_names_carry_the_namespace_for_brokers_only() -> None:
    stage = Stage(namespace="prod")
    assert stage.run(lock(stage.servers.core, "prod%billing", [A0], deadline=103)) == ({A0}, set())
    assert stage.queues_asked(RequestCode.LOCK_BATCH_MQ) == [{QueueId("prod%orders", "a", 0)}]
