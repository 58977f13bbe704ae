"""CPU cost of the listener per request, without sockets: receive, reply at once, reply later.

The service does nothing, so this is the overhead of every request. Compare with `floor`: the same
bytes split and decoded by `wire` alone, and the same reply encoded by it.

    python benchmarks/listener.py
"""

from __future__ import annotations

import asyncio
import logging
from time import process_time
from typing import TYPE_CHECKING, cast

from downrange.options import ListenerOptions
from downrange.server.net.connection import Connection
from downrange.server.net.dispatcher import Dispatcher
from downrange.server.outputs import LateReply, OnReply, Output, Peer, Reply
from downrange.wire.command import Command, encode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendReply, SendRequestV2
from downrange.wire.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CONNECTIONS = 16
CHUNK = 50  # requests in one read of 64 KiB
ROUNDS = 1_000

REQUEST = SendRequestV2(
    producer_group="group",
    topic="orders",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=1,
    sys_flag=0,
    born_timestamp=1_700_000_000_000,
    flag=0,
    properties="UNIQ_KEY\x017F0000010A2B18B4AAC2000000000001\x02WAIT\x01true\x02",
)
REPLY = SendReply(msg_id="7F00000100002A9F0000000000000000", queue_id=1, queue_offset=7)


class NullTransport:
    """A transport that discards everything."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignore the limits."""

    def is_closing(self) -> bool:
        """Return False always."""
        return False

    def write(self, data: bytes) -> None:
        """Discard the data."""


class NullService:
    """Replies at once, or not at all."""

    def __init__(self, *, is_late: bool) -> None:
        self.kept: list[tuple[int, Command]] = []
        self._is_late = is_late

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Return a reply, or nothing."""
        if not self._is_late:
            return [Reply(Command(0, REPLY.to_fields()))]
        self.kept.append((peer.number, request))
        return ()

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        """Call the callback."""
        return callback(reply, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Do nothing."""
        return ()


def best_us(*runs: Callable[[], object]) -> list[float]:
    """Return the CPU time per request of each function, best of several alternating rounds."""
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for number, run in enumerate(runs):
            started = process_time()
            run()
            best[number] = min(best[number], process_time() - started)
    return [seconds / CHUNK * 1e6 for seconds in best]


def connect(service: NullService) -> tuple[Dispatcher, list[Connection]]:
    dispatcher = Dispatcher(
        service,
        clock_ms=lambda: 0,
        logger=logging.getLogger("downrange"),
        on_closed=lambda _: None,
    )
    loop = asyncio.new_event_loop()
    options = ListenerOptions(in_flight_max=1_000_000)
    connections: list[Connection] = []
    for number in range(CONNECTIONS):
        connections.append(Connection(dispatcher, Peer(number, "peer"), options, loop))
        connections[-1].connection_made(cast("asyncio.Transport", NullTransport()))
    loop.close()
    return dispatcher, connections


def main() -> None:
    requests = [request_command(REQUEST, bytes(1024)) for _ in range(CHUNK)]
    for number, request in enumerate(requests):
        request.request_id = number
    chunk = b"".join(map(encode, requests))
    link: Link[None] = Link()
    late = NullService(is_late=True)
    dispatcher, (first, *_) = connect(late)
    _, (quick, *_) = connect(NullService(is_late=False))

    def receive() -> None:
        first.data_received(chunk)
        late.kept.clear()

    def reply_late() -> None:
        dispatcher.perform(
            [
                LateReply(number % CONNECTIONS, request, Command(0, REPLY.to_fields()))
                for number, request in enumerate(requests)
            ]
        )

    def write_replies() -> None:
        for request in requests:
            link.reply(request, Command(0, REPLY.to_fields()))

    later, now, replies, reading, writing = best_us(
        receive,
        lambda: quick.data_received(chunk),
        reply_late,
        lambda: link.receive(chunk),
        write_replies,
    )
    print(f"{'per 1 KB request, in us':<32}{'ours':>8}{'floor':>8}")
    print(f"{'receive, reply later':<32}{later:>8.2f}{reading:>8.2f}")
    print(f"{'receive and reply at once':<32}{now:>8.2f}{reading + writing:>8.2f}")
    print(f"{'late replies, 16 connections':<32}{replies:>8.2f}{writing:>8.2f}")


if __name__ == "__main__":
    main()
