from __future__ import annotations

import json

import pytest

from downrange.client.flows.admin.clusters import all_masters
from downrange.client.flows.admin.groups import (
    create_group,
    delete_group,
    group_settings,
    list_groups,
    update_group,
)
from downrange.client.flows.admin.reports import Unanswered
from downrange.errors import BrokerNotFound, ConnectFailed, GroupNotFound, OptionError, PartlyDone
from downrange.model import QueueId
from downrange.wire.bodies import (
    BrokerConsumeStatsBody,
    ClientConnection,
    ConsumeOffset,
    ConsumerConnectionsBody,
    ConsumeStatsBody,
    GroupConfig,
    GroupTableBody,
)
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.admin.test_changes import DEADLINE, cluster, servers_with
from tests.unit.client.flows.fake_servers import NAME_SERVER, FakeServers, refusal, reply

ALL = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
PUT = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
CONNECTIONS = RequestCode.GET_CONSUMER_CONNECTION_LIST


def table(*groups: str, **changes: object) -> GroupTableBody:
    return GroupTableBody(
        subscription_group_table={
            name: GroupConfig(group_name=name, **changes)  # type: ignore[arg-type]
            for name in groups
        }
    )


def servers_with_groups(
    *groups: str, brokers: str = "ab", namespace: str | None = None
) -> FakeServers:
    servers = servers_with(cluster(main=brokers), namespace=namespace)
    for broker in brokers:
        servers.answer(f"{broker}:1", ALL, reply(body=table(*groups)))
        servers.answer(f"{broker}:1", PUT, reply())
    return servers


def test_groups_of_all_brokers_are_listed_by_name_and_kind() -> None:
    servers = servers_with_groups("billing", "CID_RMQ_SYS_TRANS")
    servers.answer("b:1", ALL, reply(body=table("audit", "billing")))
    found = servers.run(list_groups(servers.core, deadline=DEADLINE))
    assert [(each.group, each.kind, each.brokers) for each in found] == [
        ("CID_RMQ_SYS_TRANS", "system", ("a",)),
        ("audit", "normal", ("b",)),
        ("billing", "normal", ("a", "b")),
    ]
    assert found[0].members is None


@pytest.mark.parametrize("with_progress", [True, False])
def test_a_broker_that_is_down_is_named_and_the_others_are_shown(with_progress: bool) -> None:
    servers = servers_with_groups("billing")
    servers.answer("b:1", ALL, ConnectFailed("b:1", "connection refused"))
    stats = reply(body=BrokerConsumeStatsBody())
    servers.answer("a:1", RequestCode.GET_BROKER_CONSUME_STATS, stats)
    servers.answer("a:1", CONNECTIONS, refusal(ResponseCode.CONSUMER_NOT_ONLINE))
    listing = list_groups(servers.core, with_progress=with_progress, deadline=DEADLINE)
    found = servers.run(listing)
    assert [(each.group, each.brokers) for each in found] == [("billing", ("a",))]
    assert found.unanswered == (Unanswered("b", "b:1", "connection refused"),)


def test_without_any_answer_the_list_is_an_error() -> None:
    servers = servers_with_groups("billing")
    for broker in "ab":
        servers.answer(f"{broker}:1", ALL, ConnectFailed(f"{broker}:1", "connection refused"))
    with pytest.raises(ConnectFailed):
        servers.run(list_groups(servers.core, deadline=DEADLINE))


def test_a_namespace_shows_its_own_groups_and_those_of_the_system() -> None:
    servers = servers_with_groups("prod%billing", "other%x", "TOOLS_CONSUMER", namespace="prod")
    found = servers.run(list_groups(servers.core, deadline=DEADLINE))
    assert [each.group for each in found] == ["TOOLS_CONSUMER", "billing"]


def test_progress_is_added_up_over_brokers() -> None:
    servers = servers_with_groups("billing", "idle", "dark")
    queue = QueueId("orders", "a", 0)
    stats = ConsumeStatsBody(
        offset_table={queue: ConsumeOffset(broker_offset=9, consumer_offset=4)}, consume_tps=1.5
    )
    body = BrokerConsumeStatsBody(consume_stats_list=[{"billing": [stats]}, {"gone": [stats]}])
    members = ConsumerConnectionsBody(
        connection_set=[ClientConnection(client_id="c", client_addr="h:1")],
        consume_type="CONSUME_POP",
        message_model="OTHER",
    )
    for broker in "ab":
        servers.answer(f"{broker}:1", RequestCode.GET_BROKER_CONSUME_STATS, reply(body=body))
        servers.answer(
            f"{broker}:1",
            CONNECTIONS,
            lambda command: {
                "billing": reply(body=members),
                "idle": refusal(ResponseCode.CONSUMER_NOT_ONLINE),
            }.get(command.fields["consumerGroup"], refusal(ResponseCode.NO_PERMISSION)),
        )
    found = {
        each.group: each
        for each in servers.run(list_groups(servers.core, with_progress=True, deadline=DEADLINE))
    }
    billing = found["billing"]
    assert (billing.lag, billing.rate, billing.members) == (10, 3.0, 1)
    assert (billing.mode, billing.model) == ("pop", "OTHER")
    assert [(found[name].members, found[name].lag) for name in ("idle", "dark")] == [(0, 0)] * 2


def test_settings_of_a_group_are_shown_per_broker() -> None:
    servers = servers_with_groups("billing")
    servers.answer("b:1", ALL, reply(body=table("audit")))
    found = servers.run(group_settings(servers.core, "billing", deadline=DEADLINE))
    assert found.keys() == {"a"}
    assert (found["a"].retries, found["a"].is_ordered, found["a"].brokers) == (16, False, ("a",))
    with pytest.raises(GroupNotFound, match="group 'gone' does not exist on a:1, b:1") as error:
        servers.run(group_settings(servers.core, "gone", deadline=DEADLINE))
    assert error.value.addresses == ("a:1", "b:1")


def test_an_update_keeps_what_is_not_given_also_settings_that_are_not_known_here() -> None:
    servers = servers_with_groups("prod%billing", namespace="prod")
    raw = b'{"subscriptionGroupTable":{"prod%billing":{"groupName":"prod%billing","newThing":7,'
    raw += b'"attributes":{"x":"1"},"retryMaxTimes":3}}}'
    servers.answer("a:1", ALL, reply(body=raw))
    servers.answer("b:1", ALL, reply(body=table("else")))
    changed = servers.run(
        update_group(servers.core, "billing", is_enabled=False, is_ordered=True, deadline=DEADLINE)
    )
    sent = [json.loads(command.body) for _, command in servers.calls if command.code == PUT]
    assert [each["newThing"] for each in sent] == [7, 7]
    assert [each["attributes"] for each in sent] == [{}, {}]
    assert [each["consumeEnable"] for each in sent] == [False, False]
    assert (changed["b"].retries, changed["b"].is_enabled, changed["b"].is_ordered) == (
        *(3, False, True),
    )
    assert changed["a"].attributes == {"x": "1"}


def test_a_change_that_one_broker_refuses_names_both() -> None:
    servers = servers_with_groups("billing")
    servers.answer("b:1", PUT, refusal(ResponseCode.NO_PERMISSION, "read only"))
    with pytest.raises(PartlyDone) as error:
        servers.run(create_group(servers.core, "billing", is_ordered=True, deadline=DEADLINE))
    assert error.value.done == ("a",)
    assert list(error.value.failures) == ["b"]
    assert "done on a, but not on b:\n  b b:1: NoPermission, code 16: read only" in str(error.value)
    assert not error.value.retryable
    body = json.loads(servers.calls[-1][1].body)
    assert body["consumeMessageOrderly"] is True
    servers.answer("a:1", PUT, ConnectFailed("a:1", "refused"))
    with pytest.raises(ConnectFailed):
        servers.run(create_group(servers.core, "billing", deadline=DEADLINE))
    assert "consumeMessageOrderly" not in json.loads(servers.calls[-1][1].body)


def test_a_group_is_deleted_without_its_offsets_or_with_its_topics() -> None:
    servers = servers_with_groups("billing", brokers="a")
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    servers.answer("a:1", code, reply())
    servers.answer(NAME_SERVER, RequestCode.DELETE_TOPIC_IN_NAMESRV, reply())
    servers.run(delete_group(servers.core, "billing", keep_offsets=True, deadline=DEADLINE))
    assert servers.fields(code)["cleanOffset"] == "false"
    assert not servers.asked(RequestCode.DELETE_TOPIC_IN_BROKER)
    servers.run(delete_group(servers.core, "billing", with_topics=True, deadline=DEADLINE))
    deleted = [
        command.fields["topic"]
        for _, command in servers.calls
        if command.code == RequestCode.DELETE_TOPIC_IN_BROKER
    ]
    assert deleted == ["%RETRY%billing", "%DLQ%billing"]


def test_questions_go_to_all_clusters_or_to_one() -> None:
    servers = servers_with(cluster(one="ab", two="c"))
    assert list(servers.run(all_masters(servers.core, deadline=DEADLINE))) == ["a", "b", "c"]
    assert list(servers.run(all_masters(servers.core, cluster="two", deadline=DEADLINE))) == ["c"]
    with pytest.raises(OptionError, match="cluster='x' is not one of"):
        servers.run(all_masters(servers.core, cluster="x", deadline=DEADLINE))
    empty = servers_with(cluster())
    with pytest.raises(BrokerNotFound, match="no broker with a master"):
        empty.run(all_masters(empty.core, deadline=DEADLINE))
