"""Random histories of pops, acknowledgements, changes and restarts, compared with a simple model.

The model knows each delivery of each message. What must hold at any time:

- a message that was acknowledged in time is never delivered again;
- a message that was not is delivered again, once for each delivery whose time ended;
- the committed offset never passes an open message by more than its own checkpoint protects, and
  reaches the end when everything is acknowledged.

A second model sets groups back at any time, and knows less: what a group is set back to, or did not
acknowledge since, is delivered at least once more.

A third one pops in order: each message is acknowledged or becomes a dead letter, and none of these
was delivered less often than its group allows.
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
DEAD = "%DLQ%G"


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
        self.stage.restart(_chosen(self.saved, self.random))
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
        count = sum(checkpoint.open_bits.bit_count() for checkpoint in state.checkpoints)
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


class _Rewound:
    """A broker whose group is set back at any time, and what must still be delivered."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.queues = self.random.choice([1, 2])
        self.stage = PopStage(queues=self.queues)
        self.stage.group(retry_max_times=1000)
        self.stage.create("later", 1)
        self.sent: list[list[str]] = [[] for _ in range(self.queues)]
        self.popped_to = [0] * self.queues
        self.wanted: set[str] = set()
        self.open: dict[str, Popped] = {}
        self.saved: list[dict[str, bytes]] = []

    def send(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            queue_id = self.random.randrange(self.queues)
            body = f"{queue_id}-{len(self.sent[queue_id])}"
            self.sent[queue_id].append(body)
            self.wanted.add(body)
            self.stage.send(body, queue_id=queue_id)

    def delay(self) -> None:
        """Send a delayed message: until the next tick, the timer's queue is not read to its end."""
        self.stage.send("x", topic="later", TIMER_DELAY_SEC="3000")

    def pop(self) -> None:
        count, invisible_ms = self.random.randint(1, 5), self.random.choice([500, 20_000])
        for one in self.stage.pop(count=count, invisible_ms=invisible_ms):
            self.open[one.body] = one
            receipt = one.receipt
            if receipt.kind == "0":
                self.popped_to[receipt.queue_id] = receipt.offset + 1

    def ack(self) -> None:
        bodies = self.random.sample(sorted(self.open), min(len(self.open), 3))
        self._ack([self.open.pop(body) for body in bodies])

    def _ack(self, picked: list[Popped]) -> None:
        if picked:
            assert self.stage.ack_together(*picked).code == 0
        self.wanted -= {one.body for one in picked}

    def change(self) -> None:
        for body, one in list(self.open.items())[:1]:
            answer = self.stage.change(one, self.random.choice([700, 30_000]))
            if answer.code == 0:
                self.open[body] = changed(one, answer)

    def set_back(self) -> None:
        queue_id = self.random.randrange(self.queues)
        offset = self.random.randint(0, self.popped_to[queue_id])
        state = self.stage.state
        if self.random.random() < 0.5 or not state.is_pop_loaded:
            self.stage.reset(offset, queue_id)
        elif state.checkpoints.has_popped("T", "G", queue_id):
            if state.offsets.is_reset("G", "T", queue_id):
                return  # commits are ignored until the next pop
            if offset == self.stage.committed(queue_id):
                return  # changes nothing
            self.stage.set_offset(offset, queue_id)
        else:
            return  # is saved with the progress, as any commit
        self.popped_to[queue_id] = offset
        again = self.sent[queue_id][offset:]
        self.wanted.update(again)
        for body in again:  # a receipt of an earlier delivery
            self.open.pop(body, None)

    def save(self) -> None:
        self.saved.append(self.stage.progress())

    def tick(self) -> None:
        self.stage.drain(self.random.choice([1, 400, 5_000]))

    def restart(self) -> None:
        self.stage.restart(_chosen(self.saved, self.random))
        self.open.clear()  # some are still valid; what is acknowledged is known above

    def restart_and_set_back(self) -> None:
        """Set the group back while records are still read."""
        self.stage.restart(_chosen(self.saved, self.random), tick=False)
        self.open.clear()
        for _ in range(self.random.randint(0, 3)):
            self.stage.tick()
        for _ in range(self.random.randint(1, 2)):
            self.set_back()

    def finish(self) -> None:
        for _ in range(300):
            found = self.stage.pop()
            if not found and not self.wanted:
                return
            self._ack(found)
            self.stage.drain(25_000)
        assert not self.wanted, "lost"


def _chosen(saved: list[dict[str, bytes]], random: Random) -> dict[str, bytes] | None:
    """Return a saved progress, or none; what was saved later never existed."""
    if not saved or random.random() >= 0.8:
        saved.clear()
        return None
    newer = random.randrange(len(saved))
    progress = dict(saved[newer])
    if random.random() < 0.3:  # the kill came between two files
        older = saved[random.randint(0, newer)]
        for path in (timed_messages.PATH, timer_handover.PATH):
            progress[path] = older[path]
    del saved[newer + 1 :]
    return progress


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_lost_when_groups_are_set_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_messages, "TICK_READS_MAX", 4)
    history = _Rewound(seed)
    steps = [
        *[history.send] * 3,
        *[history.pop] * 5,
        *[history.ack] * 4,
        *[history.save] * 2,
        *[history.tick] * 2,
        history.change,
        history.delay,
        history.set_back,
        history.restart,
        history.restart_and_set_back,
    ]
    for _ in range(60):
        history.random.choice(steps)()
    history.finish()


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


class _InOrder:
    """A broker whose group pops in order, and what must be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.retries = self.random.choice([0, 1, 3])
        self.stage = PopStage()
        self.stage.group(retry_max_times=self.retries)
        self.sent = 0
        self.acked: set[str] = set()
        self.as_head: dict[str, int] = {}  # deliveries as the first message of a batch
        self.promised = 0  # all before it is acknowledged, or a dead letter
        self.open: list[Popped] = []
        self.saved: list[dict[str, bytes]] = []

    def send(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.stage.send(f"m{self.sent}")
            self.sent += 1

    def pop(self) -> None:
        count, invisible_ms = self.random.randint(1, 5), self.random.choice([500, 5_000])
        found = self.stage.pop(count=count, invisible_ms=invisible_ms, order=True)
        if not found:
            return
        head = found[0]
        self.as_head[head.body] = self.as_head.get(head.body, 0) + 1
        done = self.acked | set(self.dead())
        assert all(f"m{offset}" in done for offset in range(head.receipt.offset)), "left out"
        assert head.receipt.offset >= self.promised, "delivered again"
        self.open = found

    def ack(self) -> None:
        picked = self.random.sample(self.open, min(len(self.open), 2))
        self.stage.ack(*picked)
        self.acked.update(one.body for one in picked)  # the last batch: never too late
        for one in picked:
            self.open.remove(one)
            self.as_head.setdefault(one.body, 0)
        if self.open:  # the next open message is the head now, and was delivered
            self.as_head[self.open[0].body] = max(self.as_head.get(self.open[0].body, 0), 1)

    def change(self) -> None:
        for one in self.open[:1]:
            assert self.stage.change(one, self.random.choice([0, 700, 30_000])).code == 0

    def dead(self) -> list[str]:
        if self.stage.state.topics.get(DEAD) is None:
            return []
        return [record.body.decode() for record in self.stage.records(DEAD)]

    def save(self) -> None:
        self.saved.append(self.stage.progress())

    def tick(self) -> None:
        self.stage.tick(self.random.choice([1, 400, 5_000]))
        if self.random.random() < 0.5:
            self.stage.flush()
        self.stage.publish()

    def restart(self) -> None:
        self.stage.restart(_chosen(self.saved, self.random))
        self.stage.group(retry_max_times=self.retries)

    def check(self) -> None:
        dead = self.dead()
        for body in dead:
            assert self.as_head[body] > self.retries, "delivered too rarely for a dead letter"
        self.promised = committed = self.stage.committed() or 0
        assert all(f"m{at}" in self.acked or f"m{at}" in dead for at in range(committed)), "lost"

    def finish(self) -> None:
        for _ in range(200):
            self.pop()
            while self.open:
                self.ack()
            self.stage.tick(5_000)
            self.stage.flush()
            self.check()
        assert self.stage.committed() == self.sent


@pytest.mark.parametrize("seed", range(60))
def test_histories_in_order(seed: int) -> None:
    history = _InOrder(seed)
    steps = [
        *[history.send] * 2,
        *[history.pop] * 6,
        *[history.ack] * 2,
        *[history.tick] * 6,
        history.change,
        history.save,
        history.restart,
    ]
    history.send()
    for _ in range(100):
        history.random.choice(steps)()
        history.check()
    history.finish()


def test_histories_in_order_have_dead_letters() -> None:
    histories = [_InOrder(seed) for seed in range(5)]
    for history in histories:
        history.send()
        for _ in range(30):
            history.pop()
            history.tick()
    assert any(history.dead() for history in histories)
