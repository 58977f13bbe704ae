"""The request handlers of a name server, one function per request code.

Served, with the fields that are read (behaviour of 5.5.0 where releases differ):

    100 101 102 219  key-value config: namespace, key, value
    103              register: both body forms, checksum, zone, time-out, acting master
    104 322 904      unregister, data version, heartbeat: cluster, address, name
    105              route: topic, acceptStandardJsonOnly, zone fields, the sender's version
    106 901          clusters, replicas of a name: number keys are never quoted
    205 327          remove and add a broker's write permission: name
    206 224 304 311-313  topic lists: of all, of a cluster, of the system, by unit flag
    216 217          delete a topic (of a cluster), set one by hand
    318 319          settings: orderMessageEnable and supportActingMaster can be changed

Skipped on purpose: `needWaitForService` and the options that switch topic lists off, notification
905 (off by default), `deleteTopicWithBrokerRegistration` (off by default). The reply to every
other code is 3 (not supported), the reply to a malformed header or body is 1 (system error).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from downrange.errors import WireError
from downrange.server.nameserver.key_values import ORDER_TOPICS, KeyValues
from downrange.server.nameserver.registry import MASTER_ID, BrokerKey, Registration, RouteRegistry
from downrange.server.outputs import Disconnect, Note, Output, Peer, Reply, refusal
from downrange.wire import fastjson
from downrange.wire.bodies import (
    BrokerReplicas,
    DataVersion,
    KeyValueBody,
    RegisterBrokerBody,
    RouteBody,
    TopicNamesBody,
    decode_body,
)
from downrange.wire.codes import ReleaseVersion, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import (
    AddWritePermissionReply,
    AddWritePermissionRequest,
    BrokerHeartbeatRequest,
    BrokerMembersRequest,
    ClusterTopicsRequest,
    DeleteKeyValueRequest,
    DeleteRouteRequest,
    GetKeyValueReply,
    GetKeyValueRequest,
    ListKeyValuesRequest,
    PutKeyValueRequest,
    QueryDataVersionReply,
    QueryDataVersionRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
    RegisterTopicRequest,
    RouteRequest,
    UnregisterBrokerRequest,
    WipeWritePermissionReply,
    WipeWritePermissionRequest,
)
from downrange.wire.registration import decode_registration, registration_crc

if TYPE_CHECKING:
    from downrange.options import NameServerOptions

_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


@dataclass(slots=True)
class SaveKeyValues:
    """Write the key-value file before the request is answered."""

    data: bytes


NameServerOutput: TypeAlias = Output | SaveKeyValues


class NameServerState:
    """The state of a name server.

    Attributes:
        options: As given, then as changed by request 318.
        registry: Brokers and topics.
        key_values: Key-value config.
        settings: What request 319 returns besides the options, such as the port.
    """

    def __init__(self, options: NameServerOptions) -> None:
        self.options = options
        self.registry = RouteRegistry(
            brokers_max=options.brokers_max, topics_max=options.topics_max
        )
        self.key_values = KeyValues(options.key_value_bytes_max)
        self.settings: dict[str, str] = {}


Handler: TypeAlias = Callable[[NameServerState, Command, Peer, int], list[NameServerOutput]]


def handle(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    """Handle one request; a one-way request gets no reply.

    Args:
        state: The name server.
        request: The request.
        peer: Its connection.
        now_ms: Monotonic time.
    """
    handler = HANDLERS.get(request.code)
    try:
        if handler is None:
            # The leading blank is Apache's.
            remark = f" request type {request.code} not supported"
            outputs = _refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        else:
            outputs = handler(state, request, peer, now_ms)
    except WireError as error:
        outputs = _refuse(ResponseCode.SYSTEM_ERROR, str(error))
    if request.is_oneway:
        return [output for output in outputs if not isinstance(output, Reply)]
    return outputs


def on_disconnect(state: NameServerState, peer: Peer) -> list[NameServerOutput]:
    """Remove the brokers that registered on a connection which ended."""
    return [
        Note(f"broker {live.name} {key.address} is removed: its connection {peer.address} ended")
        for key, live in state.registry.on_disconnect(peer.number)
    ]


def expire(state: NameServerState, now_ms: int) -> list[NameServerOutput]:
    """Remove the brokers whose time-out has passed, and close their connections."""
    outputs: list[NameServerOutput] = []
    for key, live in state.registry.expire(now_ms):
        text = f"broker {live.name} {key.address} is removed: no heartbeat for {live.timeout_ms} ms"
        outputs += [Note(text, is_warning=True), Disconnect(live.connection)]
    return outputs


# ---- brokers -----------------------------------------------------------------------------------


def _register_broker(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = RegisterBrokerRequest.from_fields(request.fields)
    if header.body_crc32 not in (0, registration_crc(request.body)):
        return _refuse(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    body = _registration_body(header, request)
    timeout_ms = header.heartbeat_timeout_millis
    registration = Registration(
        name=header.broker_name,
        address=header.broker_addr,
        cluster=header.cluster_name,
        broker_id=header.broker_id,
        ha_address=header.ha_server_addr,
        connection=peer.number,
        timeout_ms=int(state.options.broker_timeout * 1000) if timeout_ms is None else timeout_ms,
        acting_master=header.enable_acting_master,
        zone=header.zone_name,
        table=body.topic_config_serialize_wrapper,
        filter_servers=body.filter_server_list,
    )
    result = state.registry.register(registration, now_ms)
    broker = f"broker {header.broker_name} id {header.broker_id} {header.broker_addr}"
    if result.refused is not None:
        note = Note(f"{broker} from {peer.address} refused: {result.refused}", is_warning=True)
        return [note, *_refuse(ResponseCode.SYSTEM_ERROR, result.refused)]
    fields = RegisterBrokerReply(
        ha_server_addr=result.ha_address, master_addr=result.master_address
    ).to_fields()
    orders = state.key_values.namespace(ORDER_TOPICS)
    order_body = b"" if orders is None else KeyValueBody(table=orders).encode()
    outputs = _succeed(order_body, fields)
    if result.is_new:
        outputs.append(Note(f"{broker} registered in cluster {header.cluster_name}"))
    return outputs


def _registration_body(header: RegisterBrokerRequest, request: Command) -> RegisterBrokerBody:
    if not request.body:
        return RegisterBrokerBody()
    if header.compressed:
        return decode_registration(request.body, request.version)
    return decode_body(RegisterBrokerBody, request.body)


def _unregister_broker(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = UnregisterBrokerRequest.from_fields(request.fields)
    key = BrokerKey(header.cluster_name, header.broker_addr)
    outputs = _succeed()
    if state.registry.unregister(key, header.broker_name):
        outputs.append(Note(f"broker {header.broker_name} {key.address} unregistered"))
    return outputs


def _query_data_version(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = QueryDataVersionRequest.from_fields(request.fields)
    key = BrokerKey(header.cluster_name, header.broker_addr)
    asked = decode_body(DataVersion, request.body)
    state.registry.on_heartbeat(key, now_ms)
    known = state.registry.data_version(key)
    changed = QueryDataVersionReply(changed=state.registry.is_changed(key, asked))
    return _succeed(b"" if known is None else known.encode(), changed.to_fields())


def _broker_heartbeat(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = BrokerHeartbeatRequest.from_fields(request.fields)
    state.registry.on_heartbeat(BrokerKey(header.cluster_name, header.broker_addr), now_ms)
    return _succeed()


def _show_clusters(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    brokers = state.registry.replicas()
    body = {
        "brokerAddrTable": {name: _loose_replicas(group) for name, group in brokers.items()},
        "clusterAddrTable": state.registry.clusters(),
    }
    return _succeed(fastjson.dumps(body))


def _show_members(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = BrokerMembersRequest.from_fields(request.fields)
    group = state.registry.replicas().get(header.broker_name)
    members = BrokerReplicas(
        broker_name=header.broker_name,
        cluster=header.cluster_name,
        broker_addrs={} if group is None else group.broker_addrs,
    )
    return _succeed(fastjson.dumps({"brokerMemberGroup": _loose_replicas(members)}))


def _wipe_write_permission(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = WipeWritePermissionRequest.from_fields(request.fields)
    count = state.registry.wipe_write_permission(header.broker_name)
    note = Note(f"broker {header.broker_name} is not writable in {count} topics ({peer.address})")
    fields = WipeWritePermissionReply(wipe_topic_count=count).to_fields()
    return [note, *_succeed(fields=fields)]


def _add_write_permission(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = AddWritePermissionRequest.from_fields(request.fields)
    count = state.registry.add_write_permission(header.broker_name)
    note = Note(f"broker {header.broker_name} is writable in {count} topics ({peer.address})")
    fields = AddWritePermissionReply(add_topic_count=count).to_fields()
    return [note, *_succeed(fields=fields)]


# ---- topics ------------------------------------------------------------------------------------


def _show_route(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = RouteRequest.from_fields(request.fields)
    is_supported = state.options.is_acting_master_supported
    route = state.registry.route(header.topic, is_acting_master_supported=is_supported)
    if route is None:
        remark = f"No topic route info in name server for the topic: {header.topic}{_FAQ}"
        return _refuse(ResponseCode.TOPIC_NOT_EXIST, remark)
    if state.options.is_order_message_enabled:
        route.order_topic_conf = state.key_values.get(ORDER_TOPICS, header.topic)
    if header.zone_mode and header.zone_name:
        return _succeed(_loose_route(_of_zone(route, header.zone_name)))
    if request.version >= ReleaseVersion.V4_9_4 or header.accept_standard_json_only:
        return _succeed(route.encode())
    return _succeed(_loose_route(route))


def _of_zone(route: RouteBody, zone: str) -> RouteBody:
    """Keep the brokers of a zone, and those without a master, which all zones may read."""
    route.broker_datas = [
        group
        for group in route.broker_datas
        if MASTER_ID not in group.broker_addrs or (group.zone_name or "").lower() == zone.lower()
    ]
    names = {group.broker_name for group in route.broker_datas}
    addresses = {address for group in route.broker_datas for address in group.broker_addrs.values()}
    route.queue_datas = [part for part in route.queue_datas if part.broker_name in names]
    route.filter_server_table = {
        address: servers
        for address, servers in route.filter_server_table.items()
        if address in addresses
    }
    return route


def _list_topics(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    return _topic_names(state.registry.topics())


def _list_cluster_topics(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = ClusterTopicsRequest.from_fields(request.fields)
    return _topic_names(state.registry.topics_of_cluster(header.cluster))


def _list_system_topics(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    names = {
        name: None
        for cluster, brokers in state.registry.clusters().items()
        for name in (cluster, *brokers)
    }
    addresses = (
        address
        for group in state.registry.replicas().values()
        for address in group.broker_addrs.values()
    )
    return _topic_names(list(names), next(addresses, None))


def _list_unit_topics(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    has_flags: Callable[[int], bool] = {
        int(RequestCode.GET_UNIT_TOPIC_LIST): lambda flag: bool(flag & 1),
        int(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST): lambda flag: bool(flag & 2),
        int(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST): lambda flag: flag & 3 == 2,
    }[request.code]
    return _topic_names(state.registry.topics_by_flag(has_flags))


def _delete_topic(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = DeleteRouteRequest.from_fields(request.fields)
    state.registry.delete_topic(header.topic, header.cluster_name)
    return [Note(f"topic {header.topic} was deleted by {peer.address}"), *_succeed()]


def _put_topic(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = RegisterTopicRequest.from_fields(request.fields)
    route = decode_body(RouteBody, request.body)
    if not state.registry.put_topic(header.topic, route.queue_datas):
        # Apache logs it and answers with success; so do we, since its tools check the code.
        text = f"topic {header.topic} from {peer.address} names a broker that is not registered"
        return [Note(text, is_warning=True), *_succeed()]
    return _succeed()


# ---- key-value config --------------------------------------------------------------------------


def _put_value(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    if not {"namespace", "key"} <= request.fields.keys():
        return _refuse(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
    header = PutKeyValueRequest.from_fields(request.fields)
    if not state.key_values.put(header.namespace, header.key, header.value):
        limit = state.options.key_value_bytes_max
        return _refuse(ResponseCode.SYSTEM_ERROR, f"key-value config would exceed {limit} bytes")
    return [SaveKeyValues(state.key_values.dump()), *_succeed()]


def _get_value(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = GetKeyValueRequest.from_fields(request.fields)
    value = state.key_values.get(header.namespace, header.key)
    if value is None:
        remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        return _refuse(ResponseCode.QUERY_NOT_FOUND, remark)
    return _succeed(fields=GetKeyValueReply(value=value).to_fields())


def _delete_value(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = DeleteKeyValueRequest.from_fields(request.fields)
    if not state.key_values.delete(header.namespace, header.key):
        return _succeed()
    return [SaveKeyValues(state.key_values.dump()), *_succeed()]


def _list_values(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    header = ListKeyValuesRequest.from_fields(request.fields)
    values = state.key_values.namespace(header.namespace)
    if values is None:
        remark = f"No config item, Namespace: {header.namespace}"
        return _refuse(ResponseCode.QUERY_NOT_FOUND, remark)
    return _succeed(KeyValueBody(table=values).encode())


# ---- settings ----------------------------------------------------------------------------------

_CHANGEABLE: Final = {
    "orderMessageEnable": "is_order_message_enabled",
    "supportActingMaster": "is_acting_master_supported",
}
_FORBIDDEN: Final = {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}


def _change_settings(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    try:
        properties = _read_properties(request.body.decode())
    except UnicodeDecodeError:
        return _refuse(ResponseCode.SYSTEM_ERROR, "string2Properties error: not UTF-8 text")
    if not _FORBIDDEN.isdisjoint(properties):
        return _refuse(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    # Unknown names are ignored, as in Apache.
    changes: dict[str, Any] = {
        _CHANGEABLE[name]: value.lower() == "true"
        for name, value in properties.items()
        if name in _CHANGEABLE
    }
    state.options = dataclasses.replace(state.options, **changes)
    return [Note(f"settings changed by {peer.address}: {sorted(changes)}"), *_succeed()]


def _show_settings(
    state: NameServerState, request: Command, peer: Peer, now_ms: int
) -> list[NameServerOutput]:
    settings = dict(state.settings)
    settings["scanNotActiveBrokerInterval"] = str(int(state.options.scan_interval * 1000))
    for name, attribute in _CHANGEABLE.items():
        settings[name] = "true" if getattr(state.options, attribute) else "false"
    lines = [f"{name}={value}\n" for name, value in sorted(settings.items())]
    return _succeed("".join(lines).encode())


def _read_properties(text: str) -> dict[str, str]:
    """Read `name=value` lines, the form of Java properties that Apache's tools write."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip() for name, _, value in pairs}


# ---- replies -----------------------------------------------------------------------------------


def _succeed(body: bytes = b"", fields: dict[str, str] | None = None) -> list[NameServerOutput]:
    return [Reply(Command(int(ResponseCode.SUCCESS), fields or {}, body))]


def _refuse(code: ResponseCode, remark: str) -> list[NameServerOutput]:
    return [Reply(refusal(code, remark))]


def _topic_names(names: list[str], broker_address: str | None = None) -> list[NameServerOutput]:
    return _succeed(TopicNamesBody(topic_list=names, broker_addr=broker_address).encode())


def _loose_route(route: RouteBody) -> bytes:
    """Encode a route for old Java clients, with `brokerAddrs` that only fastjson reads."""
    members = fastjson.loads(route.encode())
    members["brokerDatas"] = [_loose_replicas(group) for group in route.broker_datas]
    return fastjson.dumps(members)


def _loose_replicas(group: BrokerReplicas) -> dict[str, Any]:
    pairs = [
        b"%d:%b" % (broker_id, fastjson.dumps(address))
        for broker_id, address in sorted(group.broker_addrs.items())
    ]
    members = {
        "brokerAddrs": msgspec.Raw(b"{%b}" % b",".join(pairs)),
        "brokerName": group.broker_name,
        "cluster": group.cluster,
        "enableActingMaster": group.enable_acting_master,
        "zoneName": group.zone_name,
    }
    return {name: value for name, value in members.items() if value is not None}


#: All request codes that are served.
HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.PUT_KV_CONFIG): _put_value,
    int(RequestCode.GET_KV_CONFIG): _get_value,
    int(RequestCode.DELETE_KV_CONFIG): _delete_value,
    int(RequestCode.GET_KVLIST_BY_NAMESPACE): _list_values,
    int(RequestCode.REGISTER_BROKER): _register_broker,
    int(RequestCode.UNREGISTER_BROKER): _unregister_broker,
    int(RequestCode.QUERY_DATA_VERSION): _query_data_version,
    int(RequestCode.BROKER_HEARTBEAT): _broker_heartbeat,
    int(RequestCode.GET_ROUTEINFO_BY_TOPIC): _show_route,
    int(RequestCode.GET_BROKER_CLUSTER_INFO): _show_clusters,
    int(RequestCode.GET_BROKER_MEMBER_GROUP): _show_members,
    int(RequestCode.WIPE_WRITE_PERM_OF_BROKER): _wipe_write_permission,
    int(RequestCode.ADD_WRITE_PERM_OF_BROKER): _add_write_permission,
    int(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER): _list_topics,
    int(RequestCode.GET_TOPICS_BY_CLUSTER): _list_cluster_topics,
    int(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS): _list_system_topics,
    int(RequestCode.GET_UNIT_TOPIC_LIST): _list_unit_topics,
    int(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST): _list_unit_topics,
    int(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST): _list_unit_topics,
    int(RequestCode.DELETE_TOPIC_IN_NAMESRV): _delete_topic,
    int(RequestCode.REGISTER_TOPIC_IN_NAMESRV): _put_topic,
    int(RequestCode.UPDATE_NAMESRV_CONFIG): _change_settings,
    int(RequestCode.GET_NAMESRV_CONFIG): _show_settings,
}
