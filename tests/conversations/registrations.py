"""A broker's side of the name server: registration in every form, key-value config, permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.bodies import (
    DataVersion,
    KeyValueBody,
    RegisterBrokerBody,
    RouteBody,
    TopicConfig,
    TopicTableBody,
)
from downrange.wire.codes import OUR_VERSION, ReleaseVersion, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    AddWritePermissionReply,
    AddWritePermissionRequest,
    DeleteKeyValueRequest,
    GetKeyValueReply,
    GetKeyValueRequest,
    ListKeyValuesRequest,
    PutKeyValueRequest,
    QueryDataVersionReply,
    QueryDataVersionRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
    RouteRequest,
    UnregisterBrokerRequest,
    WipeWritePermissionReply,
    WipeWritePermissionRequest,
)
from downrange.wire.registration import encode_registration, registration_crc
from tests.conversations.scene import Scene, read_body, read_header, succeed

if TYPE_CHECKING:
    from downrange.wire.command import Command

#: No server listens there; a name server never connects to a broker.
ADDRESS = "127.0.0.1:1"


def a_plain_registration_makes_a_route(scene: Scene) -> None:
    _register_and_leave(scene, "plain", compressed=False, version=OUR_VERSION)


def a_compressed_registration_makes_a_route(scene: Scene) -> None:
    if scene.is_5x:
        _register_and_leave(scene, "packed5", compressed=True, version=OUR_VERSION)
    else:  # it does not support the sixth word of a topic, its attributes
        command = _registration(scene, "packed5", compressed=True, version=OUR_VERSION)
        assert scene.name_server().ask(command).code == ResponseCode.SYSTEM_ERROR


def a_compressed_registration_of_an_old_broker_makes_a_route(scene: Scene) -> None:
    _register_and_leave(scene, "packed4", compressed=True, version=int(ReleaseVersion.V4_9_8))


def a_registration_with_a_wrong_checksum_is_refused(scene: Scene) -> None:
    command = _registration(scene, "damaged", compressed=False, version=OUR_VERSION)
    command.fields["bodyCrc32"] = "1"
    reply = scene.name_server().ask(command)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")


def a_name_server_keeps_values(scene: Scene) -> None:
    name_server = scene.name_server()
    space = scene.name("space")
    put = PutKeyValueRequest(namespace=space, key="k", value="wert ü")
    succeed(name_server.ask(request_command(put)))
    get = request_command(GetKeyValueRequest(namespace=space, key="k"))
    assert read_header(GetKeyValueReply, name_server.ask(get)).value == "wert ü"
    everything = request_command(ListKeyValuesRequest(namespace=space))
    assert read_body(KeyValueBody, name_server.ask(everything)).table == {"k": "wert ü"}
    delete = DeleteKeyValueRequest(namespace=space, key="k")
    succeed(name_server.ask(request_command(delete)))
    assert name_server.ask(get).code == ResponseCode.QUERY_NOT_FOUND


def _register_and_leave(scene: Scene, word: str, *, compressed: bool, version: int) -> None:
    broker = scene.name_server()  # the broker's own connection: losing it unregisters the broker
    name, topic = scene.name(word), scene.name(f"{word}_topic")
    reply = broker.ask(_registration(scene, word, compressed=compressed, version=version))
    assert read_header(RegisterBrokerReply, reply).master_addr is None
    client = scene.name_server()

    def perms() -> list[int]:
        reply = client.ask(request_command(RouteRequest(topic=topic)))
        route = read_body(RouteBody, reply)
        (replicas,) = route.broker_datas
        assert (replicas.broker_name, replicas.broker_addrs) == (name, {0: ADDRESS})
        return [queues.perm for queues in route.queue_datas]

    assert perms() == [6]
    query = QueryDataVersionRequest(
        broker_name=name, broker_addr=ADDRESS, cluster_name=scene.name("cluster"), broker_id=0
    )
    known = request_command(query, _data_version(scene).encode())
    assert read_header(QueryDataVersionReply, broker.ask(known)).changed is False
    newer = request_command(query, DataVersion(timestamp=1, counter=9).encode())
    assert read_header(QueryDataVersionReply, broker.ask(newer)).changed is True

    wipe = request_command(WipeWritePermissionRequest(broker_name=name))
    assert read_header(WipeWritePermissionReply, client.ask(wipe)).wipe_topic_count == 2
    assert perms() == [4]
    add = request_command(AddWritePermissionRequest(broker_name=name))
    assert read_header(AddWritePermissionReply, client.ask(add)).add_topic_count == 2
    assert perms() == [6]

    leave = UnregisterBrokerRequest(
        broker_name=name, broker_addr=ADDRESS, cluster_name=scene.name("cluster"), broker_id=0
    )
    succeed(broker.ask(request_command(leave)))
    scene.poll(
        lambda: client.ask(request_command(RouteRequest(topic=topic))).code,
        lambda code: code == ResponseCode.TOPIC_NOT_EXIST,
    )


def _registration(scene: Scene, word: str, *, compressed: bool, version: int) -> Command:
    # A 5.x name server refuses a first registration of exactly one topic, so there are two.
    names = [scene.name(f"{word}_topic"), scene.name(f"{word}_other")]
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicTableBody(
            topic_config_table={
                name: TopicConfig(topic_name=name, read_queue_nums=3, write_queue_nums=3)
                for name in names
            },
            data_version=_data_version(scene),
        )
    )
    data = encode_registration(body, version) if compressed else body.encode()
    header = RegisterBrokerRequest(
        broker_name=scene.name(word),
        broker_addr=ADDRESS,
        cluster_name=scene.name("cluster"),
        ha_server_addr=ADDRESS,
        broker_id=0,
        compressed=compressed,
        body_crc32=registration_crc(data),
    )
    command = request_command(header, data)
    command.version = version
    return command


def _data_version(scene: Scene) -> DataVersion:
    return DataVersion(timestamp=scene.facts.now_ms, counter=3, state_version=0)
