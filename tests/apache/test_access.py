"""Signed commands on a broker with access control, and commands over TLS."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from downrange.wire.codes import HeaderCodec, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CreateTopicRequest,
    QueryByKeyRequest,
    RouteRequest,
    SendReply,
    SendRequestV2,
)
from downrange.wire.properties import encode_properties
from downrange.wire.records import decode_records
from downrange.wire.signatures import sign
from tests.apache.fixtures import ACCOUNTS
from tests.conversations.peers import Peer, SocketChannel
from tests.conversations.scene import read_header, succeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.wire.command import Command
    from tests.apache.cluster import ApacheCluster
    from tests.apache.security import Account

REFUSALS = {ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION}  # 4.9 and 5.x


@pytest.fixture(params=HeaderCodec, ids=lambda codec: codec.name)
def peer(request: pytest.FixtureRequest, apache_acl: ApacheCluster) -> Iterator[Peer]:
    connection = Peer(SocketChannel(apache_acl.brokers[0].address), request.param)
    yield connection
    connection.close()


def _create(topic: str) -> Command:
    return request_command(
        CreateTopicRequest(
            topic=topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
        )
    )


def _send(topic: str, properties: dict[str, str]) -> Command:
    header = SendRequestV2(
        producer_group="signers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=encode_properties(properties),
        unit_mode=False,
        batch=False,
    )
    return request_command(header, "unterschrieben ü".encode())


def _signed(command: Command, account: Account, secret: str | None = None) -> Command:
    sign(command, account.access_key, secret or account.secret_key)
    return command


def test_broker_takes_signed_commands_only(peer: Peer, unique_name: Callable[[str], str]) -> None:
    topic = unique_name("acl")
    assert peer.ask(_create(topic)).code in REFUSALS
    succeed(peer.ask(_signed(_create(topic), ACCOUNTS.admin)))
    wrong = _signed(_send(topic, {"TAGS": "a"}), ACCOUNTS.admin, secret="not the secret")
    reply = peer.ask(wrong)
    assert reply.code in REFUSALS
    assert reply.remark is not None
    assert "signature" in reply.remark.lower()
    reply = peer.ask(_signed(_send(topic, {"TAGS": "a", "色": "青"}), ACCOUNTS.admin))
    assert read_header(SendReply, reply).queue_offset == 0


def test_broker_takes_a_signed_query_by_unique_key(
    apache_acl: ApacheCluster, unique_name: Callable[[str], str]
) -> None:
    """Some releases sign the field `_UNIQUE_KEY_QUERY` and others do not."""
    peer = Peer(SocketChannel(apache_acl.brokers[0].address), HeaderCodec.JSON)
    topic, unique_key = unique_name("acl"), unique_name("id")
    succeed(peer.ask(_signed(_create(topic), ACCOUNTS.admin)))
    sent = _signed(_send(topic, {"UNIQ_KEY": unique_key}), ACCOUNTS.admin)
    stored = read_header(SendReply, peer.ask(sent))
    query = QueryByKeyRequest(
        topic=topic,
        key=unique_key,
        max_num=1,
        begin_timestamp=0,
        end_timestamp=2**62,
        is_unique_key=True,
    )
    reply = peer.ask(_signed(request_command(query), ACCOUNTS.admin))
    deadline = time.monotonic() + 60
    while reply.code == ResponseCode.QUERY_NOT_FOUND:  # the index is filled in the background
        assert time.monotonic() < deadline
        time.sleep(0.05)
        reply = peer.ask(_signed(request_command(query), ACCOUNTS.admin))
    (record,) = decode_records(succeed(reply).body)
    assert record.offset_id == stored.msg_id
    peer.close()


def test_account_without_permission_is_refused(
    peer: Peer, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("acl")
    succeed(peer.ask(_signed(_create(topic), ACCOUNTS.admin)))
    (other, *_) = ACCOUNTS.others
    reply = peer.ask(_signed(_send(topic, {"TAGS": "a"}), other))
    assert reply.code in REFUSALS
    assert reply.remark is not None
    assert "permission" in reply.remark


def test_commands_travel_over_tls(apache_tls: ApacheCluster) -> None:
    assert apache_tls.tls is not None
    context = apache_tls.tls.client_context()
    for address in (apache_tls.name_server, apache_tls.brokers[0].address):
        peer = Peer(SocketChannel(address, context), HeaderCodec.JSON)
        reply = peer.ask(request_command(RouteRequest(topic="TBW102")))
        # The name server answers with a route; a broker does not support this code.
        assert reply.code in {ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
        peer.close()
    plain = Peer(SocketChannel(apache_tls.brokers[0].address), HeaderCodec.JSON)
    with pytest.raises((EOFError, ConnectionError)):
        plain.ask(request_command(RouteRequest(topic="TBW102")))
    plain.close()
