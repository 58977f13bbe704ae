"""Brokers, registrations and requests for the tests of the name server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from downrange.options import NameServerOptions
from downrange.server.nameserver.handlers import NameServerState, handle
from downrange.server.nameserver.registry import Registered, Registration, RouteRegistry
from downrange.server.outputs import Peer, Reply
from downrange.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicTableBody
from downrange.wire.fields import Header, request_command
from downrange.wire.headers import RegisterBrokerRequest

if TYPE_CHECKING:
    from downrange.wire.command import Command

PEER = Peer(1, "10.0.0.7:4242")


def topic_table(
    *topics: str | TopicConfig, counter: int = 1, state: int | None = 0
) -> TopicTableBody:
    """Return a table of topics with four queues each, or as configured."""
    configs = [
        TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
        if isinstance(topic, str)
        else topic
        for topic in topics
    ]
    return TopicTableBody(
        topic_config_table={config.topic_name: config for config in configs},
        data_version=DataVersion(timestamp=1000, counter=counter, state_version=state),
    )


def registration(name: str = "a", broker_id: int = 0, **changes: Any) -> Registration:
    """Return a registration of two topics, or as the changes say."""
    settings: dict[str, Any] = {
        "address": f"{name}{broker_id}:10911",
        "cluster": "c",
        "ha_address": f"{name}{broker_id}:10912",
        "connection": 1,
        "timeout_ms": 120_000,
        "table": topic_table("T", "U"),
    }
    return Registration(name=name, broker_id=broker_id, **{**settings, **changes})


def register(registry: RouteRegistry, *args: Any, now_ms: int = 0, **changes: Any) -> Registered:
    """Register a broker and return the result."""
    return registry.register(registration(*args, **changes), now_ms)


def new_state(**options: Any) -> NameServerState:
    """Return an empty name server."""
    return NameServerState(NameServerOptions(**options))


def answer(
    state: NameServerState,
    request: Header | Command,
    body: bytes = b"",
    *,
    peer: Peer = PEER,
    now_ms: int = 0,
) -> Command:
    """Return the one reply to a request."""
    command = request_command(request, body) if isinstance(request, Header) else request
    replies = [o for o in handle(state, command, peer, now_ms) if isinstance(o, Reply)]
    assert len(replies) == 1
    return replies[0].command


def register_request(name: str = "a", broker_id: int = 0, **changes: Any) -> RegisterBrokerRequest:
    """Return the header of a registration."""
    settings: dict[str, Any] = {
        "broker_addr": f"{name}{broker_id}:10911",
        "cluster_name": "c",
        "ha_server_addr": f"{name}{broker_id}:10912",
    }
    return RegisterBrokerRequest(broker_name=name, broker_id=broker_id, **{**settings, **changes})


def register_body(*topics: str | TopicConfig, **changes: Any) -> bytes:
    """Return the plain body of a registration."""
    table = topic_table(*(topics or ("T", "U")), **changes)
    return RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
