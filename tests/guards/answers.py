"""Requests whose cost for the server is counted: from the bytes read to the bytes written.

The connection, dispatcher, broker and store are real; only the event loop is missing.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.sends import BATCH, BODY, Batches, Sends
from downrange.options import BrokerOptions, ListenerOptions
from downrange.server.broker.broker import Broker
from downrange.server.broker.record_fields import StoreHost
from downrange.server.broker.state import BrokerState
from downrange.server.net.connection import Connection
from downrange.server.net.dispatcher import Dispatcher
from downrange.server.outputs import Peer
from downrange.store.files import OsFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.wire.codes import RequestCode, TransactionFlag
from downrange.wire.command import Command, encode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CommitOffsetRequest,
    EndTransactionRequest,
    PullRequest,
    SendRequestV2,
)
from downrange.wire.pop_bodies import BatchAck, BatchAckBody, bit_set
from downrange.wire.pop_headers import PopRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from contextlib import AbstractContextManager

    from downrange.server.outputs import OnReply, Output
    from tests.guards.count import Operation

TOGETHER: Final = 100
PULLED: Final = 32
#: Messages that are there to be popped, per pop of an operation: more than all its runs need.
POPPED: Final = 3_000
#: Pops that are read together.
POPS: Final = 4
#: Transactions whose requests are read together.
TRANSACTIONS: Final = 8
#: The size of a large store, and the number of topics in a large broker.
STORED: Final = 20_000
TOPICS: Final = 1_000

_NOW_MS: Final = 1_800_000_000_000
_QUEUES: Final = 4
_PEER: Final = Peer(1, "127.0.0.1:40000")
_SIZES: Final = StoreOptions(
    log_segment_bytes=256 << 20, queue_segment_units=30_000, key_slots=50_000, key_entries=200_000
)
_HAS_SUBSCRIPTION: Final = 4
_INVISIBLE_MS: Final = 60_000


class _Server:
    """A broker with one connection; written bytes are kept until the next read."""

    def __init__(self, files: OsFiles, store: MessageStore) -> None:
        host = StoreHost.of("127.0.0.1", 10911)
        state = BrokerState(BrokerOptions(), host, store, lambda _: "made", _NOW_MS)
        state.prepare(_NOW_MS)
        self._broker = Broker(state)
        self._files = files
        self._store = store
        loop = asyncio.new_event_loop()
        loop.close()  # only its clock is used
        self._dispatcher = Dispatcher(
            self,
            clock_ms=lambda: _NOW_MS,
            logger=logging.getLogger("downrange.test"),
            on_closed=lambda _: None,
            handle_run=self._broker.handle_run,
        )
        self._connection = Connection(self._dispatcher, _PEER, ListenerOptions(), loop)
        self._written: list[bytes] = []
        transport: Any = self
        self._connection.connection_made(transport)

    def read(self, data: bytes, replies: int = 1) -> bytes:
        """Let the server read, store and reply; every reply must be a success."""
        self._connection.data_received(data)
        if self._broker.awaits_commit:
            self._dispatcher.perform(self._broker.commit(_NOW_MS))
        self._dispatcher.perform(self._broker.published(self._broker.tables_version))
        answered = b"".join(self._written)
        self._written.clear()
        assert answered.count(b'{"code":0,') == replies, answered[:200]
        return answered

    def flush(self) -> None:
        """Flush the store."""
        self._store.flush()

    # ---- as the service ----

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        return self._broker.handle(request, peer, now_ms)

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        return self._broker.on_reply(callback, reply, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        return self._broker.on_disconnect(peer, now_ms)

    # ---- as the transport ----

    def write(self, data: bytes) -> None:
        self._written.append(data)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False


@contextmanager
def _server() -> Generator[_Server]:
    with tempfile.TemporaryDirectory() as folder:
        files = OsFiles(folder)
        store = MessageStore(files, _SIZES)
        try:
            yield _Server(files, store)
        finally:
            store.close()
            files.close()


@contextmanager
def one() -> Generator[Operation]:
    """One send."""
    with _server() as server:
        sends = Sends("guarded", _QUEUES)
        yield lambda: server.read(sends.take(1))


@contextmanager
def together() -> Generator[Operation]:
    """A hundred sends in one read."""
    with _server() as server:
        sends = Sends("guarded", _QUEUES)
        yield lambda: server.read(sends.take(TOGETHER), TOGETHER)


@contextmanager
def together_among_many_topics() -> Generator[Operation]:
    """The same, in a broker that has a thousand topics."""
    with _server() as server:
        for number in range(TOPICS):
            server.read(Sends(f"guarded-{number}", _QUEUES).take(1))
        server.flush()
        sends = Sends("guarded", _QUEUES)
        yield lambda: server.read(sends.take(TOGETHER), TOGETHER)


@contextmanager
def together_behind_many_messages() -> Generator[Operation]:
    """The same, in a store that is not empty."""
    with _server() as server:
        batches = Batches("guarded", _QUEUES)
        for _ in range(STORED // BATCH):
            server.read(batches.take(1))
        server.flush()
        sends = Sends("guarded", _QUEUES)
        yield lambda: server.read(sends.take(TOGETHER), TOGETHER)


@contextmanager
def batch() -> Generator[Operation]:
    """A hundred messages in one request."""
    with _server() as server:
        batches = Batches("guarded", _QUEUES)
        yield lambda: server.read(batches.take(1))


@contextmanager
def pull() -> Generator[Operation]:
    """A pull of as many messages as Apache returns at once."""
    with _server() as server:
        sends = Sends("guarded", 1)
        server.read(sends.take(TOGETHER), TOGETHER)
        request = _pull_from(0)
        yield lambda: server.read(request)


def pull_and_commit() -> AbstractContextManager[Operation]:
    """A pull of as many messages, and one request that commits the offset behind them."""
    return _pulls(1)


def pulls_together() -> AbstractContextManager[Operation]:
    """Some pulls in one read, and their commits in one read."""
    return _pulls(POPS)


@contextmanager
def _pulls(count_at_once: int) -> Generator[Operation]:
    pulls = _reads(_pull_from, count_at_once)
    commits = _reads(_commit_after, count_at_once)
    with _filled(count_at_once) as server:

        def operation() -> None:
            server.read(next(pulls), count_at_once)
            server.read(next(commits), count_at_once)

        yield operation


@contextmanager
def _filled(count_at_once: int) -> Generator[_Server]:
    """A server with messages for all runs of an operation."""
    with _server() as server:
        sends = Sends("guarded", 1)
        for _ in range(count_at_once * POPPED // TOGETHER):
            server.read(sends.take(TOGETHER), TOGETHER)
        yield server


def _reads(request: Callable[[int], bytes], count_at_once: int) -> Iterator[bytes]:
    """Return requests from each offset on, by reads; they are made before anything is counted."""
    starts = range(0, count_at_once * POPPED, PULLED)
    requests = [request(start) for start in starts]
    return iter(
        [
            b"".join(requests[at : at + count_at_once])
            for at in range(0, len(requests), count_at_once)
        ]
    )


def _pull_from(start: int) -> bytes:
    """Return the request that pulls messages from an offset on."""
    pull = PullRequest(
        consumer_group="guards",
        topic="guarded",
        queue_id=0,
        queue_offset=start,
        max_msg_nums=PULLED,
        sys_flag=_HAS_SUBSCRIPTION,
        subscription="*",
        expression_type="TAG",
    )
    return encode(request_command(pull, code=int(RequestCode.PULL_MESSAGE)))


def _commit_after(start: int) -> bytes:
    """Return the request that commits the offset behind the messages of a pull."""
    commit = CommitOffsetRequest(
        consumer_group="guards", topic="guarded", queue_id=0, commit_offset=start + PULLED
    )
    return encode(request_command(commit))


@contextmanager
def transactions_together() -> Generator[Operation]:
    """Some half messages in one read, and the requests that commit them in one read."""
    with _server() as server:
        properties = "UNIQ_KEY\x01{:032X}\x02TRAN_MSG\x01true\x02PGROUP\x01guards\x02TAGS\x01a"
        server.read(Sends("guarded", 1).take(1))  # creates the topic
        stored = count()

        def operation() -> None:
            numbers = [next(stored) for _ in range(TRANSACTIONS)]
            halves = [_half(properties.format(number)) for number in numbers]
            replies = server.read(b"".join(halves), TRANSACTIONS)
            ids = re.findall(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})"', replies)
            offsets = [int(digits, 16) for digits in ids]
            ends = [_end(*each) for each in zip(numbers, offsets, strict=True)]
            server.read(b"".join(ends), TRANSACTIONS)

        yield operation


def _half(properties: str) -> bytes:
    """Return the request that stores a half message."""
    header = SendRequestV2(
        producer_group="guards",
        topic="guarded",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=int(TransactionFlag.PREPARED),
        born_timestamp=_NOW_MS,
        flag=0,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    return encode(request_command(header, BODY))


def _end(number: int, log_offset: int) -> bytes:
    """Return the request that commits a half message."""
    header = EndTransactionRequest(
        producer_group="guards",
        tran_state_table_offset=number,
        commit_log_offset=log_offset,
        commit_or_rollback=int(TransactionFlag.COMMIT),
        msg_id=f"{number:032X}",
        transaction_id=f"{number:032X}",
        topic="guarded",
    )
    return encode(request_command(header))


def pop_and_acknowledge() -> AbstractContextManager[Operation]:
    """A pop of as many messages, and one request that acknowledges all of them."""
    return _pops(1)


def pops_together() -> AbstractContextManager[Operation]:
    """Some pops in one read, and their acknowledgements in one read."""
    return _pops(POPS)


@contextmanager
def _pops(count_at_once: int) -> Generator[Operation]:
    pop = PopRequest(
        consumer_group="guards",
        topic="guarded",
        queue_id=0,
        max_msg_nums=PULLED,
        invisible_time=_INVISIBLE_MS,
        poll_time=0,
        born_time=_NOW_MS,
        init_mode=0,
    )
    request = encode(request_command(pop)) * count_at_once
    acks = _reads(_ack, count_at_once)
    with _filled(count_at_once) as server:

        def operation() -> None:
            server.read(request, count_at_once)
            server.read(next(acks), count_at_once)

        yield operation


def _ack(start: int) -> bytes:
    """Return the request that acknowledges the messages of a pop."""
    ack = BatchAck(
        bits=bit_set(start, range(start, start + PULLED)),
        group="guards",
        invisible_ms=_INVISIBLE_MS,
        pop_ms=_NOW_MS,
        queue_id=0,
        kind="0",
        revive_queue=0,
        start=start,
        topic="guarded",
    )
    body = msgspec.json.encode(BatchAckBody(acks=[ack]))
    return encode(Command(int(RequestCode.BATCH_ACK_MESSAGE), {}, body))
