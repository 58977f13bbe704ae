"""Orderly pops: a queue is blocked until its batch is acknowledged (5.x only)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conversations.popper import (
    HOLD_MS,
    NO_TIMES,
    Popper,
    assert_empty,
    entries_of,
    new_popper,
    records_of,
    send,
)
from tests.conversations.scene import Scene, succeed
from tests.conversations.sends import pull
from tests.support.pops import ORDERLY_REVIVE_QUEUE

if TYPE_CHECKING:
    from downrange.wire.command import Command


def an_orderly_pop_blocks_its_queue_until_it_is_acknowledged(scene: Scene) -> None:
    popper = new_popper(scene, count=6)
    pull(scene, popper.broker, popper.topic, count=6)

    def pop(attempt: str, **given: object) -> Command:
        return popper.pop(order="true", attemptId=attempt, **given)

    reply = succeed(pop("1", count=3, invisible_ms=30_000))
    assert reply.fields["reviveQid"] == str(ORDERLY_REVIVE_QUEUE)
    assert reply.fields["orderCountInfo"] == "0 0 0"
    old = popper.receipts(reply)
    assert_empty(pop("2"), orderly=True)
    assert_empty(popper.pop(order="true"), orderly=True)
    assert popper.notification(0, order="true") == ("false", "false")
    assert popper.notification(0, order="true", attemptId="1") == ("true", "false")
    # A repeated request gets the batch anew, from the committed offset.
    reply = succeed(pop("1", count=5, invisible_ms=30_000))
    assert reply.fields["msgOffsetInfo"] == "0 0 0,1,2,3,4"
    assert reply.fields["orderCountInfo"] == "0 0 0"
    assert reply.fields["restNum"] == "1"
    found = popper.receipts(reply)
    assert popper.committed() == 0

    # An old receipt is accepted and has no effect; the offset goes to the first open message.
    if old["0", 0, 0].pop_ms != found["0", 0, 0].pop_ms:
        succeed(popper.ack(old["0", 0, 0]))
        assert popper.committed() == 0
    for offset, committed in ((1, 0), (0, 2), (0, 2), (3, 2)):
        succeed(popper.ack(found["0", 0, offset]))
        assert popper.committed() == committed
    entry = found["0", 0, 4].batch_entry([4])
    succeed(popper.batch_ack(entry))
    assert popper.committed() == 2
    assert_empty(pop("3"), orderly=True)

    # The last open one becomes visible earlier; then all from it on are delivered again.
    reply = succeed(popper.change(found["0", 0, 2], 1500))
    assert reply.fields["popTime"] == str(found["0", 0, 2].pop_ms)
    assert 1500 <= int(reply.fields["invisibleTime"]) < 30_000
    assert reply.fields["reviveQid"] == str(ORDERLY_REVIVE_QUEUE)
    held = popper.fresh(HOLD_MS, count=3, order="true", attemptId="4")
    reply = succeed(popper.pop(**held))
    assert reply.fields["msgOffsetInfo"] == "0 0 2,3,4"
    assert reply.fields["orderCountInfo"] == "0 qo0%2 1;0 qo0%3 1;0 qo0%4 1;0 0 1"
    assert {one.reconsume_times for one in records_of(reply)} == {0}
    found = popper.receipts(reply)

    # The last acknowledgement wakes the next pop.
    other = scene.broker()
    held = popper.fresh(HOLD_MS, order="true", attemptId="5")
    call = popper.broker.start(popper.request(**held))
    acker = Popper(scene, other, popper.topic, popper.group)
    for offset in (2, 3, 4):
        succeed(acker.ack(found["0", 0, offset]))
        assert acker.committed() == offset + 1
    reply = succeed(popper.broker.finish(call))
    assert reply.fields["msgOffsetInfo"] == "0 0 5"
    assert reply.fields["orderCountInfo"] == "0 0 0"
    reply = succeed(popper.change(found["0", 0, 2], 1500))
    assert dict(reply.fields) == NO_TIMES  # the message is done


def an_orderly_pop_of_all_queues_blocks_each_of_them(scene: Scene) -> None:
    popper = new_popper(scene, count=2)
    send(popper, 2, queue_id=1)
    pull(scene, popper.broker, popper.topic, count=2)
    pull(scene, popper.broker, popper.topic, count=2, queue_id=1)
    given: dict[str, object] = {"queue_id": -1, "order": "true"}
    reply = succeed(popper.pop(**given, attemptId="1", invisible_ms=1000))
    assert entries_of(reply, "msgOffsetInfo") == {"0 0 0,1", "0 1 0,1"}
    assert entries_of(reply, "orderCountInfo") == {"0 0 0", "0 1 0"}
    found = popper.receipts(reply)
    for offset in (0, 1):
        succeed(popper.ack(found["0", 0, offset]))
    reply = succeed(popper.pop(**popper.fresh(HOLD_MS), **given, attemptId="2"))
    assert entries_of(reply, "msgOffsetInfo") == {"0 1 0,1"}
    assert entries_of(reply, "orderCountInfo") == {"0 qo1%0 1", "0 qo1%1 1", "0 1 1"}
