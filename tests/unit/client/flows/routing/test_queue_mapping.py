"""Queue mappings: which broker serves each logical queue of a static topic."""

from __future__ import annotations

import pytest

from downrange.client.flows.routing.lookup import (
    find_master,
    find_replica,
    find_target,
    find_writable,
    publish_queues,
    read_queues,
    refresh_route,
)
from downrange.client.flows.routing.queue_mapping import is_logical, logical_broker, read_mapping
from downrange.client.flows.routing.routes import Route, route_of
from downrange.errors import BrokerNotFound, MalformedBody, RouteNotFound
from downrange.model import QueueId
from downrange.wire.bodies import QueueMapping, RouteBody, decode_body
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.limits import QUEUES_MAX
from tests.unit.client.flows.fake_servers import (
    NAME_SERVER,
    FakeServers,
    route,
    static_route,
)

LOGICAL = "__syslo__global__"
DEADLINE = 103.0


def logical(number: int, topic: str = "orders") -> QueueId:
    return QueueId(topic, LOGICAL, number)


def mapping(broker: str, *numbers: int, epoch: int = 1, total: int = 2) -> QueueMapping:
    ids = dict.fromkeys(numbers, 0)
    return QueueMapping(bname=broker, total_queues=total, epoch=epoch, curr_id_map=ids)


def static(served: dict[str, tuple[int, ...]], **settings: int) -> Route:
    return route_of("orders", static_route(served, **settings))


# ---- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "name"), [("__global__", LOGICAL), ("east", "__syslo__east"), ("", "__syslo__")]
)
def test_a_scope_gives_the_name_that_stands_for_its_brokers(scope: str, name: str) -> None:
    assert logical_broker(scope) == name
    assert is_logical(name)
    assert not is_logical("broker-a")


@pytest.mark.parametrize("is_newer_first", [True, False])
def test_the_newest_mapping_says_which_broker_serves_a_queue(is_newer_first: bool) -> None:
    pair = [("a", mapping("a", 0, 1, epoch=5)), ("b", mapping("b", 1, epoch=6))]
    hosts, names = read_mapping("orders", dict(pair[::-1] if is_newer_first else pair))
    assert hosts == {logical(0): "a", logical(1): "b"}
    assert names == {"a": LOGICAL, "b": LOGICAL}


def test_a_queue_that_no_broker_has_stays_in_its_place() -> None:
    hosts, _ = read_mapping("orders", {"a": mapping("a", 0, 2, 9, -1, total=3)})
    assert list(hosts.items()) == [(logical(0), "a"), (logical(1), None), (logical(2), "a")]


def test_each_scope_has_its_own_queues() -> None:
    east = mapping("e", 0, total=1)
    east.scope = "east"
    hosts, names = read_mapping("orders", {"e": east, "a": mapping("a", 0, total=1)})
    assert hosts == {logical(0): "a", QueueId("orders", "__syslo__east", 0): "e"}
    assert names == {"a": LOGICAL, "e": "__syslo__east"}


@pytest.mark.parametrize("total", [-1, QUEUES_MAX + 1])
def test_an_impossible_number_of_queues_is_an_error_that_names_it(total: int) -> None:
    with pytest.raises(MalformedBody, match=f"'orders' has {total} queues on broker 'a'; 0 to"):
        read_mapping("orders", {"a": mapping("a", total=total)})


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"a":{}}',
        '{"a":7}',
        '{"a":{"bname":"a","currIdMap":{"x":1}}}',
        '{"a":{"bname":"a","currIdMap":[1]}}',
        '{"a":{"bname":"a","totalQueues":"many"}}',
        '{"a":{"bname":"a","totalQueues":1e400}}',
        '{"a":{"bname":["a"]}}',
    ],
)
def test_a_malformed_mapping_is_a_named_error(text: str) -> None:
    servers = FakeServers()
    body = b'{"topicQueueMappingByBroker":' + text.encode() + b"}"
    servers.answer(NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC, Command(0, {}, body))
    with pytest.raises(MalformedBody, match="topicQueueMappingByBroker"):
        servers.run(refresh_route(servers.core, "orders", DEADLINE))
    assert servers.core.routes.get("orders") is None


def test_an_answer_of_apache_is_read() -> None:
    body = decode_body(
        RouteBody,
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:20431"},"brokerName":"broker-b",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-b","perm":6,"readQueueNums":2,"topicSysFlag":0,'
        b'"writeQueueNums":2}],"topicQueueMappingByBroker":{"broker-b":{"bname":"broker-b",'
        b'"currIdMap":{"1":0,"0":1},"dirty":false,"epoch":1794918608115,"scope":"__global__",'
        b'"topic":"ST1","totalQueues":2}}}',
    )
    found = route_of("ST1", body)
    assert found.writable == found.readable == (logical(0, "ST1"), logical(1, "ST1"))
    assert found.targets == (QueueId("ST1", "broker-b", 0), QueueId("ST1", "broker-b", 1))


# ---- routes --------------------------------------------------------------------------------------


def test_users_see_logical_queues_and_sends_go_to_the_brokers() -> None:
    found = static({"a": (0, 3), "b": (1,)})
    assert found.writable == found.readable == tuple(map(logical, range(4)))
    assert found.targets == (
        QueueId("orders", "a", 0),
        QueueId("orders", "b", 1),
        QueueId("orders", "a", 3),
    )
    assert found.write_counts == {}
    assert [found.broker_of(logical(number)) for number in range(5)] == ["a", "b", None, "a", None]
    assert found.target_of(logical(3)) == QueueId("orders", "a", 3)
    assert found.target_of(logical(2)) is None
    assert found.shown(QueueId("orders", "b", 1)) == logical(1)


def test_queues_of_a_topic_that_is_not_static_stay_as_they_are() -> None:
    found, queue = route_of("orders", route("a")), QueueId("orders", "a", 1)
    assert found.targets is found.writable
    assert (found.broker_of(queue), found.target_of(queue), found.shown(queue)) == (
        "a",
        queue,
        queue,
    )


def test_a_broker_without_master_or_permission_is_no_target() -> None:
    body = static_route({"a": (0,), "b": (1,), "c": (2,)})
    body.broker_datas[0].broker_addrs = {1: "a:2"}
    body.queue_datas[1].perm = 4
    found = route_of("orders", body)
    assert found.targets == (QueueId("orders", "c", 2),)
    assert found.writable == found.readable == tuple(map(logical, range(4)))
    body.queue_datas[2].perm = 2
    found = route_of("orders", body)
    assert found.readable == (logical(0), logical(1), logical(3))


def test_a_static_topic_that_no_broker_lets_be_written_to_has_no_queue_to_send_to() -> None:
    servers = FakeServers()
    servers.answer_route("orders", static_route({"a": (0,)}, perm=4))
    flow = find_writable(servers.core, "orders", DEADLINE, default_topic=None, queue_count=4)
    with pytest.raises(RouteNotFound, match="Check its permission"):
        servers.run(flow)


def test_a_borrowed_route_does_not_take_the_mapping_of_the_default_topic() -> None:
    found = route_of("orders", static_route({"a": (0,)}), queue_count_max=1)
    assert found.writable == (QueueId("orders", "a", 0),)
    assert found.hosts == {}


# ---- lookups -------------------------------------------------------------------------------------


def servers_with(body: RouteBody, *, namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer_route("orders" if namespace is None else f"{namespace}%orders", body)
    return servers


def test_the_queues_of_a_static_topic_are_logical_ones() -> None:
    servers = servers_with(static_route({"a": (0, 1)}, total=2), namespace="prod")
    for ask in (publish_queues, read_queues):
        assert servers.run(ask(servers.core, "orders", deadline=DEADLINE)) == [
            logical(0),
            logical(1),
        ]


def test_a_logical_queue_is_found_at_the_broker_that_serves_it() -> None:
    servers = servers_with(static_route({"a": (0,), "b": (1,)}))
    core = servers.core
    assert servers.run(find_master(core, logical(1), DEADLINE)) == "b:1"
    assert servers.run(find_replica(core, logical(0), 0, DEADLINE)) == "a:1"
    target = servers.run(find_target(core, logical(1), DEADLINE))
    assert target == (QueueId("orders", "b", 1), "b:1")


@pytest.mark.parametrize("find", [find_master, find_target])
def test_a_queue_without_a_broker_is_looked_up_again(find: type) -> None:
    servers = servers_with(static_route({"a": (0,)}))
    servers.run(refresh_route(servers.core, "orders", DEADLINE))
    servers.answer_route("orders", static_route({"a": (0, 1)}))
    found = servers.run(find(servers.core, logical(1), DEADLINE))
    assert "a:1" in (found, found[1])


@pytest.mark.parametrize(
    ("queue", "problem"),
    [
        (logical(1), r"to queue 1 .*the broker that serves it is not registered; these are: \['a'"),
        (logical(2), r"broker 'gone', which serves it, is not registered or has no master"),
        (logical(4), r"queue 4 of broker '__syslo__global__': it is a static topic, whose 4 queue"),
        (QueueId("orders", "a", 0), r"queue 0 of broker 'a': it is a static topic, whose 4 queues"),
    ],
)
def test_a_queue_that_cannot_be_used_is_an_error_that_says_why(
    queue: QueueId, problem: str
) -> None:
    body = static_route({"a": (0, 3), "gone": (2,)})
    del body.broker_datas[1]
    servers = servers_with(body)
    core = servers.core
    for flow in (
        find_master(core, queue, DEADLINE),
        find_replica(core, queue, 0, DEADLINE),
        find_target(core, queue, DEADLINE),
    ):
        with pytest.raises(RouteNotFound, match=problem):
            servers.run(flow)


def test_a_logical_queue_of_a_topic_that_is_not_static_is_an_error() -> None:
    servers = servers_with(route("a"))
    for _ in range(2):  # without a cached route, and with one
        with pytest.raises(RouteNotFound, match=f"to broker '{LOGICAL}': it is not a static topic"):
            servers.run(find_target(servers.core, logical(0), DEADLINE))


def test_a_queue_of_an_ordinary_topic_is_sent_to_its_broker() -> None:
    servers = servers_with(route("a"))
    servers.answer(NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO, Command(ResponseCode.SUCCESS))
    queue = QueueId("orders", "a", 7)
    for _ in range(2):  # without a cached route, and with one
        assert servers.run(find_target(servers.core, queue, DEADLINE)) == (queue, "a:1")
    with pytest.raises(BrokerNotFound):
        servers.run(find_target(servers.core, QueueId("orders", "b", 0), DEADLINE))
