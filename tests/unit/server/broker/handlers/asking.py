"""A broker in memory that tests ask single questions, one handler at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.options import BrokerOptions
from downrange.server.broker.broker import HANDLERS
from downrange.server.broker.record_fields import StoreHost
from downrange.server.broker.scheduled.delay_levels import unit_tag_of
from downrange.server.broker.state import BrokerState
from downrange.server.outputs import Output, Peer, Push, Reply
from downrange.store.files import MemoryFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.wire.bodies import ConsumerMember, HeartbeatBody, ProducerMember, Subscription
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import CreateTopicRequest
from downrange.wire.properties import encode_properties
from downrange.wire.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.wire.fields import Header

NOW_MS = 1_800_000_000_000
SIZES = StoreOptions(
    log_segment_bytes=1024 * 1024, queue_segment_units=3000, key_slots=7, key_entries=2000
)
TOOL = Peer(1, "10.0.0.1:1001")


class Asked:
    """A broker, and the time.

    Attributes:
        state: The broker; topic "T" has two queues, group "G" exists.
        now_ms: The time, which the test moves on.
    """

    def __init__(self, **options: object) -> None:
        settings = BrokerOptions(**options)  # type: ignore[arg-type]
        self.now_ms = NOW_MS
        store = MessageStore(MemoryFiles(), SIZES, unit_tag=unit_tag_of(settings.delay_levels))
        host = StoreHost.of("10.0.0.2", 10911)
        self.state = BrokerState(settings, host, store, lambda now_ms: f"id{now_ms}", NOW_MS)
        self.state.prepare(NOW_MS)
        self.create("T")
        self.state.groups.get_or_create("G", settings, NOW_MS)

    def outputs(self, request: Command, peer: Peer = TOOL) -> list[Output]:
        """Return everything that a handler wants done."""
        return list(HANDLERS[request.code](self.state, request, peer, self.now_ms))

    def tell(self, header: Header, body: bytes = b"", *, code: int | None = None) -> Command:
        """Return the reply to a request with a header."""
        return reply_of(self.outputs(request_command(header, body, code=code)))

    def ask(self, code: RequestCode, body: bytes = b"", **fields: str) -> Command:
        """Return the reply to a request with plain fields."""
        return reply_of(self.outputs(Command(int(code), fields, body)))

    def create(self, topic: str, **changes: object) -> Command:
        """Create a topic of two queues, or as the changes say."""
        settings: dict[str, object] = {
            "topic": topic,
            "default_topic": "TBW102",
            "read_queue_nums": 2,
            "write_queue_nums": 2,
            "perm": 6,
        }
        return self.tell(CreateTopicRequest(**(settings | changes)))  # type: ignore[arg-type]

    def store(
        self, body: bytes, *, topic: str = "T", queue_id: int = 0, **properties: str
    ) -> Record:
        """Store a message now."""
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
        """Send the heartbeat of a consumer, and of a producer if one is named."""
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
