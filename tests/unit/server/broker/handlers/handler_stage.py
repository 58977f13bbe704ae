"""A broker in memory for tests of single handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.options import BrokerOptions
from downrange.server.broker.broker import HANDLERS
from downrange.server.outputs import Output, Peer, Push, Reply
from downrange.store.files import MemoryFiles
from downrange.wire.bodies import ConsumerMember, HeartbeatBody, ProducerMember, Subscription
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import CreateTopicRequest
from downrange.wire.properties import encode_properties
from downrange.wire.records import Record
from tests.unit.server.broker.broker_stage import NOW_MS, open_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.wire.fields import Header

TOOL = Peer(1, "10.0.0.1:1001")


class HandlerStage:
    """A broker's state and the time.

    Attributes:
        state: The broker; topic "T" has two queues, group "G" exists.
        now_ms: The time; tests change it.
    """

    def __init__(self, **options: object) -> None:
        settings = BrokerOptions(**options)  # type: ignore[arg-type]
        self.now_ms = NOW_MS
        self.state = open_state(settings, MemoryFiles(), now_ms=NOW_MS)
        self.state.prepare(NOW_MS)
        self.create("T")
        self.state.groups.get_or_create("G", settings, NOW_MS)

    def outputs(self, request: Command, peer: Peer = TOOL) -> list[Output]:
        """Return the outputs of a handler."""
        return list(HANDLERS[request.code](self.state, request, peer, self.now_ms))

    def request(self, header: Header, body: bytes = b"", *, code: int | None = None) -> Command:
        """Return the reply to a request with a header."""
        return reply_of(self.outputs(request_command(header, body, code=code)))

    def ask(self, code: RequestCode, body: bytes = b"", **fields: str) -> Command:
        """Return the reply to a request with plain fields."""
        return reply_of(self.outputs(Command(int(code), fields, body)))

    def create(self, topic: str, **changes: object) -> Command:
        """Create a topic of two queues, or with other settings."""
        settings: dict[str, object] = {
            "topic": topic,
            "default_topic": "TBW102",
            "read_queue_nums": 2,
            "write_queue_nums": 2,
            "perm": 6,
        }
        return self.request(CreateTopicRequest(**(settings | changes)))  # type: ignore[arg-type]

    def store(
        self, body: bytes, *, topic: str = "T", queue_id: int = 0, **properties: str
    ) -> Record:
        """Store a message at once, without a handler."""
        record = Record(
            topic_bytes=topic.encode(),
            queue_id=queue_id,
            body=body,
            born_ms=self.now_ms,
            store_ip=self.state.host.ip,
            store_port=self.state.host.port,
            property_bytes=encode_properties(properties).encode(),
        )
        self.state.store.append([record], self.now_ms, [properties])
        return record

    def beat(
        self,
        peer: Peer,
        client_id: str,
        *,
        group: str = "G",
        topics: tuple[str, ...] = ("T",),
        producing: str | None = None,
        version: int = 1,
        model: str = "CLUSTERING",
        fingerprint: int | None = None,
        is_short: bool = False,
    ) -> list[Output]:
        """Send the heartbeat of a consumer, and of a producer if a group is given."""
        subscriptions = [Subscription(topic=topic, sub_version=version) for topic in topics]
        member = ConsumerMember(
            group_name=group, message_model=model, subscription_data_set=subscriptions
        )
        body = HeartbeatBody(
            client_id=client_id,
            consumer_data_set=[member] if group else [],
            producer_data_set=[ProducerMember(group_name=producing)] if producing else [],
            heartbeat_fingerprint=fingerprint,
            without_sub=is_short,
        )
        return self.outputs(Command(int(RequestCode.HEART_BEAT), body=body.encode()), peer)


def reply_of(outputs: Iterable[Output]) -> Command:
    """Return the one reply among outputs."""
    (command,) = [output.command for output in outputs if isinstance(output, Reply)]
    return command


def pushes_of(outputs: Iterable[Output], code: RequestCode) -> list[int]:
    """Return the connections to which a one-way request of ours goes."""
    pushed = [output for output in outputs if isinstance(output, Push)]
    assert all(push.command.code == code and push.command.is_oneway for push in pushed)
    return sorted(push.connection for push in pushed)
