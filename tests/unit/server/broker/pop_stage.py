"""A broker in virtual time with consumers that pop: pop, acknowledge, change, restart.

`restart` begins again on the same store as after a kill: with the tables that were confirmed, and
with the progress that was saved at any earlier moment, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from downrange.options import BrokerOptions
from downrange.server.broker.broker import Broker
from downrange.server.run.saved_tables import confirmed_tables, progress_tables
from downrange.wire.codes import CommandFlag, RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.pop_bodies import BatchAck, BatchAckBody, bit_set
from downrange.wire.pop_headers import (
    AckRequest,
    ChangeInvisibleRequest,
    NotificationRequest,
    PeekRequest,
    PollingCountRequest,
    PopRequest,
)
from downrange.wire.pop_receipts import Receipt
from downrange.wire.records import decode_records
from tests.unit.server.broker.broker_stage import (
    CLIENT,
    NOW_MS,
    SIZES,
    Stage,
    open_state,
    send_request,
)

if TYPE_CHECKING:
    from downrange.server.outputs import Peer
    from downrange.store.files import MemoryFiles
    from downrange.store.message_store import StoreOptions
    from downrange.wire.bodies import GroupConfig
    from downrange.wire.records import Record

INVISIBLE_MS = 30_000
RETRY_TOPIC = "%RETRY%G_T"
RETRY_TOPIC_V2 = "%RETRY%G+T"
TIMER_TOPIC = "rmq_sys_wheel_timer"
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"


class Popped(NamedTuple):
    """One message that a pop returned."""

    receipt: Receipt
    record: Record

    @property
    def body(self) -> str:
        return self.record.body.decode()


class PopStage(Stage):
    """A broker with topic T and group G.

    Args:
        files: The store's folder.
        queues: The number of queues of T.
        sizes: Sizes of the store's files.
        options: Of the broker.
    """

    def __init__(
        self,
        files: MemoryFiles | None = None,
        *,
        queues: int = 1,
        sizes: StoreOptions = SIZES,
        **options: Any,
    ) -> None:
        super().__init__(files, **options)
        self._sizes = sizes
        if sizes is not SIZES:
            self.state.store.close()
            self.state = open_state(BrokerOptions(**options), self.files, sizes=sizes)
            self.state.prepare(NOW_MS)
            self.broker = Broker(self.state)
        self._options = options
        self._confirmed = confirmed_tables(self.files, self.state)
        self._progress = progress_tables(self.files, self.state)
        self.state.groups.get_or_create("G", self.state.options, NOW_MS)
        self.create("T", queues)
        self.tick()

    # ---- driver ----

    def publish(self) -> None:
        if hasattr(self, "_confirmed"):
            self._confirmed.write(self._confirmed.changes())
        super().publish()

    def progress(self) -> dict[str, bytes]:
        """Return the progress tables as they would be saved now."""
        return self._progress.everything()

    def restart(self, progress: dict[str, bytes] | None = None, *, tick: bool = True) -> None:
        """Kill the broker and start it again, with a saved progress or none."""
        self.flush()
        self.publish()
        for path in self._progress.everything():
            if self.files.read_all(path) is not None:
                self.files.remove(path)
        for path, data in (progress or {}).items():
            self.files.replace(path, data)
        options = BrokerOptions(**self._options)
        self.state = open_state(options, self.files, sizes=self._sizes, now_ms=self.now_ms)
        self._confirmed = confirmed_tables(self.files, self.state)
        self._progress = progress_tables(self.files, self.state)
        self._confirmed.load()
        self._progress.load()
        self.broker = Broker(self.state)
        self.state.prepare(self.now_ms)
        self.publish()
        if tick:
            self.tick()

    def drain(self, forward_ms: int) -> None:
        """Advance the time, and tick until nothing more is due."""
        self.tick(forward_ms)
        for _ in range(1000):
            if not self.broker.is_behind(self.now_ms):
                break
            self.tick()
        self.publish()

    # ---- clients ----

    def send(self, *bodies: str, topic: str = "T", queue_id: int = 0, **properties: str) -> None:
        """Send messages to a queue."""
        for body in bodies:
            request = send_request(
                body.encode(), topic, queue_id=queue_id, properties=dict(properties)
            )
            assert self.ask(request).code == 0

    def pop(self, peer: Peer = CLIENT, **changes: Any) -> list[Popped]:
        """Pop messages; the pop must be answered at once."""
        return popped_of(self.ask(pop_request(now_ms=self.now_ms, **changes), peer))

    def bodies(self, **changes: Any) -> list[str]:
        """Pop messages and return their bodies."""
        return [one.body for one in self.pop(**changes)]

    def hold(self, peer: Peer = CLIENT, poll_ms: int = 10_000, **changes: Any) -> Command:
        """Hand in a pop that waits."""
        request = pop_request(poll_ms=poll_ms, now_ms=self.now_ms, **changes)
        self.hand_in(request, peer)
        self.commit()
        return request

    def answer_of(self, request: Command) -> Command:
        """Return the answer to a request that was held."""
        self.publish()
        answer = self.answer_to(request)
        assert answer is not None, "still held"
        return answer

    def ack(self, *popped: Popped, topic: str = "T", group: str = "G") -> None:
        """Acknowledge messages, each with a request."""
        for one in popped:
            assert self.ask(ack_request(one, topic=topic, group=group)).code == 0

    def ack_together(self, *popped: Popped, group: str = "G") -> Command:
        """Acknowledge messages in one request."""
        return self.ask(batch_ack_request(*popped, group=group))

    def change(self, one: Popped, invisible_ms: int, **changes: Any) -> Command:
        """Change when a message becomes visible."""
        return self.ask(change_request(one, invisible_ms, **changes))

    def set_offset(self, offset: int, queue_id: int = 0) -> None:
        """Commit an offset of the group, as any client may."""
        fields = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": str(queue_id),
            "commitOffset": str(offset),
        }
        assert self.ask(Command(int(RequestCode.UPDATE_CONSUMER_OFFSET), fields)).code == 0

    def reset(self, offset: int, queue_id: int = 0) -> None:
        """Reset the group in a queue, as a tool does."""
        fields = {
            "topic": "T",
            "group": "G",
            "timestamp": "0",
            "isForce": "true",
            "queueId": str(queue_id),
            "offset": str(offset),
        }
        answer = self.ask(Command(int(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET), fields))
        assert answer.code == 0

    # ---- state ----

    def committed(self, queue_id: int = 0, topic: str = "T", group: str = "G") -> int | None:
        """Return the committed offset of the group."""
        return self.state.offsets.get(group, topic, queue_id)

    def group(self, **changes: Any) -> GroupConfig:
        """Change settings of the group."""
        config = self.state.groups.get("G")
        assert config is not None
        for name, value in changes.items():
            setattr(config, name, value)
        return config

    def again(self, topic: str = RETRY_TOPIC) -> list[str]:
        """Return the bodies in a retry topic."""
        if self.state.topics.get(topic) is None:
            return []
        return [record.body.decode() for record in self.records(topic)]


# ---- requests ----


def pop_request(
    count: int = 32,
    *,
    topic: str = "T",
    group: str = "G",
    queue_id: int = -1,
    invisible_ms: int = INVISIBLE_MS,
    poll_ms: int = 0,
    now_ms: int = NOW_MS,
    is_oneway: bool = False,
    **changes: Any,
) -> Command:
    """Return a pop."""
    fields: dict[str, Any] = {
        "consumer_group": group,
        "topic": topic,
        "queue_id": queue_id,
        "max_msg_nums": count,
        "invisible_time": invisible_ms,
        "poll_time": poll_ms,
        "born_time": now_ms,
        "init_mode": 0,
    }
    request = request_command(PopRequest(**(fields | changes)))
    if is_oneway:
        request.flags |= int(CommandFlag.ONEWAY)
    return request


def ack_request(one: Popped, *, topic: str = "T", group: str = "G", **changes: Any) -> Command:
    """Return an acknowledgement of a message."""
    receipt = one.receipt
    fields: dict[str, Any] = {
        "consumer_group": group,
        "topic": receipt.topic(topic, group),
        "queue_id": receipt.queue_id,
        "extra_info": str(receipt),
        "offset": receipt.offset,
    }
    return request_command(AckRequest(**(fields | changes)))


def change_request(
    one: Popped, invisible_ms: int, *, topic: str = "T", group: str = "G", **changes: Any
) -> Command:
    """Return a change of the time of a message."""
    receipt = one.receipt
    fields: dict[str, Any] = {
        "consumer_group": group,
        "topic": receipt.topic(topic, group),
        "queue_id": receipt.queue_id,
        "extra_info": str(receipt),
        "offset": receipt.offset,
        "invisible_time": invisible_ms,
    }
    return request_command(ChangeInvisibleRequest(**(fields | changes)))


def batch_ack_request(*popped: Popped, topic: str = "T", group: str = "G") -> Command:
    """Return an acknowledgement of many messages, with one element per checkpoint."""
    checkpoints: dict[Receipt, list[int]] = {}
    for one in popped:
        checkpoints.setdefault(one.receipt._replace(offset=0), []).append(one.receipt.offset)
    acks = [
        BatchAck(
            bits=bit_set(receipt.start, offsets),
            group=group,
            invisible_ms=receipt.invisible_ms,
            pop_ms=receipt.pop_ms,
            queue_id=receipt.queue_id,
            kind=receipt.kind,
            revive_queue=receipt.revive_queue,
            start=receipt.start,
            topic=topic,
        )
        for receipt, offsets in checkpoints.items()
    ]
    body = BatchAckBody(acks=acks, broker_name="broker-a").encode()
    request = request_command(AckRequest("G", "T", 0, "", 0), body)
    request.code, request.fields = 200151, {}
    return request


def notification_request(now_ms: int = NOW_MS, **changes: Any) -> Command:
    """Return a notification request."""
    fields: dict[str, Any] = {
        "consumer_group": "G",
        "topic": "T",
        "queue_id": -1,
        "poll_time": 0,
        "born_time": now_ms,
    }
    return request_command(NotificationRequest(**(fields | changes)))


def peek_request(count: int = 32, **changes: Any) -> Command:
    """Return a peek."""
    fields: dict[str, Any] = {
        "topic": "T",
        "queue_id": 0,
        "max_msg_nums": count,
        "consumer_group": "G",
    }
    return request_command(PeekRequest(**(fields | changes)))


def count_request(**changes: Any) -> Command:
    """Return a request for the number of polls."""
    fields: dict[str, Any] = {"consumer_group": "G", "topic": "T", "queue_id": -1}
    return request_command(PollingCountRequest(**(fields | changes)))


# ---- replies ----


def popped_of(answer: Command) -> list[Popped]:
    """Return the messages of the reply to a pop, with the receipts that a client makes of it."""
    if answer.code != 0:
        assert answer.code in (209, 210), answer
        assert answer.remark == "NO_MESSAGE_IN_QUEUE"
        assert not answer.body
        return []
    assert answer.remark == "FOUND"
    starts = _entries(answer.fields["startOffsetInfo"])
    offsets = _entries(answer.fields["msgOffsetInfo"])
    assert starts.keys() == offsets.keys()
    records = iter(decode_records(answer.body))
    found: list[Popped] = []
    for (kind, queue_id), text in offsets.items():
        for offset in map(int, text.split(",")):
            record = next(records)
            assert (record.queue_id, record.queue_offset) == (queue_id, offset)
            receipt = Receipt(
                start=int(starts[kind, queue_id]),
                pop_ms=int(answer.fields["popTime"]),
                invisible_ms=int(answer.fields["invisibleTime"]),
                revive_queue=int(answer.fields["reviveQid"]),
                kind=kind,
                broker="broker-a",
                queue_id=queue_id,
                offset=offset,
            )
            if kind != "0":
                assert record.properties()["POP_CK"] == str(receipt)
            found.append(Popped(receipt, record))
    assert next(records, None) is None
    return found


def changed(one: Popped, answer: Command) -> Popped:
    """Return a message with the receipt that a client makes of the reply to a change."""
    assert answer.code == 0
    receipt = one.receipt._replace(
        start=one.receipt.offset,
        pop_ms=int(answer.fields["popTime"]),
        invisible_ms=int(answer.fields["invisibleTime"]),
        revive_queue=int(answer.fields["reviveQid"]),
    )
    return Popped(receipt, one.record)


def _entries(text: str) -> dict[tuple[str, int], str]:
    words = [entry.split(" ") for entry in text.split(";")]
    return {(kind, int(queue_id)): rest for kind, queue_id, rest in words}
