"""The broker's CPU cost of popping messages, beside pulling the same ones, ours and Apache's.

A topic holds 1 KB messages in four queues. A plain socket reads all of them with one request in
flight, up to 32 messages each, in two ways:

    pull    a pull, then a request that commits the offset, and its reply
    pop     a pop, then a request that acknowledges all its messages, and its reply

Each round uses a new consumer group. The figures are the broker's CPU time per message, with
everything that it does: parsing, reading, storing checkpoints and acknowledgements, and the
kernel's part. After the pops, the end of the checkpoints' time is awaited, because Apache's broker
handles them then: "later" is that CPU time, less what the idle server uses. The target is that a
pop costs at most 1.5 times as much as a pull.

    python -m benchmarks.pops [--messages 100000] [--rounds 3] [--server downrange]
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import peers
from benchmarks.bulk_pull import fill
from benchmarks.load import cpu_seconds
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command, decode, encode
from downrange.wire.fields import request_command
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import CommitOffsetRequest, PullReply, PullRequest
from downrange.wire.pop_bodies import BatchAck, BatchAckBody, bit_set
from downrange.wire.pop_headers import PopRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

TOPIC: Final = "bulk"  # as in `bulk_pull`
PULLED: Final = 32
#: Long enough that nothing becomes visible again during a round on a slow machine.
INVISIBLE_MS: Final = 20_000
_HAS_SUBSCRIPTION: Final = 4
_RECEIVE_BYTES: Final = 1 << 20
_TIMEOUT: Final = 60.0
#: How long after the end of a checkpoint Apache's broker may still work on it.
_REVIVED_AFTER: Final = 5.0


class _Caller:
    """One connection with one request in flight."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT)
        self._splitter = FrameSplitter()
        self.close = self._socket.close

    def call(self, command: Command) -> Command:
        self._socket.sendall(encode(command))
        while (frame := self._splitter.next_frame()) is None:
            self._splitter.receive(self._socket.recv(_RECEIVE_BYTES))
        return decode(frame)


def pull_all(caller: _Caller, group: str) -> int:
    """Pull all messages and commit after each reply; return their number."""
    total = 0
    for queue in range(peers.QUEUES):
        offset = 0
        while True:
            header = PullRequest(
                consumer_group=group,
                topic=TOPIC,
                queue_id=queue,
                queue_offset=offset,
                max_msg_nums=PULLED,
                sys_flag=_HAS_SUBSCRIPTION,
                subscription="*",
                expression_type="TAG",
            )
            reply = caller.call(request_command(header, code=RequestCode.PULL_MESSAGE))
            if reply.code != ResponseCode.SUCCESS:
                break
            total += PullReply.from_fields(reply.fields).next_begin_offset - offset
            offset = PullReply.from_fields(reply.fields).next_begin_offset
            commit = CommitOffsetRequest(
                consumer_group=group, topic=TOPIC, queue_id=queue, commit_offset=offset
            )
            _check(caller.call(request_command(commit)))
    return total


def pop_all(caller: _Caller, group: str) -> int:
    """Pop all messages and acknowledge after each reply; return their number."""
    total = 0
    for queue in range(peers.QUEUES):
        while True:
            header = PopRequest(
                consumer_group=group,
                topic=TOPIC,
                queue_id=queue,
                max_msg_nums=PULLED,
                invisible_time=INVISIBLE_MS,
                poll_time=0,
                born_time=time.time_ns() // 1_000_000,
                init_mode=0,
            )
            reply = caller.call(request_command(header))
            if reply.code != ResponseCode.SUCCESS:
                break
            fields = reply.fields
            kind, _, start = fields["startOffsetInfo"].split(" ")
            offsets = [int(text) for text in fields["msgOffsetInfo"].split(" ")[2].split(",")]
            total += len(offsets)
            ack = BatchAck(
                bits=bit_set(int(start), offsets),
                group=group,
                invisible_ms=INVISIBLE_MS,
                pop_ms=int(fields["popTime"]),
                queue_id=queue,
                kind=kind,
                revive_queue=int(fields["reviveQid"]),
                start=int(start),
                topic=TOPIC,
            )
            body = BatchAckBody(acks=[ack], broker_name="broker-a").encode()
            _check(caller.call(Command(int(RequestCode.BATCH_ACK_MESSAGE), {}, body)))
    return total


def _check(reply: Command) -> None:
    if reply.code != ResponseCode.SUCCESS:
        raise RuntimeError(f"refused: {reply.code} {reply.remark}")


def cost(
    peer: peers.Peer, read_all: Callable[[_Caller, str], int], group: str, sent: int
) -> tuple[float, float]:
    """Return the broker's CPU time per message, at once and later, in microseconds."""
    with contextlib.closing(_Caller(peer.broker)) as caller:
        warm = Command(  # the group exists before the first measured request
            int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
            {},
            b'{"groupName":"%b"}' % group.encode(),
        )
        _check(caller.call(warm))
        before = cpu_seconds(peer.pids)
        count = read_all(caller, group)
        used = cpu_seconds(peer.pids) - before
    if count != sent:
        raise RuntimeError(f"{sent} messages were sent, but {count} were read")
    later = _later_cost(peer) if read_all is pop_all else 0.0
    return 1e6 * used / count, 1e6 * later / count


def _later_cost(peer: peers.Peer) -> float:
    """Return the CPU time that the checkpoints cause when their time is over.

    What the server uses without any work is subtracted, measured at the end.
    """
    waited = INVISIBLE_MS / 1000 + _REVIVED_AFTER
    before = cpu_seconds(peer.pids)
    time.sleep(waited)
    later = cpu_seconds(peer.pids) - before
    idle = peer.cpu_percent(_REVIVED_AFTER) / 100 * waited
    return max(later - idle, 0.0)


@contextlib.contextmanager
def _start(name: peers.Name) -> Generator[peers.Peer]:
    """Start a server that does not poll: polling would use CPU while it waits for the client."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "serve.toml")
        config.write_text("[listener]\nbusy_poll = 0\n", encoding="utf-8")
        with peers.start(name, flags=("--config", str(config))) as peer:
            yield peer


def main() -> None:
    """Fill a topic, read it in both ways, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=("downrange", "apache"), default=None)
    options = parser.parse_args()
    names: tuple[peers.Name, ...] = ("downrange", "apache")
    print("server       pull µs each   pop µs each   later µs each   pop to pull")
    for name in names if options.server is None else (options.server,):
        with _start(name) as peer:
            peer.make_topic(TOPIC)
            sent, _ = fill(peer, options.messages, is_single=False)
            peer.await_stored(TOPIC, sent)
            pulls = [cost(peer, pull_all, f"pull-{turn}", sent) for turn in range(options.rounds)]
            pops = [cost(peer, pop_all, f"pop-{turn}", sent) for turn in range(options.rounds)]
            (pull, _), (pop, later) = min(pulls), min(pops)
            print(
                f"{name:10}   {pull:12.2f}   {pop:11.2f}   {later:13.2f}   {pop / pull:10.2f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
