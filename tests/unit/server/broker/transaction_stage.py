"""A broker in virtual time for transactions: sends, ends, checks, restarts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import pytest

from downrange.errors import DiskFull
from downrange.options import BrokerOptions
from downrange.server.broker.broker import Broker
from downrange.server.broker.transactions.half_records import copy_to
from downrange.server.outputs import (
    Call,
    LateReplies,
    LateReply,
    Note,
    Output,
    Peer,
    Push,
    Reply,
)
from downrange.store.files import MemoryFiles
from downrange.wire.bodies import HeartbeatBody, ProducerMember
from downrange.wire.codes import RequestCode, TransactionFlag
from downrange.wire.command import Command, decode, encode
from downrange.wire.fields import request_command
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import CheckTransactionRequest, EndTransactionRequest, SendRequestV2
from downrange.wire.limits import FRAME_BYTES_MAX
from downrange.wire.properties import encode_properties
from downrange.wire.send_runs import PureSendRun, take_sends
from downrange.wire.system_names import HALF_DONE_TOPIC, HALF_TOPIC
from tests.unit.server.broker.broker_stage import damage_body, open_state, plain, records_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from downrange.wire.records import Record
    from downrange.wire.send_runs import SendRun

START_MS = 1_800_000_000_000
OPTIONS = BrokerOptions(transaction_checks_max=2, delay_levels="1s 5s 10s 30s", client_timeout=1e9)
CLIENT = Peer(1, "127.0.0.1:40001")
COMMIT = int(TransactionFlag.COMMIT)
ROLLBACK = int(TransactionFlag.ROLLBACK)


class Half(NamedTuple):
    """The identity of a half message for its producer."""

    queue_offset: int
    log_offset: int


def end_header(
    half: Half, state: int = COMMIT, *, group: str = "makers", is_checked: bool = False
) -> EndTransactionRequest:
    """Return the header of a producer's decision."""
    return EndTransactionRequest(
        producer_group=group,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.log_offset,
        commit_or_rollback=state,
        msg_id="",
        from_transaction_check=is_checked,
    )


def run_of(*requests: Command) -> SendRun | None:
    """Return sends as one run, or None if they are not plain ones of one kind."""
    data = b"".join(map(encode, requests))
    run = take_sends(data, 0, FRAME_BYTES_MAX)
    if run is None and len(requests) == 1:  # in Python, a single send is not a run
        alone = PureSendRun(data, 0, requests[0].codec)
        is_send = requests[0].code == RequestCode.SEND_MESSAGE_V2
        run = alone if is_send and alone.add(requests[0]) else None
    return run if run is not None and len(run) == len(requests) else None


class TransactionStage:
    """A whole broker on a store in memory.

    Attributes:
        takes_runs: Whether sends are handled as runs where that is possible.
        now_ms: The time; tests change it.
        notes: The broker's notes.
        checks: Check requests with their connections.
        calls: Calls to clients that wait for a reply.
    """

    takes_runs: ClassVar[bool] = False

    def __init__(self, options: BrokerOptions = OPTIONS) -> None:
        self.files = MemoryFiles()
        self.options = options
        self.now_ms = START_MS
        self.notes: list[Note] = []
        self.checks: list[tuple[int, Command]] = []
        self.calls: list[Call] = []
        self._late: list[LateReply] = []
        self.start()

    def start(self, offsets: bytes | None = None) -> None:
        """Open the store and load saved group offsets."""
        self.state = open_state(self.options, self.files, now_ms=self.now_ms)
        if offsets is not None:
            self.state.offsets.load(offsets)
        self.state.prepare(self.now_ms)
        if self.takes_runs:  # the first send to a new topic is never part of a run
            self.state.topics.ensure("T", 4, 6, self.now_ms)
        self.broker = Broker(self.state)

    def restart(self) -> None:
        """Stop in order and start again."""
        self.state.store.close()
        self.start(self.state.offsets.dump())

    def call(self, request: Command, peer: Peer = CLIENT) -> Command | None:
        """Handle a request, end the turn, and return the answer if there is one."""
        reply = None
        run = run_of(request) if self.takes_runs else None
        if run is None or not self.broker.handle_run(run, peer, self.now_ms):
            for output in self.broker.handle(request, peer, self.now_ms):
                if isinstance(output, Reply):
                    reply = output.command
                else:
                    self._act([output])
        self.settle()
        if reply is None and self._late:
            reply = plain(self._late.pop().command)
        assert not self._late
        return reply

    def settle(self) -> None:
        """End a turn: commit, flush and publish."""
        self._act(self.broker.commit(self.now_ms))
        self.state.store.flush()
        self._act(self.broker.log_flushed(self.state.store.log.end))
        self._act(self.broker.published(self.broker.tables_version))

    def answer(self, reply: Command | None) -> Command:
        """Reply to the oldest call; return the answer to the request that caused it."""
        call = self.calls.pop(0)
        self._act(self.broker.on_reply(call.on_reply, reply, self.now_ms))
        self.settle()
        return plain(self._late.pop().command)

    def tick(self, forward_ms: int = 0, times: int = 1) -> None:
        """Advance the time and run ticks."""
        self.now_ms += forward_ms
        for _ in range(times):
            self._act(self.broker.tick(self.now_ms))
            self.settle()

    def join(self, group: str, connection: int, client_id: str = "client") -> None:
        """Send the heartbeat of a producer."""
        body = HeartbeatBody(
            client_id=client_id, producer_data_set=[ProducerMember(group_name=group)]
        )
        heartbeat = Command(int(RequestCode.HEART_BEAT), body=body.encode())
        self.call(heartbeat, Peer(connection, f"127.0.0.1:{40_000 + connection}"))

    def send(self, body: bytes, properties: dict[str, str], *, topic: str = "T") -> Command:
        """Send a message to queue 1."""
        header = SendRequestV2(
            producer_group="makers",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=1,
            sys_flag=int(TransactionFlag.PREPARED) if "TRAN_MSG" in properties else 0,
            born_timestamp=self.now_ms,
            flag=7,
            properties=encode_properties(properties),
        )
        code = int(RequestCode.SEND_MESSAGE_V2)
        reply = self.call(request_command(header, body, code=code))
        assert reply is not None
        assert reply.code == 0, reply.remark
        return reply

    def half(self, key: str = "U", /, **properties: str) -> Half:
        """Send a half message."""
        own = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "makers", "WAIT": "true"}
        fields = self.send(f"body of {key}".encode(), own | properties).fields
        return Half(int(fields["queueOffset"]), int(fields["msgId"][-16:], 16))

    def end(
        self, half: Half, state: int = COMMIT, *, group: str = "makers", is_checked: bool = False
    ) -> Command:
        """Commit a half message, or roll it back."""
        header = end_header(half, state, group=group, is_checked=is_checked)
        reply = self.call(request_command(header))
        assert reply is not None
        return reply

    def last_check(self) -> Half:
        """Return the half of the last check."""
        header = CheckTransactionRequest.from_fields(self.checks[-1][1].fields)
        return Half(header.tran_state_table_offset, header.commit_log_offset)

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        """Return the records of a queue."""
        return records_of(self.state, topic, queue_id)

    def delivered(self) -> list[bytes]:
        """Return the bodies of the delivered messages."""
        return [record.body for record in self.records("T", 1)]

    def op_bodies(self) -> list[bytes]:
        """Return the bodies of the op records."""
        return [record.body for record in self.records(HALF_DONE_TOPIC)]

    def store_raw(self, *records: Record) -> None:
        """Store records without a handler, as another broker may have done."""
        parsed = [record.properties() for record in records]
        self.state.store.append(list(records), self.now_ms, parsed)

    def copy_as_apache(self, offset: int, **properties: str) -> None:
        """Store a copy of a half as Apache does: without an op record."""
        half = self.records(HALF_TOPIC)[offset]
        self.store_raw(copy_to(self.state.host, half, HALF_TOPIC, half.properties() | properties))

    @contextmanager
    def full_disk(self) -> Generator[None]:
        """Let all appends fail."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.state.store, "append", _refuse)
            yield
        self.state.unwritable = None  # as the driver does when there is space again

    def damage(self, record: Record) -> None:
        """Flip a bit in a stored body."""
        damage_body(self.state, self.files, record)

    def _act(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            match output:
                case LateReply():
                    self._late.append(output)
                case LateReplies(connection, run, form, code):
                    frames = FrameSplitter()
                    frames.receive(run.replies(form, code))
                    while (frame := frames.next_frame()) is not None:
                        reply = decode(frame)
                        self._late.append(LateReply(connection, reply, reply))
                case Push(connection, command):
                    if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                        self.checks.append((connection, command))
                case Note():
                    self.notes.append(output)
                case Call():
                    self.calls.append(output)
                case _:
                    raise AssertionError(output)


def _refuse(*_arguments: object) -> None:
    raise DiskFull("commitlog")
