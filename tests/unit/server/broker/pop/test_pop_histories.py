"""Random histories of pops, acknowledgements, changes and restarts, compared with a simple model.

The model knows each delivery of each message. What must hold at any time:

- a message that was acknowledged in time is never delivered again;
- a message that was not is delivered again, once for each delivery whose time ended;
- the committed offset never passes an open message by more than its own checkpoint protects, and
  reaches the end when everything is acknowledged.
"""

from __future__ import annotations

from random import Random

import pytest

from downrange.server.broker.scheduled import timed_messages, timer_handover
from tests.unit.server.broker.pop_stage import (
    RETRY_TOPIC,
    Popped,
    PopStage,
    ack_request,
    changed,
)

TAGS = "A || B"


class _History:
    """A broker and what must be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.queues = self.random.choice([1, 1, 3])
        self.stage = PopStage(queues=self.queues)
        self.stage.group(retry_max_times=1000)
        self.is_filtered = self.random.random() < 0.5
        self.sent = 0
        self.wanted: set[str] = set()
        self.acked: set[str] = set()
        self.deliveries: dict[str, int] = {}
        self.ended: dict[str, int] = {}  # deliveries that ended without acknowledgement
        self.open: dict[str, Popped] = {}
        self.saved: list[dict[str, bytes]] = []

    def send(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            body = f"m{self.sent}"
            self.sent += 1
            tag = self.random.choice("ABC")
            queue_id = self.random.randrange(self.queues)
            self.stage.send(body, queue_id=queue_id, TAGS=tag)
            if tag != "C" or not self.is_filtered:
                self.wanted.add(body)

    def pop(self) -> None:
        found = self.stage.pop(
            count=self.random.randint(1, 5),
            invisible_ms=self.random.choice([500, 1_500, 20_000]),
            exp=TAGS if self.is_filtered else None,
        )
        for one in found:
            body = one.body
            assert body in self.wanted
            assert body not in self.acked, "acknowledged, and delivered again"
            assert body not in self.open, "delivered while it was invisible"
            count = self.deliveries[body] = self.deliveries.get(body, 0) + 1
            assert count == self.ended.get(body, 0) + 1
            assert one.record.reconsume_times == count - 1
            self.open[body] = one

    def _pick(self) -> list[Popped]:
        bodies = self.random.sample(sorted(self.open), min(len(self.open), 3))
        return [self.open[body] for body in bodies]

    def ack(self) -> None:
        picked = self._pick()
        for one in picked:
            self.stage.ask(ack_request(one))
        self._acked(picked)

    def ack_together(self) -> None:
        picked = self._pick()
        if picked:
            assert self.stage.ack_together(*picked).code == 0
        self._acked(picked)

    def _acked(self, picked: list[Popped]) -> None:
        for one in picked:
            self.acked.add(one.body)
            del self.open[one.body]

    def change(self) -> None:
        for one in self._pick()[:1]:
            answer = self.stage.change(one, self.random.choice([0, 700, 30_000]))
            self.open[one.body] = changed(one, answer)
            assert self.stage.change(one, 10).code == 208, "the old receipt is still valid"

    def save(self) -> None:
        self.saved.append(self.stage.progress())

    def tick(self) -> None:
        self.stage.drain(self.random.choice([1, 400, 1_000, 5_000]))
        self._end()

    def restart(self) -> None:
        progress = None
        if self.saved and self.random.random() < 0.8:
            newer = self.random.randrange(len(self.saved))
            progress = dict(self.saved[newer])
            if self.random.random() < 0.3:  # the kill came between two files
                older = self.saved[self.random.randint(0, newer)]
                for path in (timed_messages.PATH, timer_handover.PATH):
                    progress[path] = older[path]
            del self.saved[newer + 1 :]  # these files never existed
        else:
            self.saved.clear()
        self.stage.restart(progress)
        self.stage.drain(0)
        self._end()

    def _end(self) -> None:
        """Note which deliveries have ended."""
        for body, one in list(self.open.items()):
            receipt = one.receipt
            if receipt.pop_ms + receipt.invisible_ms <= self.stage.now_ms:
                self.ended[body] = self.ended.get(body, 0) + 1
                del self.open[body]
        expected = sorted(body for body, count in self.ended.items() for _ in range(count))
        assert sorted(self.stage.again()) == expected, "delivered again too often, or not at all"

    def check(self) -> None:
        state = self.stage.state
        low = state.timers.progress().low
        assert all(low <= checkpoint.timer_offset for checkpoint in state.checkpoints)
        count = sum(checkpoint.open.bit_count() for checkpoint in state.checkpoints)
        assert count == len(self.open)

    def finish(self) -> None:
        """Take and acknowledge everything."""
        for _ in range(200):
            self.pop()
            self.ack_together()
            if self.acked == self.wanted and not self.open:
                break
            self.stage.drain(3_000)
            self._end()
        assert self.acked == self.wanted
        self.pop()
        state = self.stage.state
        assert len(state.checkpoints) == 0
        assert state.checkpoints.first_timer_offset() is None
        for topic in ("T", RETRY_TOPIC):
            config = state.topics.get(topic)
            for queue_id in range(0 if config is None else config.read_queue_nums):
                end = state.store.queue(topic, queue_id).max_offset
                assert (self.stage.committed(queue_id, topic) or 0) == end
        self.stage.restart(self.stage.progress())
        assert self.stage.pop(exp=TAGS if self.is_filtered else None) == []
        self.stage.restart()
        assert self.stage.pop(exp=TAGS if self.is_filtered else None) == []


@pytest.mark.parametrize("seed", range(40))
def test_histories(seed: int) -> None:
    history = _History(seed)
    steps = [
        *[history.send] * 3,
        *[history.pop] * 5,
        *[history.ack] * 3,
        *[history.ack_together] * 2,
        *[history.change] * 2,
        *[history.save] * 2,
        *[history.tick] * 3,
        history.restart,
    ]
    for _ in range(60):
        history.random.choice(steps)()
        history.check()
    history.finish()
