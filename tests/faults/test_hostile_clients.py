"""Hostile clients of a broker: they harm neither the server, nor others, nor stored messages."""

from __future__ import annotations

import socket
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from downrange.wire.bodies import TopicTableBody, decode_body
from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.command import Command, encode
from downrange.wire.fields import request_command
from downrange.wire.headers import PullRequest
from downrange.wire.records import decode_records
from tests.conversations.peers import Peer, SocketChannel
from tests.embedded.brokers import connection, pull_request, send_request
from tests.faults.hostile import requests
from tests.faults.load import Acknowledged, Sender, check_found, check_kept
from tests.faults.processes import DEADLINE, ServerProcess, served
from tests.fuzz.mutation import mutate
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from downrange.wire.records import Record


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with served(tmp_path / "store") as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that several tests share."""
    with served(tmp_path_factory.mktemp("shared") / "store") as server:
        yield server


def _send_witnesses(server: ServerProcess, count: int = 60) -> list[Acknowledged]:
    """Send normal messages, and return those that were acknowledged."""
    sender = Sender(server.broker, "shared", f"w{time.monotonic_ns()}", Random(count), window=4)
    sender.start()
    deadline = time.monotonic() + DEADLINE
    while len(sender.acknowledged) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    sender.refusal = Command(0)  # ends the sender
    sender.join(DEADLINE)
    return sender.acknowledged


class Attacker:
    """Sends requests, and reconnects when it was disconnected."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._peer: Peer | None = None
        self.codes: set[int] = set()
        self.disconnects = 0

    def ask(self, request: Command) -> None:
        """Send a request; it must lead to a reply or to the end of the connection."""
        if self._peer is None:
            self._peer = Peer(SocketChannel(self._address), HeaderCodec.JSON)
        try:
            self.codes.add(self._peer.ask(request, seconds=DEADLINE).code)
        except (EOFError, ConnectionError):
            self.close()
            self.disconnects += 1

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None


def _everything(address: str) -> dict[tuple[str, int], list[Record]]:
    """Read all messages of all topics; each must be intact and at its own offset."""
    found: dict[tuple[str, int], list[Record]] = {}
    with connection(address) as peer:
        reply = peer.ask(Command(int(RequestCode.GET_ALL_TOPIC_CONFIG)))
        for name, topic in decode_body(TopicTableBody, reply.body).topic_config_table.items():
            for queue_id in range(min(topic.read_queue_nums, 8)):
                records = _queue(peer, name, queue_id)
                if records:
                    found[name, queue_id] = records
    return found


def _queue(peer: Peer, topic: str, queue_id: int) -> list[Record]:
    found: list[Record] = []
    while True:
        header = PullRequest(
            consumer_group="reader",
            topic=topic,
            queue_id=queue_id,
            queue_offset=len(found),
            max_msg_nums=32,
            sys_flag=4,
            subscription="*",
        )
        reply = peer.ask(request_command(header, code=int(RequestCode.PULL_MESSAGE)))
        if reply.code != ResponseCode.SUCCESS:
            assert reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
            return found
        for record in decode_records(reply.body):
            place = (record.topic, record.queue_id, record.queue_offset)
            assert place == (topic, queue_id, len(found))
            assert record.is_intact
            found.append(record)


def test_hostile_requests_are_answered_and_harm_nothing(
    server: ServerProcess, tmp_path: Path
) -> None:
    promised = _send_witnesses(server)
    attacker = Attacker(server.broker)
    for number, request in enumerate(requests(promised[-1].log_offset)):
        attacker.ask(request)
        if number % 200 == 0:
            promised += _send_witnesses(server, 3)
    attacker.close()
    assert ResponseCode.SUCCESS in attacker.codes
    assert attacker.disconnects < 20
    promised += _send_witnesses(server)
    check_kept(server.broker, promised)
    before = _everything(server.broker)
    server.kill()
    with served(tmp_path / "store") as again:
        check_kept(again.broker, promised)
        check_found(again.broker, Random(5).sample(promised, 10))
        after = _everything(again.broker)
        for place, records in before.items():  # delayed messages may have been delivered meanwhile
            assert after[place][: len(records)] == records, place
        assert again.stop() == 0
    assert "Traceback" not in server.log()
    assert "the log was cut" not in server.log()
    assert all(len(line) < 1_000 for line in server.log().splitlines())
    assert {path.name for path in tmp_path.iterdir()} == {"store", "store.log"}


def test_damaged_frames_end_their_connection_at_most(server: ServerProcess, tmp_path: Path) -> None:
    promised = _send_witnesses(server)
    random = Random(11)
    frames: list[bytes] = []
    for request in requests(promised[-1].log_offset):
        if len(request.body) < 2_000 and sum(map(len, request.fields.values())) < 2_000:
            request.codec = random.choice((HeaderCodec.JSON, HeaderCodec.BINARY))
            frames.append(encode(request))
    host, _, port = server.broker.rpartition(":")
    for _ in range(300):
        with socket.create_connection((host, int(port)), timeout=DEADLINE) as bad:
            for _ in range(random.randrange(1, 8)):
                frame = mutate(random, random.choice(frames), random.choice(frames))
                try:
                    bad.sendall(frame)
                except ConnectionError:
                    break
    promised += _send_witnesses(server)
    check_kept(server.broker, promised)
    server.kill()
    with served(tmp_path / "store") as again:
        check_kept(again.broker, promised)
        _everything(again.broker)
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\xff    ",
        b"\x00\x00\x00\x08\x09\x00\x00\x04    ",
        b"\x00\x00\x00\x08\x00\x00\x00\x04oops",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_bytes_that_break_the_protocol_end_their_connection(
    shared: ServerProcess, data: bytes
) -> None:
    host, _, listening = shared.broker.rpartition(":")
    with (
        socket.create_connection((host, int(listening)), timeout=DEADLINE) as bad,
        connection(shared.broker) as good,
    ):
        bad.sendall(data)
        assert bad.recv(1) == b""
        assert good.ask(send_request(b"on", "raw")).code == ResponseCode.SUCCESS
        port = bad.getsockname()[1]
        wait_until(lambda: f"{port} is cut" in shared.log())


def test_half_sent_requests_do_not_delay_other_clients(shared: ServerProcess) -> None:
    """Many clients that send single bytes, and many that disconnect in the middle of a frame."""
    host, _, port = shared.broker.rpartition(":")
    frame = encode(send_request(bytes(100_000)))
    crowd = [socket.create_connection((host, int(port)), timeout=DEADLINE) for _ in range(200)]
    try:
        for number, slow in enumerate(crowd):
            slow.sendall(frame[: number * 50 + 1])
        with connection(shared.broker) as good:
            for number in range(50):
                assert good.ask(send_request(b"on")).code == ResponseCode.SUCCESS
                for slow in crowd[number::50]:
                    slow.sendall(b"\x00")
            assert good.ask(pull_request(49)).code == ResponseCode.SUCCESS
            assert good.ask(pull_request(50)).code == ResponseCode.PULL_NOT_FOUND
    finally:
        for slow in crowd:
            slow.close()
