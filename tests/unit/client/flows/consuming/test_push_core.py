"""Workers take messages out of the windows, and call the handler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.effects import Call, Pause, Signal, UserCall, Wait
from downrange.client.flows.notices import HandlerFailed
from downrange.errors import ConnectFailed, DeadLetter, Retry, RetrySome
from downrange.wire.codes import RequestCode
from tests.unit.client.flows.consuming.group_stage import A0, A1, R0, Stage, offsets
from tests.unit.client.flows.fake_servers import reply

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def entered(**options: Any) -> Stage:
    stage = Stage(start="earliest", **options)
    stage.enter()
    stage.spawned.clear()
    stage.notices.clear()
    return stage


def plan(stage: Stage) -> str:
    (notice,) = stage.published(HandlerFailed)
    return str(notice.plan)


def away(stage: Stage) -> None:
    stage.servers.answer("a:1", SEND_BACK, ConnectFailed("a:1", "away"))


# ---- the line --------------------------------------------------------------------------------


def test_queues_take_turns() -> None:
    stage = entered()
    stage.fill(A0, 3)
    stage.fill(A1, 2)
    stage.work()
    places = [(message.queue.number, message.offset) for message in stage.handled]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    assert stage.member.counts.handled == 5
    assert stage.window(A0).position == 3
    assert not stage.member.buffer.count


def test_batches_are_lists() -> None:
    stage = entered(batch=2)
    stage.fill(A0, 3)
    stage.work()
    assert [offsets(batch) for batch in stage.handled] == [[0, 1], [2]]


def test_a_paused_consumer_hands_out_nothing() -> None:
    stage = entered()
    stage.push.pause()
    stage.fill(A0, 1)
    stage.work()
    assert not stage.handled
    stage.push.resume()
    stage.work()
    assert len(stage.handled) == 1


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, [0, 1, 2]), (2, [[0, 1], [2]]), (8, [[0, 1, 2]])]
)
def test_a_consumer_with_a_limit_hands_out_so_many_messages_and_no_more(
    batch: int, expected: list[Any]
) -> None:
    stage = entered(messages_max=3, batch=batch)
    stage.fill(A0, 5)
    stage.work()
    found = [each.offset if batch == 1 else offsets(each) for each in stage.handled]
    assert found == expected
    assert stage.push.is_paused
    stage.push.resume()
    stage.work()
    assert len(stage.handled) == len(expected)
    assert stage.window().position == 3


def test_a_failed_message_counts_for_the_limit() -> None:
    stage = entered(messages_max=2)
    stage.fill(A0, 3)
    stage.errors = [ValueError("bad")]
    stage.work()
    assert [message.offset for message in stage.handled] == [0, 1]


def test_a_stopped_window_hands_out_nothing() -> None:
    stage = entered()
    stage.fill(A0, 1)
    stage.window().stop()
    stage.work()
    assert not stage.handled


def test_a_window_whose_message_waits_for_its_time_is_passed_over() -> None:
    stage = entered()
    (message,) = stage.fill(A0, 1)
    window = stage.window()
    window.waiting.clear()
    window.postpone(message, stage.now + 1000)
    stage.work()
    assert not stage.handled
    assert not window.is_queued


def test_a_stuck_message_throttles_its_queue_by_the_span() -> None:
    """Complaint: a stuck handler holds the offset back while thousands pass."""
    stage = entered(span=2)
    stage.fill(A0, 5)
    stuck = stage.push._take()
    assert stuck is not None
    stage.work()
    assert offsets(stage.handled) == [1, 2]
    stage.push.finish(stuck)
    stage.work()
    assert offsets(stage.handled) == [1, 2, 3, 4]


def test_a_message_that_is_tried_again_passes_the_limit_of_the_span() -> None:
    """It may be the one that all others wait for."""
    stage = entered(span=2)
    away(stage)
    stage.errors = [ValueError("once")]
    stage.fill(A0, 5)
    stage.work()
    assert offsets(stage.handled) == [0, 1, 2]
    stage.run_spawned()  # five seconds later
    stage.work()
    assert offsets(stage.handled) == [0, 1, 2, 0, 3, 4]


def test_a_second_worker_is_called_at_once_when_handlers_are_slow() -> None:
    stage = entered()
    idle = Signal()
    stage.push._idle.append(idle)
    stage.push._average = 1.0
    stage.window().is_queued = True  # no worker is woken yet
    stage.fill(A0, 2)
    stage.push._line.append(stage.window())
    idle.is_fired = False
    stage.push._idle[:] = [idle]
    worker = stage.push.work()
    assert isinstance(next(worker), UserCall)
    assert idle.is_fired


def test_a_second_worker_is_called_late_when_handlers_were_quick() -> None:
    stage = entered()
    idle = Signal()
    stage.push._average = 0.0
    stage.fill(A0, 3)
    stage.push._idle[:] = [idle]
    worker = stage.push.work()
    started = next(worker)
    assert isinstance(started, UserCall)
    stage.servers.perform(started)
    (relief,) = stage.spawned
    handler = worker.send(None)
    assert isinstance(handler, UserCall)
    assert handler.function == stage.handle
    assert isinstance(next(relief), Pause)
    assert not idle.is_fired
    with pytest.raises(StopIteration):
        relief.send(None)
    assert idle.is_fired
    other = stage.push.work()  # while the first one is still busy
    stage.push._idle[:] = [Signal()]
    stage.push._is_relieving = True  # someone watches already
    called = next(other)
    assert isinstance(called, UserCall)
    assert called.function == stage.handle


def test_an_idle_worker_looks_again_after_a_minute() -> None:
    stage = entered()
    worker = stage.push.work()
    waiting = next(worker)
    assert isinstance(waiting, Wait)
    assert waiting.deadline == stage.now + 60
    assert len(stage.push._idle) == 1
    assert isinstance(worker.send(False), Wait)
    assert len(stage.push._idle) == 1
    waiting.signal.fire()
    stage.push.end_workers()
    with pytest.raises(StopIteration):
        worker.send(True)


# ---- iteration -------------------------------------------------------------------------------


def test_a_program_gets_one_message_after_the_other() -> None:
    stage = entered(concurrency=1)
    stage.push._handler = None
    stage.fill(A0, 2)
    stopped = Signal()
    assert stage.run(stage.push.wait_for_next(stopped))
    first = stage.push.take_next()
    assert first is not None
    assert stage.push.take_next() is None  # one at a time
    asking = stage.push.wait_for_next(stopped)
    waiting = next(asking)
    assert isinstance(waiting, Wait)
    stage.window().is_queued = True
    stage.push._line.append(stage.window())
    stage.push.finish(first)
    assert waiting.signal.is_fired
    with pytest.raises(StopIteration) as ended:
        asking.send(True)
    assert ended.value.value
    second = stage.push.take_next()
    assert second is not None
    assert offsets(second.messages) == [1]


def test_a_caller_that_gives_up_when_a_message_arrives_has_taken_none() -> None:
    stage = entered()
    stage.push._handler = None
    stage.fill(A0, 1)
    assert stage.run(stage.push.wait_for_next(Signal()))
    assert not stage.window().running
    assert stage.run(stage.push.wait_for_next(Signal()))


def test_a_caller_that_gives_up_is_not_woken() -> None:
    stage = entered()
    stage.push._handler = None
    waiting, given_up = (stage.push.wait_for_next(Signal()) for _ in range(2))
    signal = next(waiting).signal  # type: ignore[union-attr]
    next(given_up)
    given_up.close()
    stage.fill(A0, 1)
    assert signal.is_fired


def test_iteration_waits_while_it_is_paused() -> None:
    stage = entered()
    stage.push._handler = None
    stage.push.pause()
    stage.fill(A0, 1)
    asking = stage.push.wait_for_next(Signal())
    waiting = next(asking)
    assert isinstance(waiting, Wait)
    stage.push.resume()
    assert waiting.signal.is_fired
    with pytest.raises(StopIteration) as ended:
        asking.send(True)
    assert ended.value.value


def test_a_start_that_is_given_up_leaves_the_group() -> None:
    stage = entered()
    consumers = stage.servers.core.consumers
    stage.push._spawn = stage.run
    stage.run(stage.push.undo_enter())
    assert not consumers
    assert stage.asked(RequestCode.UNREGISTER_CLIENT) == 1
    stage.run(stage.push.undo_enter())
    assert stage.asked(RequestCode.UNREGISTER_CLIENT) == 1


def test_iteration_ends_when_it_is_stopped() -> None:
    stage = entered()
    stage.push._handler = None
    stopped = Signal()
    asking = stage.push.wait_for_next(stopped)
    waiting = next(asking)
    stopped.fire()
    assert waiting.signal.is_fired  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as ended:
        asking.send(True)
    assert ended.value.value is False


def test_a_message_that_nobody_handles_any_more_is_not_done() -> None:
    stage = entered()
    stage.fill(A0, 1)
    delivery = stage.push._take()
    assert delivery is not None
    stage.push.let_go(delivery)
    assert not stage.window().running
    assert stage.window().position == 0


# ---- failures --------------------------------------------------------------------------------


def test_a_failed_message_goes_back_to_the_broker() -> None:
    stage = entered()
    stage.errors = [ValueError("bad")]
    stage.fill(A0, 2)
    stage.work()
    assert stage.sent_back == [(0, 0)]
    assert stage.window().position == 2
    counts = stage.member.counts
    assert (counts.failed, counts.handled, counts.sent_back, counts.dead) == (1, 1, 1, 0)
    assert plan(stage) == "attempt 2 of 17 follows in about 10 s"
    assert stage.servers.core.user_errors == 1


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (Retry(30), 4, "attempt 2 of 17 follows in about 30 s"),
        (DeadLetter("why"), -1, "it becomes a dead letter"),
    ],
)
def test_a_handler_says_what_becomes_of_its_message(
    error: Exception, level: int, text: str
) -> None:
    stage = entered()
    stage.errors = [error]
    stage.fill(A0, 1)
    stage.work()
    assert stage.sent_back == [(0, level)]
    assert plan(stage) == text
    assert stage.servers.core.user_errors == 0
    assert stage.member.counts.dead == (1 if level < 0 else 0)


def test_some_of_a_batch_are_retried() -> None:
    stage = entered(batch=3)
    messages = stage.fill(A0, 3)
    stage.errors = [RetrySome(messages[1:2])]
    stage.work()
    assert stage.sent_back == [(1, 0)]
    assert (stage.member.counts.handled, stage.member.counts.failed) == (2, 1)
    assert stage.window().position == 3


def test_a_message_that_the_broker_does_not_take_is_handled_here_again() -> None:
    stage = entered()
    away(stage)
    stage.errors = [ValueError("bad")]
    stage.fill(A0, 1)
    stage.work()
    assert "it could not be sent back (away), and is handled here again in 5 s" in plan(stage)
    assert stage.window().position == 0
    stage.run_spawned()
    stage.work()
    assert len(stage.handled) == 2
    assert stage.window().position == 1


def test_of_a_batch_only_those_that_the_broker_does_not_take_are_handled_here_again() -> None:
    stage = entered(batch=2)
    stage.servers.answer("a:1", SEND_BACK, ConnectFailed("a:1", "away"), reply())
    stage.errors = [ValueError("bad")]
    stage.fill(A0, 2)
    stage.work()
    assert stage.member.counts.sent_back == 1
    assert [message.offset for _, message in stage.window().postponed] == [0]


def test_a_timer_that_fires_early_does_not_lose_the_message() -> None:
    stage = entered()
    away(stage)
    stage.errors = [ValueError("bad")]
    stage.fill(A0, 1)
    stage.work()
    (later,) = stage.spawned
    asked = next(later)
    assert isinstance(asked, Pause)
    stage.servers.clock.seconds += asked.seconds - 1e-9
    assert isinstance(later.send(None), Pause)
    assert not stage.window().is_queued


def test_sys_exit_in_a_handler_fails_its_message_only() -> None:
    stage = entered()
    stage.fill(A0, 2)
    worker = stage.push.work()
    assert isinstance(next(worker), UserCall)
    assert isinstance(worker.throw(SystemExit(1)), Call)  # it sends the message back
    worker.close()


def test_a_message_whose_queue_was_lost_is_not_sent_back() -> None:
    stage = entered()
    stage.fill(A0, 1)
    delivery = stage.push._take()
    assert delivery is not None
    stage.window().drop()
    stage.run(stage.push.fail(delivery, ValueError("bad")))
    assert not stage.sent_back
    assert plan(stage) == "its queue belongs to another member now, which handles it"


def test_the_unit_mode_is_told_by_heartbeats_and_with_messages_that_are_sent_back() -> None:
    for is_unit_mode in (True, False):
        stage = entered(unit_mode=is_unit_mode)
        assert stage.member.membership().unit_mode is is_unit_mode
        stage.errors = [ValueError("bad")]
        stage.fill(A0, 1)
        stage.work()
        fields = stage.servers.fields(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert fields["unitMode"] == str(is_unit_mode).lower()


# ---- orderly ---------------------------------------------------------------------------------


def test_orderly_a_failed_message_is_tried_again_first() -> None:
    stage = entered(mode="orderly", suspend_queue=2.0)
    stage.errors = [ValueError("bad"), Retry(7)]
    stage.fill(A0, 2)
    stage.work()
    assert offsets(stage.handled) == [0]
    assert plan(stage) == "the queue waits, and it is tried again in 2 s"
    stage.notices.clear()
    stage.run_spawned()
    stage.work()
    assert offsets(stage.handled) == [0, 0]
    assert plan(stage) == "the queue waits, and it is tried again in 7 s"
    stage.run_spawned()
    stage.work()
    assert offsets(stage.handled) == [0, 0, 0, 1]
    assert not stage.sent_back
    assert [each.delivery_attempts for each in stage.handled] == [0, 1, 2, 0]


def test_orderly_a_message_that_is_tried_again_belongs_to_its_consumer_too() -> None:
    stage = entered(mode="orderly")
    linked: list[ReceivedMessage] = []
    stage.member.link = linked.append
    stage.errors = [ValueError("bad")]
    stage.fill(A0, 1)
    stage.work()
    stage.run_spawned()
    stage.work()
    assert linked[-1:] == stage.handled[-1:]
    assert [each.delivery_attempts for each in linked[-1:]] == [1]


def test_orderly_one_handler_per_queue_at_a_time() -> None:
    stage = entered(mode="orderly")
    stage.fill(A0, 2)
    first = stage.push._take()
    assert first is not None
    stage.push._arrived(stage.window())
    assert stage.push._take() is None
    stage.push.finish(first)
    second = stage.push._take()
    assert second is not None
    assert offsets(second.messages) == [1]


def test_orderly_nothing_is_handed_out_without_the_lock() -> None:
    stage = entered(mode="orderly")
    stage.window().locked_until = stage.now
    stage.fill(A0, 1)
    assert stage.push._take() is None


def test_orderly_a_message_that_was_tried_too_often_is_a_dead_letter() -> None:
    """Not a message of the retry topic, whose deliveries would be counted from the start."""
    stage = entered(mode="orderly", retries=1)
    stage.errors = [ValueError("bad"), ValueError("bad")]
    stage.fill(A0, 2)
    stage.work()
    stage.run_spawned()
    stage.notices.clear()
    stage.work()
    assert plan(stage) == "it becomes a dead letter"
    assert stage.sent_back == [(0, -1)]
    assert offsets(stage.handled) == [0, 0, 1]
    assert stage.member.counts.dead == 1


def test_orderly_only_those_of_a_batch_that_were_tried_too_often_are_dead() -> None:
    stage = entered(mode="orderly", retries=1, batch=2)
    stage.fill(A0, 2)
    waiting = stage.window().waiting
    waiting[0] = replace(waiting[0], delivery_attempts=1)
    stage.errors = [ValueError("bad")]
    stage.work()
    assert stage.sent_back == [(0, -1)]
    assert offsets(stage.window().waiting) == [1]


def test_orderly_a_dead_letter_that_the_broker_does_not_take_keeps_its_place() -> None:
    stage = entered(mode="orderly")
    away(stage)
    stage.errors = [DeadLetter("why")]
    stage.fill(A0, 2)
    stage.work()
    assert offsets(stage.handled) == [0]
    text = "it could not be sent back (away), the queue waits, and it is tried again in 5 s"
    assert plan(stage) == text
    assert stage.member.counts.dead == 0
    stage.run_spawned()
    stage.work()
    assert offsets(stage.handled) == [0, 0, 1]


def test_orderly_of_a_batch_only_those_that_the_broker_does_not_take_stay() -> None:
    stage = entered(mode="orderly", batch=2)
    stage.servers.answer("a:1", SEND_BACK, ConnectFailed("a:1", "away"), reply())
    stage.errors = [DeadLetter("why")]
    stage.fill(A0, 2)
    stage.work()
    assert stage.member.counts.dead == 1
    assert offsets(stage.window().waiting) == [0]


def test_orderly_has_no_limit_of_retries_unless_given() -> None:
    assert Stage(mode="orderly").push.retries is None
    assert Stage(mode="orderly", retries=3).push.retries == 3
    assert Stage().push.retries == 16


# ---- broadcast -------------------------------------------------------------------------------


def test_broadcast_a_failed_message_is_tried_here_and_given_up() -> None:
    stage = entered(model="broadcast", broadcast_retries=2)
    stage.errors = [ValueError("bad"), None, ValueError("bad"), ValueError("bad")]
    stage.fill(A0, 2)
    plans = []
    for _ in range(3):
        stage.notices.clear()
        stage.work()
        plans.append(plan(stage))
        stage.run_spawned()
    assert plans == [
        "it is tried again here in 1 s",
        "it is tried again here in 2 s",
        "it is given up after attempt 3: no broker delivers it again",
    ]
    assert offsets(stage.handled) == [0, 1, 0, 0]
    assert stage.member.counts.given_up == 1
    assert stage.window().position == 2
    assert R0 not in stage.member.windows


def test_broadcast_in_order() -> None:
    stage = entered(model="broadcast", mode="orderly", broadcast_retries=1)
    stage.errors = [Retry(3), DeadLetter("why")]
    stage.fill(A0, 2)
    stage.work()
    assert offsets(stage.handled) == [0]
    stage.run_spawned()
    stage.work()
    assert offsets(stage.handled) == [0, 0, 1]
    assert not stage.sent_back
