"""Which queues a member has."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.consuming.rebalance import rebalance, rebalance_loop
from downrange.client.flows.consuming.subscriptions import filters_of
from downrange.client.flows.effects import Signal, Wait
from downrange.client.flows.notices import (
    AssignmentChanged,
    HandoverEnded,
    SubscriptionsDiffer,
    UserCodeFailed,
)
from downrange.errors import ConnectFailed
from downrange.model import QueueId
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.consuming.group_stage import A0, A1, ME, R0, TOPIC, Stage
from tests.unit.client.flows.fake_servers import NAME_SERVER, refusal, route

OTHER = "10.0.0.2@9"
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def entered(**options: Any) -> Stage:
    stage = Stage(start="earliest", **options)
    stage.enter()
    return stage


def rebalanced(stage: Stage) -> bool:
    return stage.run(rebalance(stage.member))


def test_the_only_member_takes_all_queues() -> None:
    stage = entered()
    assert list(stage.member.windows) == [A0, A1, R0]
    changes = stage.published(AssignmentChanged)
    assert [list(change.taken) for change in changes] == [[A0, A1], [R0]]
    assert changes[0].taken[A0] == (0, "earliest")
    assert len(stage.spawned) == 3
    window = stage.window()
    assert (window.committed, window.locked_until) == (0, stage.now + 30)
    assert rebalanced(stage)
    assert stage.member.counts.rebalances == 2


def test_members_share_the_queues() -> None:
    stage = Stage()
    stage.members = [OTHER, ME]
    stage.enter()
    assert list(stage.member.windows) == [A0, R0]


def test_a_queue_goes_to_a_new_member_after_its_handlers_commit_and_unlock() -> None:
    """Complaint: duplicates when members come and go."""
    stage = entered()
    stage.spawned.clear()
    stage.notices.clear()
    stage.fill(A1, 1)
    delivery = stage.window(A1).take(1, stage.now)
    assert delivery is not None
    stage.members.append(OTHER)
    assert rebalanced(stage)
    window = stage.window(A1)
    assert window.is_stopped
    assert stage.published(AssignmentChanged) == [AssignmentChanged("billing", {}, [A1])]
    assert rebalanced(stage)
    assert len(stage.published(AssignmentChanged)) == 1  # it is reported once
    stage.servers.calls.clear()
    (release,) = stage.spawned
    waiting = next(release)
    assert isinstance(waiting, Wait)
    window.finish(delivery, stage.now)
    assert waiting.signal.is_fired
    stage.run(_rest(release))
    codes = [command.code for _, command in stage.servers.calls]
    assert codes == [RequestCode.UPDATE_CONSUMER_OFFSET, UNLOCK]
    assert stage.committed[A1] == 1
    assert A1 not in stage.member.windows
    assert stage.member.changed.is_fired


def _rest(flow: Any) -> Any:
    """Continue a flow whose wait has ended."""
    effect = flow.send(True)
    while True:
        answer = yield effect
        try:
            effect = flow.send(answer)
        except StopIteration:
            return


def test_a_queue_that_comes_back_waits_until_its_old_window_is_gone() -> None:
    stage = entered()
    stage.window(A1).stop()
    assert not rebalanced(stage)
    assert stage.window(A1).is_stopped


def test_a_queue_whose_former_owner_is_not_done_is_waited_for() -> None:
    stage = Stage(handover_timeout=10)
    stage.refused = {A1}
    stage.enter()
    assert list(stage.member.windows) == [A0, R0]
    assert stage.member.refused_since == {A1: 100.0}
    stage.servers.clock.seconds += 12.9
    assert not rebalanced(stage)
    assert not stage.published(HandoverEnded)
    stage.servers.clock.seconds += 0.2
    assert rebalanced(stage)
    (notice,) = stage.published(HandoverEnded)
    assert notice.queue == A1
    assert not stage.member.refused_since
    window = stage.window(A1)
    assert (window.has_lock, window.locked_until) == (False, 0.0)


def test_a_queue_that_is_unlocked_is_taken() -> None:
    stage = Stage()
    stage.refused = {A1}
    stage.enter()
    stage.refused = set()
    assert rebalanced(stage)
    assert not stage.member.refused_since
    assert stage.window(A1).has_lock


def test_orderly_never_takes_a_queue_without_its_lock() -> None:
    stage = Stage(mode="orderly")
    stage.refused = {A1}
    stage.enter()
    stage.servers.clock.seconds += 1000
    assert not rebalanced(stage)
    assert A1 not in stage.member.windows


def test_a_queue_that_others_get_now_is_not_waited_for() -> None:
    stage = Stage()
    stage.refused = {A1}
    stage.enter()
    stage.members.append(OTHER)
    assert rebalanced(stage)
    assert not stage.member.refused_since
    stage.member.refused_since[QueueId("gone", "a", 0)] = 1.0
    assert rebalanced(stage)
    assert not stage.member.refused_since


def test_queues_of_a_topic_that_was_unsubscribed_are_released() -> None:
    stage = entered()
    stage.spawned.clear()
    stage.member.subscriptions.replace(filters_of("other"), 1)
    assert not rebalanced(stage)  # the other topic has no route
    stage.run_spawned()
    assert list(stage.member.windows) == [R0]


def test_a_queue_whose_start_is_not_found_gives_its_lock_back() -> None:
    stage = Stage()
    away = ConnectFailed("a:1", "away")
    stage.servers.answer("a:1", RequestCode.QUERY_CONSUMER_OFFSET, away)
    stage.enter()
    assert not stage.member.windows
    assert stage.queues_asked(UNLOCK) == [{A0, A1}, {R0}]


def test_a_rebalance_while_the_member_leaves_takes_nothing() -> None:
    stage = entered()
    for window in stage.member.windows.values():
        window.drop()
    stage.member.windows.clear()
    stage.member.on_assigned = lambda _: stage.member.closing.fire()
    assert not rebalanced(stage)
    assert not stage.member.windows
    assert {A0, A1} in stage.queues_asked(UNLOCK)


def test_a_broker_that_knows_no_member_gets_a_heartbeat() -> None:
    stage = Stage()
    stage.members = []
    stage.enter()
    assert not stage.member.windows
    beats = stage.asked(RequestCode.HEART_BEAT)
    stage.members = [OTHER]  # our heartbeat is not there yet
    assert not rebalanced(stage)
    assert stage.asked(RequestCode.HEART_BEAT) > beats


def test_members_are_asked_of_the_next_broker_when_one_does_not_answer() -> None:
    stage = Stage(brokers="ab")
    away = ConnectFailed("a:1", "away")
    stage.servers.answer("a:1", RequestCode.GET_CONSUMER_LIST_BY_GROUP, away)
    stage.enter()
    assert len(stage.member.windows) == 6


def test_without_an_answer_nothing_changes() -> None:
    stage = entered()
    away = ConnectFailed(NAME_SERVER, "away")
    stage.servers.answer(NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC, away)
    stage.servers.core.routes._routes.clear()
    assert not rebalanced(stage)
    assert len(stage.member.windows) == 3


def test_a_topic_without_masters_is_no_error() -> None:
    stage = Stage()
    stage.servers.answer_route(TOPIC, route("a", without_master="a"))
    stage.enter()
    assert list(stage.member.windows) == [R0]


def test_a_strategy_of_the_user_that_fails_is_reported() -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("bad")

    stage = Stage(strategy=broken)
    stage.enter()
    assert not stage.member.windows
    assert [notice.where for notice in stage.published(UserCodeFailed)] == ["strategy"] * 2


def test_broadcast_takes_all_queues_without_locks() -> None:
    stage = entered(model="broadcast")
    assert list(stage.member.windows) == [A0, A1]
    assert stage.asked(LOCK) == 0
    assert stage.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == 0


def test_the_user_is_told_of_new_queues_before_their_first_message() -> None:
    stage = Stage()
    told: list[tuple[list[QueueId], int]] = []
    stage.member.on_assigned = lambda queues: told.append((queues, len(stage.spawned)))
    stage.enter()
    assert told == [([A0, A1], 0), ([R0], 2)]


# ---- subscriptions ---------------------------------------------------------------------------


def test_members_with_other_subscriptions_are_reported_once() -> None:
    """Complaint: same group, different subscriptions, and messages vanish."""
    stage = entered()
    stage.subscribed = {TOPIC: "new"}
    assert rebalanced(stage)
    assert rebalanced(stage)
    (notice,) = stage.published(SubscriptionsDiffer)
    assert notice.theirs == {TOPIC: "new"}
    stage.subscribed = None
    assert rebalanced(stage)
    stage.subscribed = {TOPIC: "new"}
    assert rebalanced(stage)
    assert len(stage.published(SubscriptionsDiffer)) == 2


def test_a_broker_that_does_not_tell_is_not_compared_with() -> None:
    stage = Stage()
    refused = refusal(ResponseCode.NO_PERMISSION)
    stage.servers.answer("a:1", RequestCode.GET_CONSUMER_CONNECTION_LIST, refused)
    stage.enter()
    assert not stage.published(SubscriptionsDiffer)


def test_the_comparison_can_be_switched_off() -> None:
    stage = entered(check_subscriptions=False)
    assert stage.asked(RequestCode.GET_CONSUMER_CONNECTION_LIST) == 0


def test_without_any_master_there_is_nothing_to_compare() -> None:
    from downrange.client.flows.consuming.rebalance import _compare_subscriptions

    stage = Stage()
    stage.run(_compare_subscriptions(stage.member))
    assert not stage.servers.calls


# ---- the loop --------------------------------------------------------------------------------


def deadlines(stage: Stage, *before: Any) -> list[float]:
    """Run the loop; return how long each of its waits may take."""
    member, waits = stage.member, []
    member.changed = Signal()
    loop = rebalance_loop(member)
    effect: Any = next(loop)
    steps = list(before)
    while True:
        if isinstance(effect, Wait) and effect.signal is member.changed:
            waits.append(round(effect.deadline - stage.now, 3))
            if not steps:
                member.closing.fire()
                with pytest.raises(StopIteration):
                    loop.send(True)
                return waits
            steps.pop(0)()
            effect = loop.send(member.changed.is_fired)
            continue
        effect = loop.send(stage.servers.perform(effect))


def test_how_soon_it_looks_again() -> None:
    stage = entered()

    def change() -> None:
        stage.member.changed.fire()

    def refuse() -> None:
        stage.refused = {A1}
        stage.member._remove(stage.member.windows[A1])

    def give_back() -> None:
        stage.refused = set()

    def fail() -> None:
        stage.members = []

    assert deadlines(stage, change, refuse, give_back, fail) == [0.2, 20, 0.2, 20, 1]
    assert stage.member.rebalancing.is_fired
