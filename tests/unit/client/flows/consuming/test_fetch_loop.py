"""The flow that fills one window."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.fetch_loop import fetch
from downrange.client.flows.consuming.subscriptions import filters_of
from downrange.client.flows.effects import Call
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.notices import QueueFailed, QueueRecovered, UserCodeFailed
from downrange.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    RocketMQError,
    ServerFailure,
)
from downrange.model import QueueId
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import PullReply
from tests.unit.client.flows.consuming.group_stage import A0, R0, TOPIC, Stage, offsets
from tests.unit.client.flows.fake_servers import NAME_SERVER, refusal

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


def test_an_answer_that_does_not_fit_is_pulled_again_when_there_is_room() -> None:
    stage, window = entered(buffer_bytes=10)
    stage.fill(A0, 1, body=b"1234")
    stage.ends[A0] = 3
    stage.bodies[A0, 1] = stage.bodies[A0, 2] = b"5678"
    pull_once(stage, window)
    assert stage.member.counts.dropped_answers == 1
    assert (window.needed, window.next_offset, window.count) == (8, 1, 1)
    assert stage.asked(PULL) == 1  # it waited for room, and did not pull again at once


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
    assert notice.what == "the broker moved the group's offset to 40"
    assert TOPIC in str(notice.queue)
