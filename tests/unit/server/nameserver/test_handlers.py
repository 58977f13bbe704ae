"""The handlers of the name server, for every code: fields, refusals and replies."""

from __future__ import annotations

import pytest

from downrange.server.nameserver.handlers import (
    HANDLERS,
    SaveKeyValues,
    expire,
    handle,
    on_disconnect,
)
from downrange.server.outputs import Disconnect, Note, Peer, Reply
from downrange.wire.bodies import (
    BrokerMembersBody,
    BrokerQueues,
    ClusterBody,
    DataVersion,
    KeyValueBody,
    RegisterBrokerBody,
    RouteBody,
    TopicConfig,
    TopicNamesBody,
    decode_body,
)
from downrange.wire.codes import CommandFlag, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import REQUEST_HEADERS, request_command
from downrange.wire.headers import (
    AddWritePermissionRequest,
    BrokerHeartbeatRequest,
    BrokerMembersRequest,
    ClusterTopicsRequest,
    DeleteKeyValueRequest,
    DeleteRouteRequest,
    GetKeyValueRequest,
    ListKeyValuesRequest,
    PutKeyValueRequest,
    QueryDataVersionRequest,
    RegisterTopicRequest,
    RouteRequest,
    UnregisterBrokerRequest,
    WipeWritePermissionRequest,
)
from downrange.wire.registration import encode_registration, registration_crc
from tests.unit.server.nameserver.registry_stage import (
    PEER,
    answer,
    new_state,
    register_body,
    register_request,
    topic_table,
)

OK = int(ResponseCode.SUCCESS)
ROUTE = RouteRequest(topic="T")


def _names(reply: Command) -> list[str]:
    return decode_body(TopicNamesBody, reply.body).topic_list


# ---- any request -------------------------------------------------------------------------------


def test_a_code_that_is_not_served_is_named_in_the_answer() -> None:
    reply = answer(new_state(), Command(7654))
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert reply.remark == " request type 7654 not supported"


@pytest.mark.parametrize("code", sorted(set(HANDLERS) & set(REQUEST_HEADERS)))
def test_a_request_without_its_fields_is_refused_with_the_reason(code: int) -> None:
    reply = answer(new_state(), Command(code))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert "is missing" in reply.remark or reply.remark == "namespace or key is null"


def test_a_text_that_is_not_a_number_is_refused_with_the_field() -> None:
    request = request_command(register_request(), register_body())
    request.fields["brokerId"] = "zero"
    reply = answer(new_state(), request)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert "'brokerId'" in reply.remark


@pytest.mark.parametrize("code", [*sorted(HANDLERS), 7654])
def test_a_one_way_request_is_never_answered(code: int) -> None:
    outputs = handle(new_state(), Command(code, flags=int(CommandFlag.ONEWAY)), PEER, 0)
    assert not any(isinstance(output, Reply) for output in outputs)


def test_a_one_way_registration_has_its_effect() -> None:
    state = new_state()
    request = request_command(register_request(), register_body())
    request.flags = int(CommandFlag.ONEWAY)
    (note,) = handle(state, request, PEER, 0)
    assert isinstance(note, Note)
    assert answer(state, ROUTE).code == OK


# ---- registering -------------------------------------------------------------------------------


def test_a_registration_is_answered_without_a_body_until_there_are_order_topics() -> None:
    state = new_state()
    reply = answer(state, register_request(), register_body())
    assert (reply.code, reply.fields, reply.body) == (OK, {}, b"")
    space = "ORDER_TOPIC_CONFIG"
    answer(state, PutKeyValueRequest(namespace=space, key="T", value="a:4"))
    reply = answer(state, register_request(), register_body())
    assert decode_body(KeyValueBody, reply.body).table == {"T": "a:4"}
    answer(state, DeleteKeyValueRequest(namespace=space, key="T"))
    assert answer(state, register_request(), register_body()).body == b'{"table":{}}'


def test_a_slave_is_answered_with_its_master() -> None:
    state = new_state()
    answer(state, register_request("a", 0), register_body())
    reply = answer(state, register_request("a", 1), register_body())
    assert reply.fields == {"masterAddr": "a0:10911", "haServerAddr": "a0:10912"}


def test_a_new_broker_is_noted_once() -> None:
    state = new_state()
    request = request_command(register_request(), register_body())
    notes = [
        [output for output in handle(state, request, PEER, 0) if isinstance(output, Note)]
        for _ in range(2)
    ]
    assert [len(found) for found in notes] == [1, 0]
    assert "a0:10911" in notes[0][0].text


@pytest.mark.parametrize("version", [401, 513])
def test_a_compressed_registration_is_read_in_the_senders_form(version: int) -> None:
    state = new_state()
    body = RegisterBrokerBody(topic_config_serialize_wrapper=topic_table("T", "U"))
    data = encode_registration(body, version)
    crc = registration_crc(data)
    request = request_command(register_request(compressed=True, body_crc32=crc), data)
    request.version = version
    assert answer(state, request).code == OK
    assert state.registry.topics() == ["T", "U"]


def test_a_registration_without_a_body_makes_a_broker_without_topics() -> None:
    state = new_state()
    assert answer(state, register_request()).code == OK
    assert (state.registry.topics(), list(state.registry.replicas())) == ([], ["a"])


def test_a_wrong_checksum_is_refused_and_changes_nothing() -> None:
    state = new_state()
    reply = answer(state, register_request(body_crc32=1), register_body())
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert state.registry.replicas() == {}


def test_a_body_that_cannot_be_read_is_refused() -> None:
    assert answer(new_state(), register_request(), b"{oops").code == ResponseCode.SYSTEM_ERROR
    packed = answer(new_state(), register_request(compressed=True), b"\x00" * 9)
    assert packed.code == ResponseCode.SYSTEM_ERROR


def test_a_first_table_of_one_topic_is_refused_and_noted() -> None:
    state = new_state()
    request = request_command(register_request(), register_body("T"))
    note, reply = handle(state, request, PEER, 0)
    assert isinstance(note, Note)
    assert note.is_warning
    assert isinstance(reply, Reply)
    assert reply.command.code == ResponseCode.SYSTEM_ERROR
    assert reply.command.remark == "register broker failed"


def test_a_broker_names_its_own_time_out_or_gets_the_servers() -> None:
    state = new_state(broker_timeout=1.5)
    answer(state, register_request("a"), register_body())
    answer(state, register_request("b", heartbeat_timeout_millis=3000), register_body())
    found = {live.name: live.timeout_ms for live in state.registry.live_brokers().values()}
    assert found == {"a": 1500, "b": 3000}


def test_a_broker_is_removed_by_request() -> None:
    state = new_state()
    answer(state, register_request(), register_body())
    leave = UnregisterBrokerRequest(
        broker_name="a", broker_addr="a0:10911", cluster_name="c", broker_id=0
    )
    assert answer(state, leave).code == OK
    assert answer(state, leave).code == OK
    assert answer(state, ROUTE).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_data_version_query_compares_and_counts_as_a_heartbeat() -> None:
    state = new_state()
    query = QueryDataVersionRequest(
        broker_name="a", broker_addr="a0:10911", cluster_name="c", broker_id=0
    )
    same = DataVersion(timestamp=1000, counter=1).encode()
    reply = answer(state, query, same)
    assert (reply.fields, reply.body) == ({"changed": "true"}, b"")
    answer(state, register_request(), register_body())
    reply = answer(state, query, same, now_ms=70_000)
    assert reply.fields == {"changed": "false"}
    assert reply.body == b'{"counter":1,"stateVersion":0,"timestamp":1000}'
    other = DataVersion(timestamp=1000, counter=2).encode()
    assert answer(state, query, other).fields == {"changed": "true"}
    answer(state, query, same, now_ms=70_000)
    assert expire(state, 190_000) == []


def test_a_heartbeat_keeps_a_broker_registered() -> None:
    state = new_state()
    answer(state, register_request(), register_body())
    beat = BrokerHeartbeatRequest(cluster_name="c", broker_addr="a0:10911", broker_name="a")
    assert answer(state, beat, now_ms=100_000).code == OK
    assert expire(state, 220_000) == []
    note, hang_up = expire(state, 220_001)
    assert isinstance(note, Note)
    assert hang_up == Disconnect(PEER.number)
    assert answer(state, ROUTE).code == ResponseCode.TOPIC_NOT_EXIST


def test_the_end_of_a_connection_is_noted_for_its_brokers_only() -> None:
    state = new_state()
    answer(state, register_request(), register_body())
    assert on_disconnect(state, Peer(2, "10.0.0.8:1")) == []
    (note,) = on_disconnect(state, PEER)
    assert isinstance(note, Note)
    assert PEER.address in note.text


# ---- routes ------------------------------------------------------------------------------------


def test_a_missing_topic_is_answered_as_apache_does() -> None:
    reply = answer(new_state(), ROUTE)
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark == (
        "No topic route info in name server for the topic: T\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


@pytest.mark.parametrize(
    ("version", "only_standard", "is_standard"),
    [
        (401, None, True),
        (401, False, True),
        (400, None, False),
        (400, False, False),
        (0, True, True),
    ],
)
def test_number_keys_are_quoted_on_request(
    version: int, only_standard: bool | None, is_standard: bool
) -> None:
    state = new_state()
    answer(state, register_request(), register_body())
    request = request_command(RouteRequest(topic="T", accept_standard_json_only=only_standard))
    request.version = version
    body = answer(state, request).body
    assert (b'"brokerAddrs":{"0":"a0:10911"}' in body) is is_standard
    assert (b'"brokerAddrs":{0:"a0:10911"}' in body) is not is_standard
    assert decode_body(RouteBody, body).broker_datas[0].broker_addrs == {0: "a0:10911"}


def test_order_config_is_in_a_route_only_when_that_is_switched_on() -> None:
    state = new_state()
    answer(state, register_request(), register_body())
    answer(state, PutKeyValueRequest(namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4"))
    assert b"orderTopicConf" not in answer(state, ROUTE).body
    answer(state, Command(int(RequestCode.UPDATE_NAMESRV_CONFIG), body=b"orderMessageEnable=TRUE"))
    assert decode_body(RouteBody, answer(state, ROUTE).body).order_topic_conf == "a:4"


def test_a_client_of_a_zone_sees_its_zone_and_groups_without_master() -> None:
    state = new_state()
    parts = {"here": ("Z1", 0), "there": ("z2", 0), "nowhere": (None, 0), "slaves": ("z2", 1)}
    for name, (zone, broker_id) in parts.items():
        header = register_request(name, broker_id, zone_name=zone, enable_acting_master=False)
        table = topic_table("T", "U")
        filters = [f"f-{name}:1"]
        body = RegisterBrokerBody(topic_config_serialize_wrapper=table, filter_server_list=filters)
        answer(state, header, body.encode())
    request = RouteRequest(topic="T", zone_name="z1", zone_mode=True)
    reply = answer(state, request)
    assert b'{0:"here0:10911"}' in reply.body  # never standard JSON
    route = decode_body(RouteBody, reply.body)
    assert [group.broker_name for group in route.broker_datas] == ["here", "slaves"]
    assert [queues.broker_name for queues in route.queue_datas] == ["here", "slaves"]
    assert set(route.filter_server_table) == {"here0:10911", "slaves1:10911"}
    for ignored in (
        RouteRequest(topic="T", zone_name="z1"),
        RouteRequest(topic="T", zone_mode=True),
    ):
        assert len(decode_body(RouteBody, answer(state, ignored).body).broker_datas) == 4


def test_a_zone_without_brokers_gets_empty_lists() -> None:
    state = new_state()
    answer(state, register_request(zone_name="z1"), register_body())
    reply = answer(state, RouteRequest(topic="T", zone_name="z9", zone_mode=True))
    assert (reply.code, decode_body(RouteBody, reply.body)) == (OK, RouteBody())


def test_an_acting_master_is_shown_when_that_is_switched_on() -> None:
    state = new_state(is_acting_master_supported=True)
    answer(state, register_request("a", 1, enable_acting_master=True), register_body())
    (group,) = decode_body(RouteBody, answer(state, ROUTE).body).broker_datas
    assert group.broker_addrs == {0: "a1:10911"}


# ---- clusters and topics -----------------------------------------------------------------------


def test_clusters_are_returned_with_bare_number_keys_for_every_version() -> None:
    state = new_state()
    answer(state, register_request("a", 0), register_body())
    answer(state, register_request("a", 1), register_body())
    reply = answer(state, Command(int(RequestCode.GET_BROKER_CLUSTER_INFO)))
    assert reply.body == (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"a0:10911",1:"a1:10911"},"brokerName":"a",'
        b'"cluster":"c","enableActingMaster":false}},"clusterAddrTable":{"c":["a"]}}'
    )
    assert decode_body(ClusterBody, reply.body).cluster_addr_table == {"c": ["a"]}


def test_members_of_a_name_are_returned_with_bare_number_keys() -> None:
    state = new_state()
    answer(state, register_request(), register_body())
    reply = answer(state, BrokerMembersRequest(cluster_name="c", broker_name="a"))
    assert reply.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"a0:10911"},"brokerName":"a","cluster":"c"}}'
    )
    reply = answer(state, BrokerMembersRequest(cluster_name="c", broker_name="unknown"))
    group = decode_body(BrokerMembersBody, reply.body).broker_member_group
    assert group is not None
    assert group.broker_addrs == {}


def test_topics_are_listed_by_what_was_asked() -> None:
    state = new_state()
    system = Command(int(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))
    assert answer(state, system).body == b'{"topicList":[]}'
    unit = TopicConfig(topic_name="U1", topic_sys_flag=1)
    unit_sub = TopicConfig(topic_name="U2", topic_sys_flag=2)
    both = TopicConfig(topic_name="U3", topic_sys_flag=3)
    answer(state, register_request(), register_body("T", unit, unit_sub, both))
    every = Command(int(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert _names(answer(state, every)) == ["T", "U1", "U2", "U3"]
    assert _names(answer(state, ClusterTopicsRequest(cluster="c"))) == ["T", "U1", "U2", "U3"]
    assert _names(answer(state, ClusterTopicsRequest(cluster="d"))) == []
    found = decode_body(TopicNamesBody, answer(state, system).body)
    assert (found.topic_list, found.broker_addr) == (["c", "a"], "a0:10911")
    assert _names(answer(state, Command(311))) == ["U1", "U3"]
    assert _names(answer(state, Command(312))) == ["U2", "U3"]
    assert _names(answer(state, Command(313))) == ["U2"]


def test_a_topic_is_deleted_and_set_by_hand() -> None:
    state = new_state()
    answer(state, register_request(), register_body())
    assert answer(state, DeleteRouteRequest(topic="T")).code == OK
    assert answer(state, DeleteRouteRequest(topic="U", cluster_name="other")).code == OK
    assert state.registry.topics() == ["U"]

    def route(name: str) -> bytes:
        queues = BrokerQueues(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
        return RouteBody(queue_datas=[queues]).encode()

    assert answer(state, RegisterTopicRequest(topic="T"), route("a")).code == OK
    request = request_command(RegisterTopicRequest(topic="X"), route("unknown"))
    note, reply = handle(state, request, PEER, 0)
    assert isinstance(note, Note)
    assert "X" in note.text
    assert isinstance(reply, Reply)
    assert reply.command.code == OK
    assert state.registry.topics() == ["U", "T"]


def test_write_permission_is_switched_and_counted() -> None:
    state = new_state()
    answer(state, register_request(), register_body())
    assert answer(state, WipeWritePermissionRequest(broker_name="a")).fields == {
        "wipeTopicCount": "2"
    }
    assert decode_body(RouteBody, answer(state, ROUTE).body).queue_datas[0].perm == 4
    assert answer(state, AddWritePermissionRequest(broker_name="a")).fields == {
        "addTopicCount": "2"
    }
    assert decode_body(RouteBody, answer(state, ROUTE).body).queue_datas[0].perm == 6


# ---- key-value config and settings -------------------------------------------------------------


def test_a_value_is_saved_before_the_answer() -> None:
    state = new_state()
    put = request_command(PutKeyValueRequest(namespace="n", key="k", value="v"))
    save, reply = handle(state, put, PEER, 0)
    assert save == SaveKeyValues(b'{"configTable":{"n":{"k":"v"}}}')
    assert isinstance(reply, Reply)
    delete = request_command(DeleteKeyValueRequest(namespace="n", key="k"))
    save, _ = handle(state, delete, PEER, 0)
    assert save == SaveKeyValues(b'{"configTable":{"n":{}}}')
    assert len(handle(state, delete, PEER, 0)) == 1  # there is nothing to save


def test_values_are_read_one_by_one_and_as_a_whole() -> None:
    state = new_state()
    answer(state, PutKeyValueRequest(namespace="n", key="k", value="v"))
    assert answer(state, GetKeyValueRequest(namespace="n", key="k")).fields == {"value": "v"}
    reply = answer(state, GetKeyValueRequest(namespace="n", key="x"))
    assert reply.code == ResponseCode.QUERY_NOT_FOUND
    assert reply.remark == "No config item, Namespace: n Key: x"
    assert answer(state, ListKeyValuesRequest(namespace="n")).body == b'{"table":{"k":"v"}}'
    reply = answer(state, ListKeyValuesRequest(namespace="x"))
    assert (reply.code, reply.remark) == (22, "No config item, Namespace: x")


def test_a_value_beyond_the_limit_is_refused() -> None:
    state = new_state(key_value_bytes_max=5)
    reply = answer(state, PutKeyValueRequest(namespace="n", key="k", value="1234"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert "5 bytes" in reply.remark


def test_settings_are_shown_and_changed() -> None:
    state = new_state()
    state.settings["listenPort"] = "9876"
    show = Command(int(RequestCode.GET_NAMESRV_CONFIG))
    assert answer(state, show).body == (
        b"listenPort=9876\norderMessageEnable=false\nscanNotActiveBrokerInterval=5000\n"
        b"supportActingMaster=false\n"
    )
    change = int(RequestCode.UPDATE_NAMESRV_CONFIG)
    body = b"# a comment\n! another\n\n supportActingMaster = true \nnoSuchName=1\n"
    assert answer(state, Command(change, body=body)).code == OK
    assert b"supportActingMaster=true" in answer(state, show).body
    for name in (b"kvConfigPath", b"configStorePath", b"configBlackList", b"rocketmqHome"):
        reply = answer(state, Command(change, body=name + b"=/tmp/x\norderMessageEnable=true"))
        assert reply.code == ResponseCode.NO_PERMISSION
        assert reply.remark == "Can not update config in black list."
    assert answer(state, Command(change, body=b"\xff")).code == ResponseCode.SYSTEM_ERROR
    assert b"orderMessageEnable=false" in answer(state, show).body
