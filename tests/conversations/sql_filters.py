"""SQL92 filters: checks of subscriptions, heartbeats, pulls at once and pulls that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.bodies import CheckClientBody, ConsumerMember, HeartbeatBody, Subscription
from downrange.wire.codes import PullFlag, RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import PullReply, PullRequest
from downrange.wire.records import decode_records
from tests.conversations.scene import Scene, bare_request, read_header, succeed
from tests.conversations.sends import pull

if TYPE_CHECKING:
    from downrange.wire.command import Command
    from tests.conversations.peers import Peer

WRONG = "size >"
HOLD_MS = 10_000


def subscriptions_filter_by_sql92(scene: Scene) -> None:
    """A pull without an expression is answered by that of its group's last heartbeat."""
    broker = scene.broker()
    topic = _filled_topic(scene, broker)
    succeed(broker.ask(_check(scene, topic, "size > 1")))
    assert broker.ask(_check(scene, topic, WRONG)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    def subscribed(version: int) -> Command:
        return broker.ask(_pull(scene, topic, 0, sub_version=version))

    assert subscribed(1).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    succeed(broker.ask(_heartbeat(scene, topic, "color = 'red' AND size > 1", 1)))
    _assert_found(subscribed(1), [b"red 3"], 3)
    assert subscribed(2).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    succeed(broker.ask(_heartbeat(scene, topic, "size < 3", 2)))
    _assert_found(subscribed(2), [b"red 1", b"blue 2"], 3)
    succeed(broker.ask(_heartbeat(scene, topic, WRONG, 3)))
    assert subscribed(3).code == ResponseCode.FILTER_DATA_NOT_EXIST


def pulls_filter_by_sql92(scene: Scene) -> None:
    """A pull brings its expression along."""
    broker, sender = scene.broker(), scene.broker()
    topic = _filled_topic(scene, broker)

    def filtered(expression: str, offset: int = 0, hold_ms: int = 0) -> Command:
        return _pull(scene, topic, offset, expression, hold_ms=hold_ms)

    _assert_found(broker.ask(filtered("color = 'red'")), [b"red 1", b"red 3"], 3)
    _assert_found(broker.ask(filtered("size BETWEEN 2 AND 3", 2)), [b"red 3"], 3)
    _assert_found(broker.ask(filtered("missing IS NULL AND size <> 1")), [b"blue 2", b"red 3"], 3)
    # What follows a complete expression is ignored.
    _assert_found(broker.ask(filtered("color = 'blue' LIKE 'x%'")), [b"blue 2"], 3)
    for expression in ("size > 3", "color", "color > 3", "size > 2.5 AND missing = 1"):
        reply = broker.ask(filtered(expression))
        assert (reply.code, reply.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
        assert PullReply.from_fields(reply.fields).next_begin_offset == 3
    call = broker.start(filtered("color = 'red'", 3, HOLD_MS))
    _send(scene, sender, topic, 3, "red", "4")
    _assert_found(broker.finish(call), [b"red 4"], 4)


def _filled_topic(scene: Scene, broker: Peer) -> str:
    """Return a topic with three messages that can be pulled."""
    topic = scene.create_topic(broker, "filtered")
    for number, (color, size) in enumerate((("red", "1"), ("blue", "2"), ("red", "3"))):
        _send(scene, broker, topic, number, color, size)
    pull(scene, broker, topic, count=3)
    return topic


def _send(scene: Scene, broker: Peer, topic: str, number: int, color: str, size: str) -> None:
    properties = {"color": color, "size": size, "UNIQ_KEY": scene.unique_id(number)}
    scene.send(broker, topic, f"{color} {size}".encode(), properties)


def _subscription(topic: str, expression: str, version: int) -> Subscription:
    return Subscription(
        topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version
    )


def _check(scene: Scene, topic: str, expression: str) -> Command:
    body = CheckClientBody(
        client_id="127.0.0.1@1",
        group=scene.name("members"),
        subscription_data=_subscription(topic, expression, 1),
    )
    return bare_request(RequestCode.CHECK_CLIENT_CONFIG, body.encode())


def _heartbeat(scene: Scene, topic: str, expression: str, version: int) -> Command:
    member = ConsumerMember(
        group_name=scene.name("members"),
        subscription_data_set=[_subscription(topic, expression, version)],
    )
    body = HeartbeatBody(client_id="127.0.0.1@1", consumer_data_set=[member])
    return bare_request(RequestCode.HEART_BEAT, body.encode())


def _pull(
    scene: Scene,
    topic: str,
    offset: int,
    expression: str | None = None,
    *,
    sub_version: int = 0,
    hold_ms: int = 0,
) -> Command:
    flags = (PullFlag.SUBSCRIPTION if expression else 0) | (PullFlag.SUSPEND if hold_ms else 0)
    request = PullRequest(
        consumer_group=scene.name("members"),
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=int(flags),
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        sub_version=sub_version,
        subscription=expression,
        expression_type="SQL92",
    )
    return request_command(request)


def _assert_found(reply: Command, bodies: list[bytes], next_offset: int) -> None:
    assert read_header(PullReply, reply).next_begin_offset == next_offset
    assert [record.body for record in decode_records(reply.body)] == bodies
