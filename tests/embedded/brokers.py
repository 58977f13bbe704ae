"""Requests to our brokers over real sockets: send, pull, route."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from downrange.wire.bodies import RouteBody, decode_body
from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import CreateTopicRequest, PullRequest, RouteRequest, SendRequestV2
from downrange.wire.records import decode_records
from tests.conversations.peers import Peer, SocketChannel

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator

    from downrange.wire.command import Command

DEADLINE = 10.0


@contextmanager
def connection(address: str, tls: ssl.SSLContext | None = None) -> Generator[Peer]:
    """Connect to a server."""
    peer = Peer(SocketChannel(address, tls), HeaderCodec.JSON)
    try:
        yield peer
    finally:
        peer.close()


def send_request(body: bytes, topic: str = "T", **changes: Any) -> Command:
    """Return a send to queue 0 that creates its topic."""
    settings: dict[str, Any] = {
        "producer_group": "P",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 1,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": int(time.time() * 1000),
        "flag": 0,
    }
    header = SendRequestV2(**(settings | changes))
    return request_command(header, body, code=int(RequestCode.SEND_MESSAGE_V2))


def pull_request(
    offset: int, topic: str = "T", *, suspend_ms: int = 0, consumer_group: str = "G"
) -> Command:
    """Return a pull of queue 0."""
    header = PullRequest(
        consumer_group=consumer_group,
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=6 if suspend_ms else 4,
        suspend_timeout_millis=suspend_ms,
        subscription="*",
    )
    return request_command(header, code=int(RequestCode.PULL_MESSAGE))


def create_request(topic: str) -> Command:
    """Return a request that creates a topic of one queue."""
    header = CreateTopicRequest(
        topic=topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
    )
    return request_command(header)


def send(address: str, body: bytes, topic: str = "T") -> int:
    """Send a message over a new connection; return the code of the reply."""
    with connection(address) as peer:
        return peer.ask(send_request(body, topic)).code


def bodies(address: str, topic: str = "T") -> list[bytes]:
    """Return all messages of queue 0."""
    found: list[bytes] = []
    with connection(address) as peer:
        while (answer := peer.ask(pull_request(len(found), topic))).code == ResponseCode.SUCCESS:
            found += [record.body for record in decode_records(answer.body)]
    return found


def route(name_server: str, topic: str) -> list[str] | None:
    """Return the names of the brokers that have a topic, or None."""
    with connection(name_server) as peer:
        answer = peer.ask(request_command(RouteRequest(topic=topic)))
    if answer.code != ResponseCode.SUCCESS:
        return None
    return sorted(broker.broker_name for broker in decode_body(RouteBody, answer.body).broker_datas)
