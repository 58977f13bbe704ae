"""Senders with many requests in flight that record which messages were acknowledged."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import QueryByKeyRequest, SendReply
from downrange.wire.ids import parse_offset_id
from downrange.wire.link import Link, ReplyArrived
from downrange.wire.properties import encode_properties
from downrange.wire.records import BatchItem, decode_records, encode_batch
from tests.embedded.brokers import connection, pull_request, send_request

if TYPE_CHECKING:
    from random import Random

    from downrange.wire.command import Command
    from downrange.wire.records import Record


class Acknowledged(NamedTuple):
    """An acknowledged message."""

    topic: str
    offset: int
    log_offset: int
    body: bytes


class Sender(threading.Thread):
    """Sends to one topic until the connection breaks.

    Args:
        address: The broker.
        topic: The topic.
        name: The prefix of its messages' names.
        random: Decides on sizes and properties.
        window: How many requests are in flight.
        batch: How many messages a request holds.
        per_second: The most messages per second; as many as possible if not given.
        sizes: Sizes of the bodies.

    Attributes:
        acknowledged: The acknowledged messages.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        name: str,
        random: Random,
        *,
        window: int,
        batch: int = 1,
        per_second: float = math.inf,
        sizes: tuple[int, ...] = (40, 300, 5000),
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: list[Acknowledged] = []
        self.refusal: Command | None = None
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=90.0)
        self._link: Link[list[bytes]] = Link(codec=HeaderCodec.BINARY)
        self._topic = topic
        self._random = random
        self._window = window
        self._batch = batch
        self._per_second = per_second
        self._sizes = sizes
        self._made = 0

    def run(self) -> None:
        """Send until the connection ends."""
        begun = time.monotonic()
        with self._socket, contextlib.suppress(OSError):
            while self.refusal is None:
                due = (time.monotonic() - begun) * self._per_second
                while self._link.in_flight < self._window and self._made < due:
                    bodies = [self._body() for _ in range(self._batch)]
                    self._socket.sendall(self._link.request(self._request(bodies), bodies))
                if not self._link.in_flight:
                    time.sleep(0.001)
                    continue
                data = self._socket.recv(1 << 16)
                if not data:
                    return
                for event in self._link.receive(data):
                    assert isinstance(event, ReplyArrived)
                    self._note(event.command, event.waiter)

    def _note(self, reply: Command, bodies: list[bytes]) -> None:
        if reply.code != ResponseCode.SUCCESS:
            self.refusal = reply
            return
        sent = SendReply.from_fields(reply.fields)
        for number, (body, message_id) in enumerate(
            zip(bodies, sent.msg_id.split(","), strict=True)
        ):
            log_offset = parse_offset_id(message_id).log_offset
            self.acknowledged.append(
                Acknowledged(self._topic, sent.queue_offset + number, log_offset, body)
            )

    def _body(self) -> bytes:
        self._made += 1
        return f"{self.name}-{self._made}-".encode().ljust(self._random.choice(self._sizes))

    def _request(self, bodies: list[bytes]) -> Command:
        if len(bodies) == 1:
            properties = encode_properties(properties_of(bodies[0]))
            return send_request(bodies[0], self._topic, properties=properties)
        batch = encode_batch(
            BatchItem(0, body, encode_properties(properties_of(body)).encode()) for body in bodies
        )
        request = send_request(batch, self._topic, batch=True)
        request.code = int(RequestCode.SEND_BATCH_MESSAGE)
        return request


def properties_of(body: bytes) -> dict[str, str]:
    """Return the properties that a message can be found by."""
    name = body.decode().rstrip()
    return {"UNIQ_KEY": f"u-{name}", "KEYS": f"k-{name}"}


def read_queue(address: str, topic: str) -> list[Record]:
    """Return all messages of queue 0, and check the order of their offsets.

    It reads as a group of its own, which no other request of a test resets or forbids.
    """
    found: list[Record] = []
    with connection(address) as peer:
        while (
            answer := peer.ask(pull_request(len(found), topic, consumer_group="readers"))
        ).code == ResponseCode.SUCCESS:
            records = decode_records(answer.body)
            numbers = [record.queue_offset for record in records]
            assert numbers == list(range(len(found), len(found) + len(records)))
            assert all(record.is_intact for record in records)
            found += records
    return found


def check_kept(address: str, promised: list[Acknowledged]) -> None:
    """Check that every acknowledged message is stored, by offset and body."""
    topics = dict.fromkeys(message.topic for message in promised)
    stored = {topic: read_queue(address, topic) for topic in topics}
    for message in promised:
        queue = stored[message.topic]
        assert message.offset < len(queue), f"{message} was acknowledged and is lost"
        record = queue[message.offset]
        assert (record.body, record.log_offset) == (message.body, message.log_offset)


def check_found(address: str, promised: list[Acknowledged]) -> None:
    """Find messages by key and by unique key."""
    with connection(address) as peer:
        for message in promised:
            properties = properties_of(message.body)
            for key, is_unique in ((properties["KEYS"], False), (properties["UNIQ_KEY"], True)):
                header = QueryByKeyRequest(
                    topic=message.topic,
                    key=key,
                    max_num=8,
                    begin_timestamp=0,
                    end_timestamp=2**62,
                    is_unique_key=is_unique or None,
                )
                answer = peer.ask(request_command(header))
                assert answer.code == ResponseCode.SUCCESS, f"{message} is not found by {key}"
                bodies = [record.body for record in decode_records(answer.body)]
                assert message.body in bodies
