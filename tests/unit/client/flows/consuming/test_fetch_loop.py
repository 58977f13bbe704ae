"""The flow that fills one window."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.fetch_loop import fetch
from downrange.client.flows.consuming.pull import by_tags
from downrange.client.flows.consuming.subscriptions import filters_of
from downrange.client.flows.effects import Call, Gather, Pause, Signal, UserCall, Wait
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.notices import QueueFailed, QueueRecovered, UserCodeFailed
from downrange.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    RocketMQError,
    ServerFailure,
)
from downrange.model import QueueId, QueueOffset
from downrange.wire.codes import ReleaseVersion, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.compression import Compression, compress
from downrange.wire.headers import PullReply
from tests.unit.client.flows.consuming.group_stage import A0, R0, TOPIC, Stage, offsets
from tests.unit.client.flows.fake_servers import NAME_SERVER, record, refusal, route

if TYPE_CHECKING:
    from downrange.client.flows.consuming.delivery_window import DeliveryWindow
    from downrange.model import ReceivedMessage

PULL = RequestCode.PULL_MESSAGE


def entered(**options: Any) -> tuple[Stage, DeliveryWindow]:
    stage = Stage(queues=1, start="earliest", **options)
    stage.enter()
    stage.spawned.clear()
    stage.notices.clear()
    return stage, stage.window()


def pull_once(stage: Stage, window: DeliveryWindow) -> None:
    """Run the loop until it pulls for a second time, or waits."""

    def stop() -> None:
        window.stop()

    flow = fetch(stage.member, window)
    effect = next(flow)
    pulls = 0
    while True:
        if isinstance(effect, Call) and effect.command.code == PULL:
            pulls += 1
            if pulls == 2:
                flow.close()
                return
        stage.on_wait[:] = [stop]
        try:
            step = partial(flow.send, stage.servers.perform(effect))
        except Exception as error:
            step = partial(flow.throw, error)
        try:
            effect = step()
        except StopIteration:
            return


def effects_of_two_pulls(stage: Stage, window: DeliveryWindow) -> list[object]:
    """Return what the loop yields before its second pull: calls by their code, others as is."""
    flow = fetch(stage.member, window)
    effect, seen = next(flow), list[object]()
    while seen.count(PULL) < 2:
        seen.append(effect.command.code if isinstance(effect, Call) else effect)
        effect = flow.send(stage.servers.perform(effect))
    flow.close()
    return seen


def test_handlers_begin_before_the_next_pull_if_the_queue_does_not_lag() -> None:
    stage, window = entered()
    stage.ends[A0] = 3
    assert effects_of_two_pulls(stage, window) == [PULL, Pause(0.0), PULL]


def test_the_next_pull_waits_for_a_worker_that_was_woken() -> None:
    stage, window = entered()
    stage.ends[A0] = 3
    taken = Signal()

    def arrived(window: DeliveryWindow) -> None:
        window.taken = taken

    stage.member.arrived = arrived
    stage.on_wait[:] = [taken.fire]
    effects = effects_of_two_pulls(stage, window)
    assert [effects[0], effects[2]] == [PULL, PULL]
    assert isinstance(effects[1], Wait)
    assert effects[1].signal is taken


def test_a_queue_that_lags_is_pulled_again_at_once() -> None:
    stage, window = entered(pull_batch=2)
    stage.ends[A0] = 5
    assert effects_of_two_pulls(stage, window) == [PULL, PULL]


def test_what_a_pull_brings_goes_into_the_window() -> None:
    stage, window = entered()
    stage.ends[A0] = 3
    pull_once(stage, window)
    assert offsets(window.waiting) == [0, 1, 2]
    assert window.next_offset == 3
    assert stage.member.counts.fetched == 3
    assert window.is_queued
    fields = stage.servers.fields(PULL)
    assert fields["subVersion"] == "100000"
    assert "subscription" not in fields


def test_a_retried_message_has_the_topic_that_it_was_sent_to() -> None:
    stage, _ = entered(namespace="prod")
    stage.properties["RETRY_TOPIC"] = "prod%orders"
    stage.ends[QueueId("%RETRY%prod%billing", "a", 0)] = 1
    linked: list[int] = []
    stage.member.link = lambda message: linked.append(message.offset)
    window = stage.window(R0)
    pull_once(stage, window)
    assert [message.topic for message in window.waiting] == [TOPIC]
    assert linked == [0]


def test_hooks_choose_messages_and_one_that_fails_keeps_them() -> None:
    def broken(message: ReceivedMessage) -> bool:
        raise ValueError(message.offset)

    stage, window = entered(hooks=Hooks(filter_message=(lambda m: m.offset != 1, broken)))
    stage.ends[A0] = 3
    pull_once(stage, window)
    assert offsets(window.waiting) == [0, 2]
    assert window.next_offset == 3
    assert len(stage.published(UserCodeFailed)) == 2


def test_a_window_that_ends_while_hooks_run_takes_nothing_in() -> None:
    stopping: list[DeliveryWindow] = []

    def stop(_: ReceivedMessage) -> bool:
        stopping[0].stop()
        return True

    stage, window = entered(hooks=Hooks(filter_message=(stop,)))
    stopping.append(window)
    stage.ends[A0] = 3
    pull_once(stage, window)
    assert not window.waiting


def test_a_broker_that_does_not_hold_the_request_is_not_asked_without_a_pause() -> None:
    stage, window = entered()
    pull_once(stage, window)
    assert stage.servers.interpreter.pauses == [0.05]


def test_messages_that_do_not_match_move_the_offset() -> None:
    stage, window = entered()
    answer = Command(20, PullReply(0, 8, 0, 9).to_fields())
    stage.servers.answer("a:1", PULL, answer)
    pull_once(stage, window)
    assert window.next_offset == 8
    assert stage.servers.interpreter.pauses == []


def test_the_next_pull_goes_to_the_replica_that_the_broker_suggests() -> None:
    stage = Stage(queues=1, start="earliest")
    body = route("a", queues=1)
    body.broker_datas[0].broker_addrs = {0: "a:1", 1: "a:2"}
    stage.servers.answer_route(TOPIC, body)
    stage.enter()
    slave_next, master_next = PullReply(1, 8, 0, 20), PullReply(0, 9, 0, 20)
    stage.servers.answer("a:1", PULL, Command(20, slave_next.to_fields()))
    stage.servers.answer("a:2", PULL, Command(20, master_next.to_fields()))
    fetch_rounds(stage, stage.window(), 3)
    assert stage.servers.asked(PULL) == ["a:1", "a:2", "a:1"]


@pytest.mark.parametrize(
    ("version", "has_timer"), [(ReleaseVersion.V5_0_0, True), (ReleaseVersion.V5_0_0 - 1, False)]
)
def test_brokers_have_a_timer_from_5_0_0_on(version: int, *, has_timer: bool) -> None:
    stage, window = entered()
    answer = Command(20, PullReply(0, 8, 0, 9).to_fields(), version=version)
    stage.servers.answer("a:1", PULL, answer)
    pull_once(stage, window)
    assert window.has_timer is has_timer


@pytest.mark.parametrize("is_decoded", [True, False])
def test_bodies_are_decompressed_unless_the_program_does_it(*, is_decoded: bool) -> None:
    stage, window = entered(decode_body=is_decoded)
    text = b"again and " * 9
    packed, sys_flag = compress(text, Compression.ZSTD)
    data = record(TOPIC, 0, body=packed, sys_flag=sys_flag)
    stage.servers.answer("a:1", PULL, Command(0, PullReply(0, 1, 0, 1).to_fields(), data))
    fetch_rounds(stage, window, 1)
    (message,) = window.waiting
    assert message.body == (text if is_decoded else packed)


def test_an_answer_after_the_end_is_dropped() -> None:
    """One object per assignment: an answer that comes late is never taken for the next one."""
    stage, window = entered()
    stage.ends[A0] = 3
    flow = fetch(stage.member, window)
    effect = next(flow)
    answer = stage.servers.perform(effect)
    window.stop()
    with contextlib.suppress(StopIteration):
        flow.send(answer)
    assert not window.waiting
    assert window.next_offset == 0


def test_a_queue_that_is_given_up_is_not_committed_after_a_reset() -> None:
    """The broker tells the pull that waits there; the commit would undo the reset."""
    stage, window = entered()
    stage.fill(A0, 2)
    flow = fetch(stage.member, window)
    assert isinstance(next(flow), Call)
    delivery = window.take(2, stage.now)
    assert delivery is not None
    stage.run(stage.member.release([window]))
    with pytest.raises(StopIteration):
        flow.send(Command(21, PullReply(0, 0, 0, 2).to_fields()))
    stage.push.finish(delivery)
    stage.run_spawned()
    assert A0 not in stage.member.windows
    assert stage.committed[A0] == 0
    assert stage.asked(RequestCode.UNLOCK_BATCH_MQ) == 1
    assert not stage.member.unsaved  # else it would begin there if it got the queue again


def test_an_answer_that_does_not_fit_is_pulled_again_when_there_is_room() -> None:
    stage, window = entered(buffer_bytes=10)
    stage.fill(A0, 1, body=b"1234")
    stage.ends[A0] = 3
    stage.bodies[A0, 1] = stage.bodies[A0, 2] = b"5678"
    pull_once(stage, window)
    assert stage.member.counts.dropped_answers == 1
    assert (window.needed, window.next_offset, window.count) == (8, 1, 1)
    assert stage.asked(PULL) == 1  # it waited for room, and did not pull again at once


# ---- several pulls in flight ----------------------------------------------------------------


def limited(stage: Stage, *limits: int) -> list[tuple[int, int]]:
    """Let the broker return few messages per pull; return the list of what it is asked for.

    The last limit stays.
    """
    asked: list[tuple[int, int]] = []

    def answer(command: Command) -> Command:
        fields = command.fields
        offset, count = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        asked.append((offset, count))
        limit = limits[min(len(asked), len(limits)) - 1]
        fields["maxMsgNums"] = str(min(count, limit))
        return stage._pull(command, "a")

    stage.servers.answer("a:1", PULL, answer)
    return asked


def fetch_rounds(stage: Stage, window: DeliveryWindow, rounds: int) -> None:
    """Let the loop ask so often, for one or several pulls."""
    flow = fetch(stage.member, window)
    effect = next(flow)
    for _ in range(rounds):
        assert isinstance(effect, Call | Gather)
        effect = flow.send(stage.servers.perform(effect))
    flow.close()


def test_a_queue_that_lags_has_several_pulls_in_flight() -> None:
    stage, window = entered(pull_batch=12)
    stage.ends[A0] = 22
    asked = limited(stage, 4)
    fetch_rounds(stage, window, 4)
    one_by_one = [(0, 12), (4, 12)]
    at_once = [(8, 4), (12, 4), (16, 12)]  # the last one would find out that it may ask for more
    assert asked == [*one_by_one, *at_once, (20, 12)]
    assert offsets(window.waiting) == list(range(22))
    assert window.next_offset == 22
    assert stage.member.counts.dropped_answers == 0


def test_an_answer_that_does_not_follow_the_one_before_is_pulled_again() -> None:
    stage, window = entered(pull_batch=12)
    stage.ends[A0] = 100
    asked = limited(stage, 4, 4, 3, 4)
    fetch_rounds(stage, window, 4)
    assert asked[2:] == [(8, 4), (12, 4), (16, 12), (11, 12)]
    assert offsets(window.waiting) == list(range(15))
    assert stage.member.counts.dropped_answers == 2


def test_a_failure_among_several_pulls_keeps_what_came_before_it() -> None:
    stage, window = entered(pull_batch=12)
    stage.ends[A0] = 100
    limited(stage, 4)
    fetch_rounds(stage, window, 2)

    def failing(command: Command) -> Command:
        if command.fields["queueOffset"] == "12":
            return refusal(ResponseCode.SYSTEM_ERROR, "no")
        return stage._pull(command, "a")

    stage.servers.answer("a:1", PULL, failing)
    flow = fetch(stage.member, window)
    after = flow.send(stage.servers.perform(next(flow)))
    assert offsets(window.waiting) == list(range(12))
    assert isinstance(after, UserCall)  # the notice
    (failed,) = after.args
    assert isinstance(failed, QueueFailed)


def moving(stage: Stage, moved: dict[str, int], *, end: int = 100) -> None:
    """Let the broker move the pulls at these offsets to others, and refuse the one at 8."""

    def answer(command: Command) -> Command:
        offset = command.fields["queueOffset"]
        if offset in moved:
            return Command(21, PullReply(0, moved[offset], 0, end).to_fields())
        return refusal(ResponseCode.SYSTEM_ERROR, "no")

    stage.servers.answer("a:1", PULL, answer)


@pytest.mark.parametrize("moved_to", [0, 90])
def test_a_reset_counts_whichever_of_several_pulls_learns_of_it(moved_to: int) -> None:
    stage, window = entered(pull_batch=12)
    stage.ends[A0] = 100
    limited(stage, 4)
    fetch_rounds(stage, window, 2)
    moving(stage, {"12": moved_to})
    stage.run(fetch(stage.member, window))
    stage.run_spawned(last=1)
    assert stage.window().next_offset == moved_to


def test_a_pull_behind_the_end_does_not_move_the_queue_before_those_ahead_of_it() -> None:
    """The queue got shorter: what is left of it comes first."""
    stage, window = entered(pull_batch=12)
    stage.ends[A0] = 100
    limited(stage, 4)
    fetch_rounds(stage, window, 2)
    moving(stage, {"12": 10, "16": 10}, end=10)
    flow = fetch(stage.member, window)
    after = flow.send(stage.servers.perform(next(flow)))
    assert isinstance(after, UserCall)
    (failed,) = after.args
    assert isinstance(failed, QueueFailed)  # of the first pull
    assert not window.is_stopped


def test_what_does_not_fit_ends_a_round() -> None:
    stage, window = entered(pull_batch=12, buffer_bytes=34)
    stage.ends[A0] = 100
    limited(stage, 4)
    fetch_rounds(stage, window, 2)
    stage.member.buffer.bytes += 23  # of another queue
    fetch_rounds(stage, window, 1)
    assert window.next_offset == 8
    assert (window.stride, window.needed) == (0, 4)


def test_without_room_it_waits_until_a_message_is_done() -> None:
    stage, window = entered(buffer_messages=1)
    window.room.fire()
    (message,) = stage.fill(A0, 1)
    flow = fetch(stage.member, window)
    waiting = next(flow)
    assert not waiting.signal.is_fired  # type: ignore[union-attr]
    window.settle(message)
    assert waiting.signal.is_fired  # type: ignore[union-attr]
    assert isinstance(flow.send(True), Call)


@pytest.mark.parametrize(
    ("limit", "pulls"),
    [
        ({"queue_messages": 2}, 0),
        ({"queue_messages": 3}, 1),
        ({"queue_bytes": 7}, 0),
        ({"queue_bytes": 8}, 1),
    ],
)
def test_a_queue_is_not_pulled_beyond_its_own_limits(limit: dict[str, int], pulls: int) -> None:
    stage, window = entered(**limit)
    stage.ends[A0] = 2
    stage.fill(A0, 2, body=b"1234")
    pull_once(stage, window)
    assert stage.asked(PULL) == pulls


def test_a_topic_that_was_unsubscribed_is_not_pulled() -> None:
    stage, window = entered()
    stage.member.subscriptions.replace(filters_of("other"), 1)
    pull_once(stage, window)
    assert stage.asked(PULL) == 0


def test_a_queue_that_cannot_be_read_is_reported_once_and_when_it_can() -> None:
    stage, window = entered(retry_backoff=0.5, retry_backoff_max=0.8)
    failures = [ConnectFailed("a:1", "away")] * 3
    stage.servers.answer("a:1", PULL, *failures, Command(19, PullReply(0, 0, 0, 0).to_fields()))
    flow = fetch(stage.member, window)
    effect = next(flow)
    for _ in range(40):
        if window.failing_since is None and stage.published(QueueRecovered):
            break
        try:
            answer = stage.servers.perform(effect)
        except RocketMQError as error:
            effect = flow.throw(error)
        else:
            effect = flow.send(answer)
    assert stage.servers.interpreter.pauses[:3] == [0.5, 0.8, 0.8]
    (failed,) = stage.published(QueueFailed)
    assert failed.error.brief == "away"
    assert stage.published(QueueRecovered) == [QueueRecovered("billing", A0)]
    assert window.failure is None
    assert stage.servers.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC).count(NAME_SERVER) == 5


def test_a_broker_that_does_not_know_the_subscription_yet_gets_a_heartbeat() -> None:
    """Complaint: errors 24 and 25 right after a start."""
    stage, window = entered()
    beats = stage.asked(RequestCode.HEART_BEAT)
    stage.servers.answer("a:1", PULL, refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST))
    pull_once(stage, window)
    assert stage.asked(RequestCode.HEART_BEAT) == beats + 1
    assert not stage.published(QueueFailed)
    window.failing_since = stage.now - 11
    pull_once(stage, window)
    assert len(stage.published(QueueFailed)) == 1


@pytest.mark.parametrize(
    ("error", "is_sure"),
    [
        (ConnectFailed("a:1", "away"), False),
        (ConnectionLost("a:1", "cut"), False),
        (CallTimeout("a:1", 3.0), False),
        (ServerFailure(1, "busy", "a:1"), True),
    ],
)
def test_the_lock_of_a_broker_that_does_not_answer_is_doubted(
    error: RocketMQError, *, is_sure: bool
) -> None:
    stage, window = entered()
    assert window.is_sure
    stage.servers.answer("a:1", PULL, error)
    pull_once(stage, window)
    assert window.is_sure is is_sure
    assert stage.member._doubt.is_fired is not is_sure


def test_a_repair_that_fails_too_waits_for_the_next_pull() -> None:
    stage, window = entered()
    stage.servers.answer("a:1", PULL, ConnectFailed("a:1", "away"))
    away = ConnectFailed(NAME_SERVER, "away")
    stage.servers.answer(NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC, away)
    pull_once(stage, window)
    assert window.failure is not None


def test_a_failure_after_the_end_is_not_reported() -> None:
    stage, window = entered()
    flow = fetch(stage.member, window)
    next(flow)
    window.stop()
    with contextlib.suppress(StopIteration):
        flow.throw(ConnectFailed("a:1", "away"))
    assert not stage.published(QueueFailed)


def test_a_moved_offset_opens_a_new_window() -> None:
    stage, window = entered()
    stage.fill(A0, 1)
    stage.servers.answer("a:1", PULL, Command(21, PullReply(0, 40, 40, 50).to_fields()))
    pull_once(stage, window)
    assert window.is_stopped
    assert stage.window() is window
    stage.run_spawned(last=1)
    moved = stage.window()
    assert moved is not window
    assert (moved.position, moved.committed, moved.has_lock) == (40, None, True)
    (notice,) = stage.published(QueueFailed)
    reason = "the group was reset, or the queue does not have its offset any more"
    assert notice.what == f"continues at offset 40, because {reason}"
    assert TOPIC in str(notice.queue)


# ---- another filter --------------------------------------------------------------------------


def refilter(stage: Stage, tags: str = "new") -> None:
    """Change the filter of the topic as a call at run time does; nothing waits for it."""
    stage.run(stage.member.resubscribe(filters_of({TOPIC: tags}), stage.now))


def test_an_answer_that_comes_after_the_filter_changed_is_dropped() -> None:
    """A held pull goes on with the filter before, and may skip what the new one lets pass."""
    stage, window = entered()
    stage.ends[A0] = 3
    flow = fetch(stage.member, window)
    batch: Any = stage.servers.perform(next(flow))
    refilter(stage)
    with pytest.raises(StopIteration):
        flow.send(batch)
    assert (window.next_offset, len(window.waiting)) == (0, 0)
    assert stage.member.counts.dropped_answers == 1
    stage.properties["TAGS"] = "new"
    stage.member.arrived = lambda window: window.stop()
    stage.run_spawned()
    assert offsets(window.waiting) == [0, 1, 2]
    assert int(stage.servers.fields(PULL)["subVersion"]) == 100_001


def test_a_reset_counts_although_the_filter_changed() -> None:
    """The broker says it once, to whichever pull comes first."""
    stage, window = entered()
    moving(stage, {"0": 40})
    flow = fetch(stage.member, window)
    moved: Any = stage.servers.perform(next(flow))
    refilter(stage)
    moving_on = flow.send(moved)
    with pytest.raises(StopIteration):
        flow.send(stage.servers.perform(moving_on))
    assert window.reset_to == 40
    assert window.is_stopped


def test_an_error_after_the_filter_changed_is_not_reported() -> None:
    stage, window = entered()
    flow = fetch(stage.member, window)
    next(flow)
    refilter(stage)
    with pytest.raises(StopIteration):
        flow.throw(CallTimeout("a:1", 30))
    assert window.failing_since is None


def test_a_filter_that_changes_while_hooks_run_drops_the_answer() -> None:
    stage, window = entered(hooks=Hooks(filter_message=(lambda _: window.refilter(by_tags("b")),)))
    stage.ends[A0] = 3
    stage.run(fetch(stage.member, window))
    assert (window.next_offset, len(window.waiting)) == (0, 0)


def test_a_filter_that_changes_while_a_recovery_is_told_drops_the_answer() -> None:
    stage, window = entered()
    window.failure, window.failing_since = ConnectionLost("a:1", "cut"), stage.now
    stage.servers.core.observe = lambda _: window.refilter(by_tags("b"))
    window.next_offset = QueueOffset(3)
    stage.servers.answer("a:1", PULL, Command(20, PullReply(0, 9, 0, 9).to_fields()))
    stage.run(fetch(stage.member, window))
    assert (window.epoch, window.next_offset) == (1, 3)


def test_several_pulls_in_flight_are_dropped_when_the_filter_changed() -> None:
    stage, window = entered(pull_batch=12)
    stage.ends[A0] = 22
    limited(stage, 4)
    flow = fetch(stage.member, window)
    effect = next(flow)
    while not isinstance(effect, Gather):
        effect = flow.send(stage.servers.perform(effect))
    answers = stage.servers.perform(effect)
    refilter(stage)
    with pytest.raises(StopIteration):
        flow.send(answers)
    assert (window.next_offset, len(window.waiting)) == (0, 0)
    assert stage.member.counts.dropped_answers == 3


def test_nothing_is_pulled_before_the_brokers_were_told_of_subscriptions() -> None:
    stage, window = entered()
    stage.member.registering = Signal()
    flow = fetch(stage.member, window)
    effect = next(flow)
    assert isinstance(effect, Wait)
    assert effect.signal is stage.member.registering
    window.stop()
    with pytest.raises(StopIteration):
        flow.send(True)
