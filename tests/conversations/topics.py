"""Topics: create, look up, list, describe, delete."""

from __future__ import annotations

from downrange.model import QueueId
from downrange.wire.bodies import (
    BrokerQueues,
    ClusterBody,
    GroupConfig,
    GroupTableBody,
    KeyValueBody,
    RouteBody,
    TopicNamesBody,
    TopicStatsBody,
    TopicTableBody,
)
from downrange.wire.codes import ReleaseVersion, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    AllTopicsReply,
    BrokerConfigReply,
    CreateTopicRequest,
    DeleteGroupRequest,
    DeleteRouteRequest,
    DeleteTopicRequest,
    RouteRequest,
    TopicStatsRequest,
)
from tests.conversations.scene import Scene, bare_request, read_body, read_header, succeed


def a_new_topic_has_a_route(scene: Scene) -> None:
    broker, name_server = scene.broker(), scene.name_server()
    topic = scene.create_topic(broker, "topic", read_queue_nums=3)

    # A slow name server may get the topic after the broker has replied.
    request = request_command(RouteRequest(topic=topic))
    reply = scene.poll(
        lambda: name_server.ask(request), lambda reply: reply.code == ResponseCode.SUCCESS
    )
    assert b'"0":' in reply.body  # standard JSON, as for our version
    route = read_body(RouteBody, reply)
    assert route.queue_datas == [
        BrokerQueues(broker_name=scene.facts.broker, read_queue_nums=3, write_queue_nums=2, perm=6)
    ]
    (replicas,) = route.broker_datas
    assert replicas.broker_addrs == {0: scene.facts.broker_address}
    assert replicas.cluster == "DefaultCluster"

    old = request_command(RouteRequest(topic=topic))
    old.version = int(ReleaseVersion.V4_9_3)
    reply = succeed(name_server.ask(old))
    assert b"{0:" in reply.body  # the unquoted key that only fastjson reads
    assert read_body(RouteBody, reply) == route

    succeed(broker.ask(request_command(DeleteTopicRequest(topic=topic))))

    def route_after_deletion() -> int:
        succeed(name_server.ask(request_command(DeleteRouteRequest(topic=topic))))
        return _route_of(scene, topic).code

    # A registration of the broker that is under way brings the route back.
    scene.poll(route_after_deletion, lambda code: code == ResponseCode.TOPIC_NOT_EXIST)


def a_missing_topic_has_none_and_the_default_topic_has_one(scene: Scene) -> None:
    reply = _route_of(scene, scene.name("never_created"))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark is not None
    assert f"the topic: {scene.name('never_created')}" in reply.remark
    default = read_body(RouteBody, _route_of(scene, "TBW102"))
    assert [queues.perm for queues in default.queue_datas] == [7]  # inherit, write, read


def a_name_server_lists_clusters_and_topics(scene: Scene) -> None:
    topic = scene.create_topic(scene.broker(), "listed")
    name_server = scene.name_server()
    reply = name_server.ask(bare_request(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert b"{0:" in reply.body  # never standard JSON, for any version
    cluster = read_body(ClusterBody, reply)
    assert scene.facts.broker in cluster.cluster_addr_table["DefaultCluster"]
    assert cluster.broker_addr_table[scene.facts.broker].broker_addrs == {
        0: scene.facts.broker_address
    }

    def names() -> set[str]:
        request = bare_request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return set(read_body(TopicNamesBody, name_server.ask(request)).topic_list)

    scene.poll(names, {topic, "TBW102"}.issubset)


def a_broker_describes_its_topics(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "described", perm=4)
    reply = broker.ask(bare_request(RequestCode.GET_ALL_TOPIC_CONFIG))
    header = read_header(AllTopicsReply, reply)
    table = read_body(TopicTableBody, reply)
    assert (header.total_topic_num == len(table.topic_config_table)) is scene.is_5x
    config = table.topic_config_table[topic]
    assert (config.read_queue_nums, config.write_queue_nums) == (2, 2)
    assert (config.perm, config.order, config.topic_filter_type) == (4, False, "SINGLE_TAG")
    assert (config.attributes is not None) is scene.is_5x
    assert table.data_version.counter > 0

    scene.create_topic(broker, "counted")
    scene.send(broker, scene.name("counted"), b"1", {"TAGS": "a"}, queue_id=1)

    def stats() -> TopicStatsBody:
        request = TopicStatsRequest(topic=scene.name("counted"))
        reply = broker.ask(request_command(request))
        assert b"{{" in reply.body  # objects as map keys
        return read_body(TopicStatsBody, reply)

    second = QueueId(scene.name("counted"), scene.facts.broker, 1)
    found = scene.poll(stats, lambda answer: answer.offset_table[second].max_offset == 1)
    assert found.offset_table[QueueId(second.topic, second.broker, 0)].max_offset == 0


def a_broker_keeps_groups_and_tells_about_itself(scene: Scene) -> None:
    broker = scene.broker()
    group = GroupConfig(group_name=scene.name("group"), retry_max_times=5)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    succeed(broker.ask(bare_request(code, group.encode())))
    reply = broker.ask(bare_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    groups = read_body(GroupTableBody, reply).subscription_group_table
    assert groups[scene.name("group")].retry_max_times == 5
    # Without clean_offset a 5.5.0 broker creates the group again while it deletes it.
    group_name = scene.name("group")
    delete = DeleteGroupRequest(group_name=group_name, clean_offset=True, remove_offset=True)
    succeed(broker.ask(request_command(delete)))
    reply = broker.ask(bare_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert scene.name("group") not in read_body(GroupTableBody, reply).subscription_group_table

    # In its first seconds a 5.5.0 broker has no statistics and replies with a Java exception.
    reply = scene.poll(
        lambda: broker.ask(bare_request(RequestCode.GET_BROKER_RUNTIME_INFO)),
        lambda reply: reply.code == ResponseCode.SUCCESS,
    )
    runtime = read_body(KeyValueBody, reply)
    assert runtime.table["brokerVersionDesc"] == f"V{scene.facts.server.replace('.', '_')}"
    reply = broker.ask(bare_request(RequestCode.GET_BROKER_CONFIG))
    assert "timestamp" in read_header(BrokerConfigReply, reply).version
    assert f"brokerName={scene.facts.broker}".encode() in reply.body


def a_request_that_lacks_a_field_is_refused(scene: Scene) -> None:
    """Where our decoder raises MissingField, the server fails on a null and replies with 1."""
    broker = scene.broker()
    whole = CreateTopicRequest(
        topic=scene.name("lacking"),
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
    ).to_fields()
    for missing in ("readQueueNums", "perm"):
        fields = {name: value for name, value in whole.items() if name != missing}
        reply = broker.ask(Command(int(RequestCode.UPDATE_AND_CREATE_TOPIC), fields))
        assert reply.code == ResponseCode.SYSTEM_ERROR, (missing, reply.code, reply.remark)
    fields = whole | {"perm": "six"}
    reply = broker.ask(Command(int(RequestCode.UPDATE_AND_CREATE_TOPIC), fields))
    assert reply.code == ResponseCode.SYSTEM_ERROR, (reply.code, reply.remark)


def _route_of(scene: Scene, topic: str) -> Command:
    return scene.name_server().ask(request_command(RouteRequest(topic=topic)))
