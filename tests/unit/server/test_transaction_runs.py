"""Half messages that arrive together, and their ends: the same files and replies on each path."""

from __future__ import annotations

from random import Random

import pytest

from downrange.wire.codes import CommandFlag, TransactionFlag
from downrange.wire.command import Command, encode
from downrange.wire.fields import request_command
from downrange.wire.headers import EndTransactionRequest
from tests.unit.server.send_frames import frame, send
from tests.unit.server.send_paths import PATHS, PEERS, SendStage, take_path

COMMIT = int(TransactionFlag.COMMIT)
ROLLBACK = int(TransactionFlag.ROLLBACK)
_FIRST_END = 100_000  # ids of requests in flight differ


def end(random: Random, number: int, reply: Command) -> Command:
    """Return the decision on a half; sometimes a wrong one."""
    header = EndTransactionRequest(
        producer_group=random.choice(("group", "group", "group", "group", "others")),
        tran_state_table_offset=int(reply.fields["queueOffset"]),
        commit_log_offset=int(reply.fields["msgId"][-16:], 16),
        commit_or_rollback=random.choice((COMMIT, COMMIT, COMMIT, ROLLBACK, 0, 5)),
        msg_id="",
        topic=random.choice((None, None, "", "RMQ_SYS_TRANS_HALF_TOPIC", "orders")),
    )
    if random.random() < 0.05:
        header.tran_state_table_offset += 1
    request = request_command(header)
    request.request_id = _FIRST_END + number
    if random.random() < 0.7:
        request.flags = int(CommandFlag.ONEWAY)
    return request


class Story:
    """What one peer does: it sends halves and other messages, and ends some of the halves."""

    def __init__(self, stage: SendStage, seed: int) -> None:
        self.stage = stage
        self.random = Random(seed)
        self.halves: list[Command] = []  # replies to them
        self.read_replies = 0
        self.sent = 0

    def frames(self) -> bytes:
        """Return some requests of one kind."""
        random, count = self.random, self.random.choice((1, 3, 10))
        kind = random.choice(("half", "half", "end", "end", "send"))
        frames: list[bytes] = []
        for _ in range(count):
            self.sent += 1
            if kind == "end":
                if not self.halves:
                    break
                half = random.choice(self.halves)
                if random.random() < 0.9:
                    self.halves.remove(half)
                frames.append(encode(end(random, self.sent, half)))
                continue
            rare = random.choice((0.0, 0.1))
            command = send(random, self.sent, rare=rare, is_half=kind == "half")
            frames.append(frame(random, command, is_binary=random.random() < 0.1))
        return b"".join(frames)

    def turn(self, *, is_sync: bool) -> None:
        """Let the broker read requests, store them and answer."""
        random, stage = self.random, self.stage
        data = b"".join(self.frames() for _ in range(random.choice((1, 4))))
        cut = random.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            if part:
                stage.read(part)
            if random.random() < 0.3:
                stage.commit()
        stage.commit()
        if is_sync and random.random() < 0.7:
            stage.flush()
        stage.publish()
        if random.random() < 0.1:
            stage.tick(random.choice((1, 40_000)))
        replies = stage.transport.replies()
        for reply in replies[self.read_replies :]:
            if reply.request_id < _FIRST_END and reply.code == 0:
                self.halves.append(reply)  # or another message, whose end is refused
        self.read_replies = len(replies)


@pytest.mark.parametrize("seed", range(12))
def test_transactions_lead_to_the_same_files_and_replies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sync = seed % 2 == 1
    wanted: SendStage | None = None
    for path in PATHS:
        take_path(monkeypatch, path)
        stage = SendStage(
            takes_runs=path != "single",
            peer=PEERS[seed % 3 // 2],
            flush="sync" if is_sync else "async",
            message_bytes_max=600,
            is_transaction_rejected=seed == 11,
        )
        story = Story(stage, seed)
        for _ in range(40):
            story.turn(is_sync=is_sync)
        assert (stage.runs > 0) is (path != "single")
        events = stage.state.statistics.events
        assert bool(events.committed) is (seed != 11)
        if wanted is None:
            wanted = stage
            continue
        assert stage.written == wanted.written
        assert stage.contents() == wanted.contents()
        now_ms = stage.now_ms
        assert stage.state.statistics.totals(now_ms) == wanted.state.statistics.totals(now_ms)
        others = wanted.state.statistics.events
        assert (events.committed, events.rolled_back) == (others.committed, others.rolled_back)
        assert stage.connection.unanswered == wanted.connection.unanswered
