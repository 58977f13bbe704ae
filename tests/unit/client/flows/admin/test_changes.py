from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.admin.changes import (
    create_missing_topic,
    create_topic,
    delete_topic,
    update_topic,
)
from downrange.client.flows.admin.groups import create_group, delete_group
from downrange.errors import (
    BrokerNotFound,
    ConnectFailed,
    OptionError,
    RouteNotFound,
    ServerFailure,
)
from downrange.wire.bodies import (
    BrokerReplicas,
    ClusterBody,
    GroupConfig,
    TopicConfig,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.fake_servers import (
    NAME_SERVER,
    FakeServers,
    refusal,
    reply,
    route,
    static_route,
)

if TYPE_CHECKING:
    from downrange.wire.command import Command

CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC
DEADLINE = 103.0


def cluster(**clusters: str) -> ClusterBody:
    """Return clusters with brokers named by one letter; a capital letter has no master."""
    return ClusterBody(
        cluster_addr_table={name: list(brokers) for name, brokers in clusters.items()},
        broker_addr_table={
            broker: BrokerReplicas(
                broker_name=broker,
                cluster=name,
                broker_addrs={0 if broker.islower() else 1: f"{broker}:1"},
            )
            for name, brokers in clusters.items()
            for broker in brokers
        },
    )


def servers_with(body: ClusterBody, *, namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer(NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO, reply(body=body))
    for broker in body.broker_addr_table:
        for code in (CREATE, RequestCode.DELETE_TOPIC_IN_BROKER):
            servers.answer(f"{broker}:1", code, reply())
    return servers


# ---- creating ------------------------------------------------------------------------------------


def test_topic_is_created_on_every_master_of_the_only_cluster() -> None:
    servers = servers_with(cluster(main="abC"))
    servers.answer_route("orders", route("ab", queues=4))
    settings = servers.run(create_topic(servers.core, "orders", queues=4, deadline=DEADLINE))
    assert servers.asked(CREATE) == ["a:1", "b:1"]
    assert settings.brokers == ("a", "b")
    assert (settings.topic, settings.read_queues, settings.write_queues) == ("orders", 4, 4)


def test_creation_carries_what_was_asked_for() -> None:
    servers = servers_with(cluster(main="a"))
    body = route("a", perm=4)
    body.queue_datas[0].read_queue_nums = 3
    servers.answer_route("orders", body)
    servers.run(
        create_topic(
            servers.core,
            "orders",
            read_queues=3,
            write_queues=2,
            permission=4,
            is_ordered=True,
            attributes={"message.type": "FIFO"},
            deadline=DEADLINE,
        )
    )
    assert servers.fields(CREATE) == {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "2",
        "perm": "4",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "true",
        "attributes": "+message.type=FIFO",
    }


def test_creation_waits_until_the_name_server_shows_all_brokers() -> None:
    servers = servers_with(cluster(main="ab"))
    answers = [refusal(ResponseCode.TOPIC_NOT_EXIST)] * 2  # before and after it is created
    answers += [reply(body=route(brokers, queues=8)) for brokers in ("a", "ab")]
    servers.answer(NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC, *answers)
    servers.run(create_topic(servers.core, "orders", deadline=DEADLINE))
    assert len(servers.interpreter.pauses) == 2


def test_creation_says_so_when_the_name_server_never_shows_it() -> None:
    servers = servers_with(cluster(main="ab"))
    servers.answer_route("orders", route("a", queues=8))
    with pytest.raises(RouteNotFound, match="on a, b, which have it already"):
        servers.run(create_topic(servers.core, "orders", deadline=DEADLINE))
    assert servers.clock.now() <= DEADLINE


def test_creation_renews_a_route_that_is_in_use_and_no_other() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer_route("orders", route("a", queues=8))
    servers.run(create_topic(servers.core, "orders", deadline=DEADLINE))
    assert servers.core.routes.topics() == []

    servers.run(create_missing_topic(servers.core, "orders", 8, DEADLINE))
    servers.answer_route("orders", route("a", queues=9))
    servers.run(create_topic(servers.core, "orders", queues=9, deadline=DEADLINE))
    known = servers.core.routes.get("orders")
    assert known is not None
    assert len(known.writable) == 9


def test_creation_puts_the_namespace_on_and_takes_it_off() -> None:
    servers = servers_with(cluster(main="a"), namespace="prod")
    servers.answer_route("prod%orders", route("a", queues=8))
    settings = servers.run(create_topic(servers.core, "orders", deadline=DEADLINE))
    assert servers.fields(CREATE)["topic"] == "prod%orders"
    assert settings.topic == "orders"


def test_creation_on_named_brokers_leaves_the_others_alone() -> None:
    servers = servers_with(cluster(main="ab", other="c"))
    servers.answer_route("orders", route("b", queues=8))
    servers.run(create_topic(servers.core, "orders", brokers=["b"], deadline=DEADLINE))
    assert servers.asked(CREATE) == ["b:1"]


def test_creation_in_a_named_cluster_leaves_the_others_alone() -> None:
    servers = servers_with(cluster(main="ab", other="c"))
    servers.answer_route("orders", route("c", queues=8))
    servers.run(create_topic(servers.core, "orders", cluster="other", deadline=DEADLINE))
    assert servers.asked(CREATE) == ["c:1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, r"several clusters, give one: \['main', 'other'\]"),
        ({"cluster": "mian"}, r"cluster='mian' is not one of \['main', 'other'\]"),
        ({"brokers": ["x"]}, r"brokers=\['x'\] are not among \['a', 'c'\]"),
        ({"brokers": []}, r"brokers=\[\] are not among"),
    ],
)
def test_creation_refuses_a_place_that_is_not_there(
    arguments: dict[str, list[str] | str], text: str
) -> None:
    servers = servers_with(cluster(main="a", other="c"))
    with pytest.raises(OptionError, match=text):
        servers.run(create_topic(servers.core, "orders", deadline=DEADLINE, **arguments))  # type: ignore[arg-type]
    assert servers.asked(CREATE) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"queues": 0}, "queues=0"),
        ({"read_queues": 0}, "read_queues=0"),
        ({"write_queues": 2**31}, "write_queues=2147483648"),
        ({"permission": 8}, "permission=8"),
        ({"attributes": {"a": "b,c"}}, "attribute 'a'='b,c'"),
        ({"attributes": {"": "b"}}, "attribute ''"),
    ],
)
def test_creation_refuses_invalid_settings(arguments: dict[str, int], text: str) -> None:
    servers = servers_with(cluster(main="a"))
    with pytest.raises(OptionError, match=text):
        servers.run(create_topic(servers.core, "orders", deadline=DEADLINE, **arguments))  # type: ignore[arg-type]
    assert servers.calls == []


def test_creation_refuses_a_name_that_is_none() -> None:
    servers = servers_with(cluster(main="a"))
    with pytest.raises(OptionError, match="or ders"):
        servers.run(create_topic(servers.core, "or ders", deadline=DEADLINE))


def test_creation_fails_where_there_is_no_master() -> None:
    servers = servers_with(cluster(main="A"))
    with pytest.raises(BrokerNotFound, match="no broker with a master is registered"):
        servers.run(create_topic(servers.core, "orders", deadline=DEADLINE))


def test_creation_fails_with_the_broker_that_fails() -> None:
    servers = servers_with(cluster(main="ab"))
    servers.answer_route("orders", None)
    servers.answer("b:1", CREATE, refusal(ResponseCode.SYSTEM_ERROR, "disk"))
    with pytest.raises(ServerFailure, match="b:1 answered with code 1: disk"):
        servers.run(create_topic(servers.core, "orders", deadline=DEADLINE))


def test_the_number_of_queues_of_a_static_topic_cannot_be_changed() -> None:
    servers = servers_with(cluster(main="ab"))
    servers.answer_route("orders", static_route({"a": (0, 2), "b": (1, 3)}))
    with pytest.raises(OptionError, match=r"'orders' is a static topic: .* `mqadmin updateSta"):
        servers.run(create_topic(servers.core, "orders", deadline=DEADLINE))
    config = reply(body=TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    for broker in "ab":
        servers.answer(f"{broker}:1", RequestCode.GET_TOPIC_CONFIG, config)
    for change in (
        update_topic(servers.core, "orders", read_queues=3, deadline=DEADLINE),
        update_topic(servers.core, "orders", write_queues=3, deadline=DEADLINE),
    ):
        with pytest.raises(OptionError, match="is a static topic"):
            servers.run(change)
    assert servers.asked(CREATE) == []


def test_the_permission_of_a_static_topic_can_be_changed() -> None:
    servers = servers_with(cluster(main="ab"))
    servers.answer_route("orders", static_route({"a": (0, 2), "b": (1, 3)}, perm=4))
    config = reply(body=TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    for broker in "ab":
        servers.answer(f"{broker}:1", RequestCode.GET_TOPIC_CONFIG, config)
    servers.run(update_topic(servers.core, "orders", permission=4, deadline=DEADLINE))
    assert servers.asked(CREATE) == ["a:1", "b:1"]
    fields = servers.fields(CREATE)
    assert (fields["readQueueNums"], fields["writeQueueNums"], fields["perm"]) == ("2", "2", "4")


# ---- creating what is missing --------------------------------------------------------------------


def test_missing_topic_is_created_on_every_master_of_the_default_topic() -> None:
    servers = servers_with(cluster(main="abc"))
    servers.answer_route("TBW102", route("ab"))

    def create(_: Command) -> Command:
        servers.answer_route("orders", route("ab", queues=4))
        return reply()

    servers.answer("b:1", CREATE, create)
    servers.run(create_missing_topic(servers.core, "orders", 4, DEADLINE))
    assert servers.asked(CREATE) == ["a:1", "b:1"]
    assert servers.fields(CREATE)["writeQueueNums"] == "4"
    known = servers.core.routes.get("orders")
    assert known is not None
    assert not known.is_borrowed
    assert len(known.writable) == 8


def test_topic_that_is_there_is_not_created_again() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer_route("orders", route("a"))
    servers.run(create_missing_topic(servers.core, "orders", 4, DEADLINE))
    assert servers.asked(CREATE) == []
    assert servers.core.routes.get("orders") is not None


def test_missing_topic_stays_missing_where_topics_are_made_by_hand() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer_route("TBW102", None)
    with pytest.raises(RouteNotFound, match="no TBW102 route"):
        servers.run(create_missing_topic(servers.core, "orders", 4, DEADLINE))


# ---- changing and deleting -----------------------------------------------------------------------


def test_update_keeps_what_it_does_not_name() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer_route("orders", route("a", queues=8))
    config = TopicConfig(
        topic_name="orders",
        read_queue_nums=8,
        write_queue_nums=8,
        order=True,
        attributes={"x": "1", "y": "2"},
    )
    servers.answer("a:1", RequestCode.GET_TOPIC_CONFIG, reply(body=config))

    def change(_: Command) -> Command:
        changed = route("a", queues=8)
        changed.queue_datas[0].write_queue_nums = 4
        servers.answer_route("orders", changed)
        return reply()

    servers.answer("a:1", CREATE, change)
    changed = servers.run(
        update_topic(
            servers.core,
            "orders",
            write_queues=4,
            attributes={"x": None, "z": "3"},
            deadline=DEADLINE,
        )
    )
    fields = servers.fields(CREATE)
    assert (fields["readQueueNums"], fields["writeQueueNums"]) == ("8", "4")
    assert (fields["perm"], fields["order"]) == ("6", "true")
    assert fields["attributes"] == "-x,+z=3"
    assert changed["a"].attributes == {"y": "2", "z": "3"}
    assert changed["a"].brokers == ("a",)


def test_update_can_change_everything() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer_route("orders", route("a", queues=3, perm=4))
    servers.answer(
        "a:1", RequestCode.GET_TOPIC_CONFIG, reply(body=TopicConfig(topic_name="orders"))
    )
    changed = servers.run(
        update_topic(
            servers.core,
            "orders",
            read_queues=3,
            write_queues=3,
            permission=4,
            is_ordered=True,
            brokers=["a"],
            deadline=DEADLINE,
        )
    )["a"]
    assert (changed.read_queues, changed.write_queues) == (3, 3)
    assert (changed.permission, changed.is_ordered) == (4, True)


def test_update_refuses_a_broker_that_does_not_have_the_topic() -> None:
    servers = servers_with(cluster(main="ab"))
    servers.answer_route("orders", route("a"))
    servers.answer(
        "a:1", RequestCode.GET_TOPIC_CONFIG, reply(body=TopicConfig(topic_name="orders"))
    )
    with pytest.raises(OptionError, match=r"\['b'\] are not among \['a'\]"):
        servers.run(update_topic(servers.core, "orders", brokers=["b"], deadline=DEADLINE))


def test_deletion_begins_at_the_brokers_and_ends_at_the_name_servers() -> None:
    servers = servers_with(cluster(main="ab"), namespace="prod")
    servers.answer(NAME_SERVER, RequestCode.DELETE_TOPIC_IN_NAMESRV, reply())
    servers.answer_route("prod%orders", route("ab"))
    servers.run(create_missing_topic(servers.core, "prod%orders", 4, DEADLINE))
    servers.calls.clear()
    servers.run(delete_topic(servers.core, "orders", deadline=DEADLINE))
    assert [address for address, _ in servers.calls[1:]] == ["a:1", "b:1", NAME_SERVER]
    assert servers.fields(RequestCode.DELETE_TOPIC_IN_NAMESRV) == {"topic": "prod%orders"}
    assert servers.core.routes.get("prod%orders") is None


# ---- groups --------------------------------------------------------------------------------------


def test_group_is_created_on_every_master() -> None:
    servers = servers_with(cluster(main="ab"), namespace="prod")
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    for address in ("a:1", "b:1"):
        servers.answer(address, code, reply())
    servers.run(create_group(servers.core, "billing", retries=3, deadline=DEADLINE))
    assert servers.asked(code) == ["a:1", "b:1"]
    body = decode_body(GroupConfig, servers.calls[-1][1].body)
    assert (body.group_name, body.retry_max_times) == ("prod%billing", 3)


def test_group_is_deleted_with_its_progress_whatever_the_release() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer("a:1", RequestCode.DELETE_SUBSCRIPTIONGROUP, reply())
    servers.run(delete_group(servers.core, "billing", deadline=DEADLINE))
    assert servers.fields(RequestCode.DELETE_SUBSCRIPTIONGROUP) == {
        "groupName": "billing",
        "cleanOffset": "true",
        "removeOffset": "true",
    }


def test_group_cannot_be_changed_when_no_server_answers() -> None:
    servers = FakeServers()
    with pytest.raises(ConnectFailed, match=NAME_SERVER):
        servers.run(create_group(servers.core, "billing", deadline=DEADLINE))
