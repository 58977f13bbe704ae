"""Consumers that pop and acknowledge over sockets, and record what was acknowledged."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec.json import encode

from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.pop_bodies import BatchAck, BatchAckBody, bit_set
from downrange.wire.pop_headers import AckRequest, PopReply, PopRequest
from downrange.wire.pop_receipts import Receipt
from downrange.wire.records import decode_records
from tests.embedded.brokers import connection

if TYPE_CHECKING:
    from random import Random

    from downrange.wire.records import Record
    from tests.conversations.peers import Peer

GROUP = "pops"


class Popped(NamedTuple):
    """One delivery."""

    record: Record
    receipt: Receipt

    @property
    def visible_ms(self) -> int:
        """When the message becomes visible again."""
        return self.receipt.pop_ms + self.receipt.invisible_ms


class Deliveries:
    """What all consumers of a group got and acknowledged; used by several threads.

    Attributes:
        pops: When a message was popped, by body, for each delivery.
        done_ms: When an acknowledgement was answered in time, by body.
    """

    def __init__(self) -> None:
        self.pops: dict[bytes, list[int]] = {}
        self.done_ms: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def add(self, popped: list[Popped]) -> None:
        """Record deliveries."""
        with self._lock:
            for each in popped:
                self.pops.setdefault(each.record.body, []).append(each.receipt.pop_ms)

    def done(self, acknowledged: list[Popped]) -> None:
        """Record answered acknowledgements; those that were too late count for nothing."""
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            for each in acknowledged:
                if now_ms < each.visible_ms:
                    self.done_ms.setdefault(each.record.body, now_ms)

    def repeated(self) -> list[bytes]:
        """Return the messages that were delivered after their acknowledgement was answered."""
        return [
            body
            for body, done_ms in self.done_ms.items()
            if any(pop_ms > done_ms for pop_ms in self.pops[body])
        ]


class PopConsumer(threading.Thread):
    """Pops until its connection ends; acknowledges most messages, one by one or many at once.

    Args:
        address: The broker.
        topic: The topic.
        deliveries: Gets what it does.
        random: Decides what it acknowledges.
        invisible_ms: For how long messages are invisible.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        deliveries: Deliveries,
        random: Random,
        invisible_ms: int,
    ) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self._address = address
        self._topic = topic
        self._deliveries = deliveries
        self._random = random
        self._invisible_ms = invisible_ms

    def run(self) -> None:
        """Pop until the connection ends."""
        try:
            with contextlib.suppress(OSError, EOFError), connection(self._address) as peer:
                while True:
                    self._work(peer)
        except BaseException as error:
            self.failure = error

    def _work(self, peer: Peer) -> None:
        popped = pop(peer, self._topic, invisible_ms=self._invisible_ms, poll_ms=200)
        self._deliveries.add(popped)
        chosen = [each for each in popped if self._random.random() < 0.7]
        if chosen and self._random.random() < 0.5:
            if peer.ask(batch_request(self._topic, chosen)).code == ResponseCode.SUCCESS:
                self._deliveries.done(chosen)
            return
        for each in chosen:
            if peer.ask(ack_request(self._topic, each)).code == ResponseCode.SUCCESS:
                self._deliveries.done([each])


def pop_request(topic: str, *, invisible_ms: int, poll_ms: int = 0, count: int = 16) -> Command:
    """Return a pop of all queues."""
    header = PopRequest(
        consumer_group=GROUP,
        topic=topic,
        queue_id=-1,
        max_msg_nums=count,
        invisible_time=invisible_ms,
        poll_time=poll_ms,
        born_time=time.time_ns() // 1_000_000,
        init_mode=0,
    )
    return request_command(header)


def pop(
    peer: Peer, topic: str, *, invisible_ms: int, poll_ms: int = 0, count: int = 16
) -> list[Popped]:
    """Pop once; return what came."""
    request = pop_request(topic, invisible_ms=invisible_ms, poll_ms=poll_ms, count=count)
    answer = peer.ask(request)
    if answer.code != ResponseCode.SUCCESS:
        codes = (ResponseCode.POLLING_TIMEOUT, ResponseCode.SYSTEM_ERROR)
        assert answer.code in codes, answer.remark
        return []
    return popped_of(answer)


def popped_of(answer: Command) -> list[Popped]:
    """Return the deliveries of an answer."""
    reply = PopReply.from_fields(answer.fields)
    receipts: list[Receipt] = []
    starts, offsets = reply.start_offset_info or "", reply.msg_offset_info or ""
    for start, text in zip(starts.split(";"), offsets.split(";"), strict=True):
        kind, queue_id, first = start.split(" ")
        receipts += [
            Receipt(
                start=int(first),
                pop_ms=reply.pop_time,
                invisible_ms=reply.invisible_time,
                revive_queue=reply.revive_qid,
                kind=kind,
                broker="broker-a",
                queue_id=int(queue_id),
                offset=int(offset),
            )
            for offset in text.split(" ")[2].split(",")
        ]
    records = decode_records(answer.body)
    return [Popped(record, receipt) for record, receipt in zip(records, receipts, strict=True)]


def ack_request(topic: str, popped: Popped) -> Command:
    """Return the acknowledgement of one message."""
    receipt = popped.receipt
    header = AckRequest(
        consumer_group=GROUP,
        topic=receipt.topic(topic, GROUP),
        queue_id=receipt.queue_id,
        extra_info=str(receipt),
        offset=receipt.offset,
    )
    return request_command(header)


def batch_request(topic: str, popped: list[Popped]) -> Command:
    """Return the acknowledgement of many messages."""
    checkpoints: dict[Receipt, list[int]] = {}
    for each in popped:
        checkpoints.setdefault(each.receipt._replace(offset=0), []).append(each.receipt.offset)
    acks = [
        BatchAck(
            bits=bit_set(receipt.start, offsets),
            group=GROUP,
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
    body = encode(BatchAckBody(acks=acks, broker_name="broker-a"))
    return Command(int(RequestCode.BATCH_ACK_MESSAGE), body=body)
