"""Runs of messages for quick handlers: bookkeeping in bulk, and runs that are taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.delivery_window import Buffer, DeliveryWindow
from downrange.client.flows.consuming.pull import EVERYTHING
from downrange.client.flows.consuming.push_core import PushCore
from downrange.client.flows.effects import Pause, UserCall, Wait
from downrange.client.flows.hooks import Hooks
from downrange.client.push_base import handle_run
from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage
from downrange.options.consumers import ConsumerOptions
from downrange.wire.limits import MIB
from tests.unit.client.flows.flow_steps import TOPIC, clock_of, core_with, expect, route

if TYPE_CHECKING:
    from downrange.client.flows.effects import Effect, Flow

QUEUE = QueueId(TOPIC, "a", 0)


def message(offset: int) -> ReceivedMessage:
    return ReceivedMessage(
        message_id=f"M{offset}",
        queue=QUEUE,
        offset=QueueOffset(offset),
        body=bytes(10),
        properties={},
        offset_id=f"O{offset}",
        log_offset=LogOffset(0),
        flag=0,
        born_at_ms=0,
        born_host="127.0.0.1:1",
        stored_at_ms=0,
        delivery_attempts=0,
    )


def fill(window: DeliveryWindow, count: int) -> None:
    first = window.next_offset
    found = [message(offset) for offset in range(first, first + count)]
    window.add(found, QueueOffset(first + count))


class World:
    """A push consumer with one queue, whose handler notes the offsets."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        client = core_with(route("a"))
        self.clock = clock_of(client)
        self.spawned: list[Flow[None]] = []
        self.push = PushCore(
            client,
            "billing",
            ConsumerOptions(handle_timeout=1.0),
            lambda message: self.handled.append(message.offset),
            handle_run,
            Hooks(),
            self.spawned.append,
        )
        self.window = DeliveryWindow(
            QUEUE, EVERYTHING, QueueOffset(0), self.push.member.buffer, self.clock.now()
        )
        self.push.member.windows[QUEUE] = self.window
        self.worker = self.push.work()
        #: Flows that wait, which they do as long as they exist.
        self.idle: list[Flow[None]] = []
        expect(Wait, next(self.worker))

    def idle_workers(self, count: int) -> list[Flow[None]]:
        """Return other workers that wait."""
        workers = [self.push.work() for _ in range(count)]
        for worker in workers:
            expect(Wait, next(worker))
        self.idle += workers
        return workers

    def arrive(self, count: int) -> Effect:
        """Add messages; return the next effect of the worker."""
        fill(self.window, count)
        self.push.member.arrived(self.window)
        return self.worker.send(True)

    def handle(self, effect: Effect) -> None:
        """Call handlers until the worker waits."""
        while isinstance(effect, UserCall):
            effect = self.worker.send(effect.function(*effect.args))
        expect(Wait, effect)

    def become_quick(self) -> int:
        """Handle messages until runs are handed out; return how many."""
        self.handle(self.arrive(200))
        return 200


def test_a_run_that_ends_before_it_has_begun_gives_its_messages_back() -> None:
    """A task that is cancelled may not have called the handler yet."""
    world = World()
    world.become_quick()
    delivery = run_of(world.arrive(10))
    world.worker.close()
    assert not delivery.messages
    with pytest.raises(StopIteration):
        next(world.push.fail(delivery, ValueError("cancelled")))
    assert not world.window.running
    assert len(world.window.waiting) == 10
    assert world.window.position == 200


def run_of(effect: Effect) -> Any:
    """Return the delivery that a worker is about to handle as a run."""
    call = expect(UserCall, effect)
    assert call.function is handle_run
    return call.args[1]


def test_the_next_pull_may_go_when_a_worker_begins() -> None:
    world = World()
    fill(world.window, 1)
    world.push.member.arrived(world.window)
    taken = world.window.taken
    assert taken is not None
    assert not taken.is_fired
    expect(UserCall, world.worker.send(True))
    assert taken.is_fired
    assert world.window.taken is None


def test_the_next_pull_may_go_when_a_quick_handler_has_ended() -> None:
    world = World()
    world.become_quick()
    fill(world.window, 1)
    world.push.member.arrived(world.window)
    taken = world.window.taken
    assert taken is not None
    call = world.worker.send(True)
    assert not taken.is_fired  # a wake-up of the pull would delay the handler
    world.handle(call)
    assert taken.is_fired
    assert world.window.taken is None


def test_the_next_pull_may_go_if_a_worker_may_not_begin() -> None:
    world = World()
    world.become_quick()
    fill(world.window, 1)
    world.push.member.arrived(world.window)
    taken = world.window.taken
    assert taken is not None
    world.window.stop()
    expect(Wait, world.worker.send(True))
    assert taken.is_fired


def test_without_an_idle_worker_no_pull_waits_for_one() -> None:
    world = World()
    expect(UserCall, world.arrive(1))
    fill(world.window, 1)
    world.push.member.arrived(world.window)
    assert world.window.taken is None


def test_a_run_is_handled_in_order_and_done_in_bulk() -> None:
    world = World()
    count = world.become_quick()
    effect = world.arrive(300)
    assert run_of(effect).rest is not None
    world.handle(effect)
    assert world.handled == list(range(count + 300))
    assert world.window.position == world.window.next_offset == count + 300
    assert (world.window.count, world.window.bytes) == (0, 0)
    assert not world.window.running


def test_a_run_that_was_taken_away_before_it_began_ends_well() -> None:
    world = World()
    count = world.become_quick()
    effect = world.arrive(8)
    run = run_of(effect)
    assert run.current is None
    assert world.window.share(run)  # as by the relief of a slow handler
    assert len(world.window.waiting) == 8
    world.handle(effect)  # its worker gets nothing, and takes them again
    assert world.handled == list(range(count + 8))
    assert world.window.position == count + 8
    assert not world.window.running


def test_a_stopped_window_ends_a_run_that_was_not_begun() -> None:
    world = World()
    count = world.become_quick()
    effect = world.arrive(8)
    run_of(effect)
    world.window.stop()
    assert not world.window.idle.is_fired
    world.handle(effect)
    assert world.window.idle.is_fired
    assert world.window.position == count


def test_a_stuck_run_is_reported_with_the_message_that_is_handled() -> None:
    world = World()
    count = world.become_quick()
    run = run_of(world.arrive(8))
    watch = world.push.member._watch_loop()
    expect(Wait, next(watch))
    world.clock.seconds += 2.0
    watch.send(False)
    assert not run.is_reported  # no handler has begun
    for _ in range(3):
        run.messages.append(run.rest.popleft())
    assert run.current.offset == count + 2
    watch.send(False)
    assert run.is_reported


def test_a_message_of_a_run_that_fails_is_delivered_again_and_those_before_it_are_done() -> None:
    world = World()
    count = world.become_quick()
    run = run_of(world.arrive(8))
    for _ in range(3):
        run.messages.append(run.rest.popleft())
    world.push.member.is_shared = False  # no broker takes it back: it is tried again here
    failing = world.push.fail(run, ValueError("bad"))
    expect(UserCall, next(failing))
    assert world.window.position == count + 2
    assert len(world.window.postponed) == 1
    assert world.push.member.counts.failed == 1


def test_messages_behind_a_slow_handler_go_to_another_worker() -> None:
    world = World()
    world.become_quick()
    other, _ = world.idle_workers(2)  # the second one is woken by the messages
    watch = expect(UserCall, world.arrive(8))
    (relief,) = watch.args
    run = run_of(world.worker.send(None))
    run.messages.append(run.rest.popleft())
    expect(Pause, next(relief))
    world.clock.seconds += 1.0
    with pytest.raises(StopIteration):
        relief.send(None)
    assert not run.rest
    assert len(world.window.waiting) == 7
    assert run_of(other.send(True)).rest is not None


def test_nobody_is_called_when_all_is_done() -> None:
    world = World()
    world.become_quick()
    world.idle_workers(2)
    effect = world.arrive(8)
    (relief,) = expect(UserCall, effect).args
    world.handle(effect)
    expect(Pause, next(relief))
    with pytest.raises(StopIteration):
        relief.send(None)
    assert world.push._is_relieving is False


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]])
def test_the_position_is_the_first_message_that_is_not_done(order: list[int]) -> None:
    window = DeliveryWindow(QUEUE, EVERYTHING, QueueOffset(0), Buffer(100, MIB), 0.0)
    fill(window, 9)
    deliveries = [window.take(3, 0.0) for _ in range(3)]
    done: set[int] = set()
    for number in order:
        delivery = deliveries[number]
        assert delivery is not None
        assert delivery.current is delivery.messages[0]
        window.finish(delivery, 1.0)
        done |= {message.offset for message in delivery.messages}
        assert window.position == min(set(range(10)) - done)
    assert (window.count, window.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("windows", "batch", "limits"),
    [
        (0, 256, (256, MIB)),
        (4, 256, (256, MIB)),
        (100, 256, (100, 64 * MIB // 100)),
        (10_000, 256, (32, None)),
        (10_000, 8, (8, None)),
    ],
)
def test_many_queues_make_pulls_smaller(
    windows: int, batch: int, limits: tuple[int, int | None]
) -> None:
    assert Buffer(10_000, 64 * MIB).pull_limits(windows, batch) == limits
