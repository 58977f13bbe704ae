"""Pops and notifications that wait with filters, under any limits: each match is announced once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from downrange.server.broker import record_scan
from downrange.server.broker.handlers import pop_polls
from downrange.server.broker.pop import held_pops, pop_plan, unmatched_ranges
from tests.unit.server.broker.broker_stage import send_request
from tests.unit.server.broker.pop_stage import PopStage, notification_request, popped_of

if TYPE_CHECKING:
    from downrange.wire.command import Command

FOREVER_MS = 10_000_000
#: Each filter, and the tags that match it.
FILTERS = {
    ("B", "TAG"): "B",
    ("TAGS = 'B'", "SQL92"): "B",
    ("TAGS = 'A' OR TAGS = 'B'", "SQL92"): "AB",
    ("*", "TAG"): "ABC",
}


class Group(NamedTuple):
    """A group, whose consumer waits with pops, or with a notification before each pop."""

    name: str
    exp: str
    exp_type: str
    queue_id: int
    is_notified: bool
    waiting: list[Command]
    bodies: list[str]

    def wait(self, stage: PopStage, count: int) -> None:
        if self.is_notified:
            request = notification_request(
                stage.now_ms,
                consumer_group=self.name,
                queue_id=self.queue_id,
                exp=self.exp,
                exp_type=self.exp_type,
                poll_time=FOREVER_MS,
            )
            stage.hand_in(request)
            stage.commit()
        else:
            request = stage.hold(
                group=self.name,
                queue_id=self.queue_id,
                exp=self.exp,
                exp_type=self.exp_type,
                count=count,
                poll_ms=FOREVER_MS,
            )
        self.waiting.append(request)

    def take_answers(self, stage: PopStage) -> None:
        for request in list(self.waiting):
            answer = stage.answer_to(request)
            if answer is None:
                continue
            self.waiting.remove(request)
            if self.is_notified:
                assert answer.fields["hasMsg"] == "true"
                found = stage.pop(
                    group=self.name, queue_id=self.queue_id, exp=self.exp, exp_type=self.exp_type
                )
            else:
                found = popped_of(answer)
            stage.ack(*found, group=self.name)
            self.bodies.extend(one.body for one in found)


def set_limits(chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_scan, "EXAMINED_MIN", 1)
    monkeypatch.setattr(record_scan, "EXAMINED_MAX", chance.choice([3, 10, 2_000]))
    monkeypatch.setattr(record_scan, "READ_BYTES_MAX", chance.choice([1, 500, 4_000_000]))
    monkeypatch.setattr(pop_plan, "TAGS_EXAMINED_MAX", chance.choice([3, 20, 16_000]))
    monkeypatch.setattr(pop_polls, "COMPARED_MAX", chance.choice([1, 2, 5, 50, 20_000]))
    monkeypatch.setattr(held_pops, "_WOKEN_MAX", chance.choice([1, 2, 16]))
    monkeypatch.setattr(unmatched_ranges, "_RANGES_MAX", chance.choice([30, 16_384]))


@pytest.mark.parametrize("seed", range(20))
def test_each_match_is_announced_and_popped_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    set_limits(chance, monkeypatch)
    queues = chance.choice([1, 2, 4])
    stage = PopStage(queues=queues)
    groups = [
        Group(
            name,
            *chance.choice(list(FILTERS)),
            chance.choice([-1, 0]),
            chance.random() < 0.5,
            [],
            [],
        )
        for name in "GHIJ"
    ]
    sent: list[tuple[str, str, int]] = []
    for _ in range(40):
        what = chance.random()
        if what < 0.5:
            for _ in range(chance.choice([1, 1, 4, 20])):
                body, tag = str(len(sent)), chance.choice("ABCCCCCC")
                queue_id = chance.randrange(queues)
                sent.append((body, tag, queue_id))
                stage.hand_in(
                    send_request(body.encode(), queue_id=queue_id, properties={"TAGS": tag})
                )
            stage.commit()
        elif what < 0.8:
            chance.choice(groups).wait(stage, chance.choice([1, 2, 32]))
        else:
            stage.tick(chance.choice([0, 50]))
        for group in groups:
            group.take_answers(stage)
    for _ in range(3_000):
        for group in groups:
            if not group.waiting:
                group.wait(stage, 32)
        stage.tick(1)
        for group in groups:
            group.take_answers(stage)
        if all(group.waiting for group in groups) and not stage.broker.is_behind(stage.now_ms):
            break
    for group in groups:
        tags = FILTERS[group.exp, group.exp_type]
        wanted = [
            body for body, tag, queue_id in sent if tag in tags and group.queue_id in (-1, queue_id)
        ]
        assert sorted(group.bodies) == sorted(wanted), group
