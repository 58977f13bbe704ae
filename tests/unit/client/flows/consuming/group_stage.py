"""A member of a group on a broker that a test controls, with flows that run one at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from downrange.client.flows.consuming.push_core import PushCore
from downrange.client.flows.consuming.subscriptions import filters_of
from downrange.client.flows.hooks import Hooks
from downrange.model import QueueId
from downrange.options.consumers import ConsumerOptions
from downrange.wire.bodies import (
    ClientConnection,
    ConsumerConnectionsBody,
    GroupMembersBody,
    GroupOffsetsBody,
    LockedQueuesBody,
    LockQueuesBody,
    Subscription,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import OffsetReply, PullReply
from downrange.wire.properties import encode_properties
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.client.flows.consuming.delivery_window import DeliveryWindow
    from downrange.client.flows.consuming.group_member import GroupMember
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.notices import Notice
    from downrange.model import ReceivedMessage

ResultT = TypeVar("ResultT")
ME = "10.0.0.1@7"
TOPIC = "orders"
GROUP = "billing"
RETRY = f"%RETRY%{GROUP}"
A0 = QueueId(TOPIC, "a", 0)
A1 = QueueId(TOPIC, "a", 1)
R0 = QueueId(RETRY, "a", 0)


class Stage:
    """A push consumer, and a broker at "a:1" with the queues of its topic and its retry topic.

    Attributes:
        members: Client ids of the group, as the broker has them.
        refused: Queues whose lock another member has.
        ends: Queue -> the offset of its next message.
        committed: Queue -> the group's offset.
        bodies: Queue and offset -> a body other than b"x".
        handled: What the handler got.
        errors: What the handler raises, one after the other; None to return.
        spawned: Flows that were started in the background.
        notices: What was published.
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        brokers: str = "a",
        queues: int = 2,
        hooks: Hooks | None = None,
        **options: Any,
    ) -> None:
        self.servers = FakeServers(namespace=namespace)
        self.members = [ME]
        self.refused: set[QueueId] = set()
        self.ends: dict[QueueId, int] = defaultdict(int)
        self.committed: dict[QueueId, int] = {}
        self.bodies: dict[tuple[QueueId, int], bytes] = {}
        self.properties: dict[str, str] = {}
        self.handled: list[Any] = []
        self.errors: list[BaseException | None] = []
        self.spawned: list[Flow[None]] = []
        self.notices: list[Notice] = []
        self.sent_back: list[tuple[int, int]] = []
        self.subscribed: dict[str, str] | None = None
        self.connections: list[str] = []
        prefix = "" if namespace is None else f"{namespace}%"
        self.servers.answer_route(prefix + TOPIC, route(brokers, queues=queues))
        self.servers.answer_route(f"%RETRY%{prefix}{GROUP}", route(brokers, queues=1))
        for broker in brokers:
            self.open(broker)
        self.servers.core.observe = self.notices.append
        self.push = PushCore(
            self.servers.core,
            GROUP,
            ConsumerOptions(**options),
            self.handle,
            None,
            hooks or Hooks(),
            self.spawn,
        )

    @property
    def member(self) -> GroupMember:
        return self.push.member

    @property
    def now(self) -> float:
        return self.servers.clock.seconds

    @property
    def on_wait(self) -> list[Callable[[], object]]:
        return self.servers.interpreter.on_wait

    # ---- running ----

    def spawn(self, flow: Flow[None]) -> None:
        self.spawned.append(flow)

    def run(self, flow: Flow[ResultT]) -> ResultT:
        return self.servers.run(flow)

    def run_spawned(self, *, last: int | None = None) -> None:
        """Run the flows that were started, or only the last ones, to their end."""
        count = len(self.spawned) if last is None else last
        flows = self.spawned[-count:]
        del self.spawned[-count:]
        for flow in flows:
            self.run(flow)

    def enter(self, subscribe: Any = TOPIC) -> None:
        self.run(self.push.enter(filters_of(subscribe), self.now + 3))

    def window(self, queue: QueueId = A0) -> DeliveryWindow:
        return self.member.windows[queue]

    def fill(self, queue: QueueId, count: int, **details: Any) -> list[ReceivedMessage]:
        """Put messages into a queue and its window; return them."""
        from downrange.client.flows.consuming.pull import read_messages

        window = self.window(queue)
        first = window.next_offset
        data = b"".join(
            record(queue.topic, first + number, queue=queue.number, **details)
            for number in range(count)
        )
        messages = read_messages(self.servers.core, data, queue.broker)
        window.add(messages, first + count)  # type: ignore[arg-type]
        self.push._arrived(window)
        return messages

    def work(self, times: int = 1) -> None:
        """Let a worker handle deliveries until it waits so often."""

        def end() -> None:
            self.push.end_workers()

        self.push._is_over = False
        self.on_wait[:] = [lambda: None] * (times - 1) + [end]
        self.run(self.push.work())
        self.push._is_over = False

    def handle(self, argument: Any) -> None:
        self.handled.append(argument)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def published(self, kind: type[Notice]) -> list[Any]:
        return [notice for notice in self.notices if isinstance(notice, kind)]

    # ---- the broker ----

    def open(self, broker: str) -> None:
        """Make a broker answer."""
        answers: dict[RequestCode, Callable[[Command], Command]] = {
            RequestCode.HEART_BEAT: lambda _: reply(),
            RequestCode.UNREGISTER_CLIENT: lambda _: reply(),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: lambda _: reply(),
            RequestCode.PULL_MESSAGE: lambda c: self._pull(c, broker),
            RequestCode.UPDATE_CONSUMER_OFFSET: lambda c: self._commit(c, broker),
            RequestCode.QUERY_CONSUMER_OFFSET: lambda c: self._progress(c, broker),
            RequestCode.GET_MAX_OFFSET: lambda c: reply(OffsetReply(self.ends[_queue(c, broker)])),
            RequestCode.GET_MIN_OFFSET: lambda _: reply(OffsetReply(0)),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda _: reply(OffsetReply(4)),
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.CHECK_CLIENT_CONFIG: lambda _: reply(),
        }
        for code, answer in answers.items():
            self.servers.answer(f"{broker}:1", code, answer)

    def _members(self, _: Command) -> Command:
        if not self.members:
            return refusal(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return reply(body=GroupMembersBody(consumer_id_list=self.members))

    def _connections(self, _: Command) -> Command:
        table = self.subscribed
        if table is None:
            table = {body.topic: body.sub_string for body in self.member.subscriptions.bodies()}
        found = {topic: Subscription(topic=topic, sub_string=text) for topic, text in table.items()}
        connections = [ClientConnection(client_id=ME, client_addr=at) for at in self.connections]
        connections.append(ClientConnection(client_id="10.0.0.2@9", client_addr="10.0.0.2:1"))
        body = ConsumerConnectionsBody(connection_set=connections, subscription_table=found)
        return reply(body=body)

    def _lock(self, command: Command) -> Command:
        wanted = decode_body(LockQueuesBody, command.body).mq_set
        locked = [queue for queue in wanted if queue not in self.refused]
        return reply(body=LockedQueuesBody(locked=locked))

    def _pull(self, command: Command, broker: str) -> Command:
        queue, offset = _queue(command, broker), int(command.fields["queueOffset"])
        end = self.ends[queue]
        if offset >= end:
            return Command(19, PullReply(0, end, 0, end).to_fields())
        last = min(end, offset + int(command.fields["maxMsgNums"]))
        body = b"".join(
            record(
                queue.topic,
                number,
                queue=queue.number,
                body=self.bodies.get((queue, number), b"x"),
                properties=encode_properties(self.properties),
            )
            for number in range(offset, last)
        )
        return Command(0, PullReply(0, last, 0, end).to_fields(), body)

    def _commit(self, command: Command, broker: str) -> Command:
        self.committed[_queue(command, broker)] = int(command.fields["commitOffset"])
        return reply()

    def _progress(self, command: Command, broker: str) -> Command:
        offset = self.committed.get(_queue(command, broker))
        missing = refusal(ResponseCode.QUERY_NOT_FOUND)
        return missing if offset is None else reply(OffsetReply(offset))

    def _all_offsets(self, _: Command) -> Command:
        table: dict[str, dict[int, int]] = {}
        for queue, offset in self.committed.items():
            table.setdefault(f"{queue.topic}@{GROUP}", {})[queue.number] = offset
        return reply(body=GroupOffsetsBody(offset_table=table))

    def _send_back(self, command: Command) -> Command:
        fields = command.fields
        self.sent_back.append((int(fields["offset"]) // 1000, int(fields["delayLevel"])))
        return reply()

    def asked(self, code: RequestCode) -> int:
        """Return how often something was asked of the broker."""
        return len(self.servers.asked(code))

    def queues_asked(self, code: RequestCode) -> list[set[QueueId]]:
        """Return the queues in each request to lock or unlock."""
        return [
            set(decode_body(LockQueuesBody, command.body).mq_set)
            for _, command in self.servers.calls
            if command.code == code
        ]


def _queue(command: Command, broker: str) -> QueueId:
    return QueueId(command.fields["topic"], broker, int(command.fields["queueId"]))


def offsets(messages: Iterable[ReceivedMessage]) -> list[int]:
    """Return the offsets of messages."""
    return [message.offset for message in messages]
