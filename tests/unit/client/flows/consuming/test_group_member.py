"""One member of a group: how it enters and leaves, and what it does on timers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.consumer_stats import consumer_health
from downrange.client.flows.consuming.group_member import GroupMember
from downrange.client.flows.consuming.subscriptions import filters_of
from downrange.client.flows.effects import Gather, Pause, Signal, Wait
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.notices import (
    CommitFailed,
    HandlerStuck,
    LockLost,
    UserCodeFailed,
    WorkFailed,
)
from downrange.client.flows.routing.routes import route_of
from downrange.client.offset_stores import MemoryOffsets
from downrange.errors import (
    ClientClosed,
    ConnectFailed,
    GroupTaken,
    OptionError,
    ServerError,
    StoreError,
)
from downrange.filters.sql import Sql
from downrange.model import QueueId, QueueOffset
from downrange.options.consumers import ConsumerOptions
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.consuming.group_stage import A0, A1, R0, TOPIC, Stage
from tests.unit.client.flows.fake_servers import refusal, route
from tests.unit.client.flows.flow_steps import body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.client.flows.effects import Flow
    from downrange.wire.command import Command

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def entered(**options: Any) -> Stage:
    stage = Stage(start="earliest", **options)
    stage.enter()
    stage.spawned.clear()
    stage.notices.clear()
    stage.servers.calls.clear()
    return stage


def member_of(stage: Stage, group: str, options: ConsumerOptions) -> GroupMember:
    return GroupMember(stage.servers.core, group, options, Hooks(), stage.spawn, lambda _: None)


class Store(MemoryOffsets):
    """A store that counts who uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[str] = []

    def load(self, group: str) -> dict[QueueId, int]:
        self.used.append(group)
        return super().load(group)

    def release(self, group: str) -> None:
        self.used.remove(group)


# ---- entering --------------------------------------------------------------------------------


def test_heartbeats_reach_every_broker_before_the_first_pull() -> None:
    stage = Stage(brokers="ab")
    stage.enter()
    codes = [command.code for _, command in stage.servers.calls]
    members = codes.index(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    assert codes[:members].count(RequestCode.HEART_BEAT) == 2
    assert RequestCode.PULL_MESSAGE not in codes


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("latest", "CONSUME_FROM_LAST_OFFSET"),
        ("earliest", "CONSUME_FROM_FIRST_OFFSET"),
        (datetime.now(UTC), "CONSUME_FROM_TIMESTAMP"),
    ],
)
def test_the_heartbeat_says_where_the_group_begins(start: Any, name: str) -> None:
    assert Stage(start=start).member.membership().consume_from_where == name


def test_the_name_of_the_group_is_checked() -> None:
    stage = Stage()
    with pytest.raises(OptionError, match="a b"):
        member_of(stage, "a b", ConsumerOptions())


def test_a_client_has_one_consumer_of_a_group() -> None:
    stage = entered()
    store = Store()
    options = ConsumerOptions(model="broadcast", offset_store=store)
    second = member_of(stage, "billing", options)
    with pytest.raises(GroupTaken):
        stage.run(second.enter(filters_of(TOPIC), 103))
    assert stage.servers.core.consumers["billing"] is stage.member
    assert not store.used


def test_an_sql_filter_is_checked_by_a_broker() -> None:
    stage = Stage()
    refused = refusal(ResponseCode.SYSTEM_ERROR, "The broker does not support SQL92")
    stage.servers.answer("a:1", RequestCode.CHECK_CLIENT_CONFIG, refused)
    with pytest.raises(ServerError):
        stage.enter({TOPIC: Sql("amount > 100")})
    assert not stage.servers.core.consumers


def test_a_topic_without_a_route_is_no_error() -> None:
    stage = Stage()
    stage.enter([TOPIC, "later"])
    assert len(stage.member.windows) == 3


def test_a_start_that_fails_leaves_nothing_behind() -> None:
    store = Store()
    stage = Stage(model="broadcast", offset_store=store)
    store.save("billing", {A0: 3})
    stage.member.on_assigned = lambda _: None

    def fail(_: Any) -> Flow[None]:
        raise ValueError("bad")
        yield

    stage.member.call_user = lambda *_: fail(_)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="bad"):
        stage.enter()
    assert not store.used
    assert not stage.servers.core.consumers
    assert not stage.servers.core.on_lost
    assert stage.member.is_closing


def test_a_start_that_is_cancelled_stops_what_it_began() -> None:
    stage = Stage()
    entering = stage.push.enter(filters_of(TOPIC), 103)
    effect = next(entering)
    while not stage.member.windows:
        effect = entering.send(stage.servers.perform(effect))
    window = stage.window()
    entering.close()
    assert window.is_dropped
    assert not stage.member.windows
    assert not stage.servers.core.consumers


# ---- leaving ---------------------------------------------------------------------------------


def test_nothing_is_handled_again_after_a_clean_end() -> None:
    """Complaint: duplicates at shutdown."""
    stage = entered()
    stage.fill(A0, 3)
    delivery = stage.window().take(2, stage.now)
    assert delivery is not None
    stage.on_wait.append(lambda: stage.push.finish(delivery))
    assert stage.run(stage.push.exit(stage.now + 30)) == []
    codes = [command.code for _, command in stage.servers.calls]
    assert codes == [COMMIT, UNLOCK, RequestCode.UNREGISTER_CLIENT]
    assert stage.committed[A0] == 2
    assert not stage.member.windows
    assert not stage.member.buffer.count
    assert not stage.servers.core.consumers
    with pytest.raises(StopIteration):
        next(stage.push.work())


def test_handlers_that_do_not_end_in_time_are_named() -> None:
    stage = entered()
    stage.fill(A0, 1)
    delivery = stage.window().take(1, stage.now)
    assert delivery is not None
    (window,) = stage.run(stage.push.exit(stage.now + 5))
    assert window.queue == A0
    assert stage.now == 105
    assert A0 not in stage.committed or stage.committed[A0] == 0
    stage.push.finish(delivery)  # it does not count any more


def test_a_member_without_queues_unlocks_nothing() -> None:
    stage = Stage()
    stage.members = []
    stage.enter()
    stage.run(stage.push.exit(stage.now + 5))
    assert stage.asked(UNLOCK) == 0


def test_broadcast_leaves_without_unlocking_and_releases_its_store() -> None:
    store = Store()
    stage = entered(model="broadcast", offset_store=store)
    assert store.used == ["billing"]
    assert stage.member.local_offsets == {A0: 0, A1: 0}  # where it begins is saved at once
    stage.fill(A0, 1)
    stage.work()
    stage.run(stage.push.exit(stage.now + 5))
    assert stage.asked(UNLOCK) == 0
    assert store.load("billing")[A0] == 1
    assert stage.asked(COMMIT) == 0


class BrokenStore(Store):
    """Raises what code of a user may raise, in the methods that a test names."""

    def __init__(self, *broken: str) -> None:
        super().__init__()
        self.broken = set(broken)

    def _check(self, name: str) -> None:
        if name in self.broken:
            raise OSError(5, name)

    def load(self, group: str) -> dict[QueueId, int]:
        self._check("load")
        return super().load(group)

    def save(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        self._check("save")
        super().save(group, offsets)

    def release(self, group: str) -> None:
        self._check("release")
        super().release(group)


def test_a_store_of_the_user_that_fails_is_counted_told_once_and_asked_again() -> None:
    store = BrokenStore()
    stage = entered(model="broadcast", offset_store=store)
    store.broken = {"save"}
    stage.fill(A0, 1)
    stage.work()
    for _ in range(3):
        assert stage.run(stage.member.commit([stage.window()], 103)) is False
    assert stage.member.counts.commits_failed == 3
    (notice,) = stage.published(CommitFailed)
    assert isinstance(notice.error, StoreError)
    health = consumer_health(stage.member)
    assert not health.is_healthy
    assert "save() of the offset store BrokenStore failed: OSError" in health.problems[0]
    store.broken = set()
    assert stage.run(stage.member.commit([stage.window()], 103)) is True
    assert consumer_health(stage.member).is_healthy


def test_a_store_of_the_user_that_fails_does_not_keep_the_member_from_leaving() -> None:
    store = BrokenStore()
    stage = entered(model="broadcast", offset_store=store)
    store.broken = {"save", "release"}
    stage.fill(A0, 1)
    stage.work()
    assert stage.run(stage.push.exit(stage.now + 5)) == []
    assert not stage.servers.core.consumers
    assert stage.asked(RequestCode.UNREGISTER_CLIENT) == 1
    assert not stage.member.windows
    assert len(stage.published(CommitFailed)) == 1
    (notice,) = stage.published(WorkFailed)
    assert notice.what == "releasing the offsets of group billing"
    with pytest.raises(StopIteration):
        next(stage.push.work())


def test_a_store_of_the_user_that_cannot_be_loaded_ends_the_start() -> None:
    stage = Stage(model="broadcast", offset_store=BrokenStore("load", "release"))
    with pytest.raises(
        StoreError, match="load\\(\\) of the offset store BrokenStore failed"
    ) as caught:
        stage.enter()
    assert isinstance(caught.value.__cause__, OSError)
    assert not stage.servers.core.consumers
    assert len(stage.published(WorkFailed)) == 1


def test_queues_go_even_if_something_unexpected_fails_before() -> None:
    stage = entered()

    def broken(*_: Any) -> Flow[None]:
        raise LookupError("broken")

    stage.member.hand_over = broken  # type: ignore[assignment, method-assign]
    stage.run(stage.member.release([stage.window()]))
    stage.run_spawned(last=1)
    assert A0 not in stage.member.windows
    assert stage.run(stage.push.exit(stage.now + 5)) == []
    assert not stage.servers.core.consumers
    assert [str(each.error) for each in stage.published(UserCodeFailed)] == ["broken"] * 2


def test_broadcast_goes_on_where_its_store_says() -> None:
    store = Store()
    store.save("billing", {A0: 7})
    stage = entered(model="broadcast", offset_store=store)
    assert (stage.window(A0).position, stage.window(A1).position) == (7, 0)


def test_it_waits_for_a_rebalance_before_it_unlocks() -> None:
    """Or the rebalance would lock queues after that, for a minute."""
    stage = entered()
    stage.member.rebalancing = Signal()
    leaving = stage.push.exit(stage.now + 30)
    effect: Any = next(leaving)
    while not (isinstance(effect, Wait) and effect.signal is stage.member.rebalancing):
        effect = leaving.send(stage.servers.perform(effect))
    assert stage.asked(UNLOCK) == 0
    effect = leaving.send(True)
    assert stage.asked(UNLOCK) == 0


def test_a_release_that_is_under_way_leaves_the_rest_to_the_end() -> None:
    stage = entered()
    stage.run(stage.member.release([stage.window()]))
    stage.member.closing.fire()
    stage.run_spawned()
    assert stage.asked(COMMIT) == stage.asked(UNLOCK) == 0
    assert A0 in stage.member.windows


def test_the_user_is_told_of_queues_that_go_and_may_fail() -> None:
    stage = entered()
    told: list[list[QueueId]] = []

    def revoked(queues: list[QueueId]) -> None:
        told.append(queues)
        raise ValueError("bad")

    stage.member.on_revoked = revoked
    stage.run(stage.member.release([stage.window()]))
    stage.run_spawned()
    assert told == [[A0]]
    assert [notice.where for notice in stage.published(UserCodeFailed)] == ["on_revoked"]
    stage.run(stage.push.exit(stage.now + 5))
    assert told == [[A0], [A1, R0]]


# ---- subscriptions ---------------------------------------------------------------------------


def test_other_topics_at_run_time() -> None:
    stage = entered()
    stage.servers.answer_route("refunds", route("a", queues=1))
    stage.member.changed = Signal()
    stage.run(stage.member.resubscribe(filters_of({TOPIC: "new", "refunds": "*"}), stage.now + 3))
    assert stage.asked(RequestCode.HEART_BEAT) == 1
    assert stage.window(A0).message_filter.text == "new"
    assert stage.member.changed.is_fired
    stage.run(stage.member.resubscribe(filters_of("refunds"), stage.now + 3))
    assert stage.window(A0).message_filter.text == "new"  # until it is released
    stage.member.closing.fire()
    with pytest.raises(ClientClosed, match="billing"):
        stage.run(stage.member.resubscribe(filters_of(TOPIC), stage.now + 3))


def test_topics_at_run_time_are_waited_for_until_their_queues_are_taken() -> None:
    stage = entered()
    member = stage.member
    stage.servers.answer_route("refunds", route("a", queues=1))
    queue, started = QueueId("refunds", "a", 0), stage.now
    found: list[tuple[float, bool]] = []

    def subscribe() -> Flow[None]:
        yield from member.resubscribe(filters_of([TOPIC, "refunds"]), started + 3)
        found.append((stage.now, queue in member.windows))

    stage.on_wait[:] = [lambda: None, lambda: None, member.closing.fire]
    loop = member.loops()["rebalance"]()
    stage.servers.interpreter.run_together([subscribe(), loop])
    assert found == [(started, True)]


def test_a_call_from_on_assigned_does_not_wait_for_the_rebalance_that_waits_for_it() -> None:
    stage = Stage(start="earliest")
    ends: list[float] = []

    def assigned(_: list[QueueId]) -> None:
        stage.run(stage.member.resubscribe(filters_of(TOPIC), stage.now + 3))
        ends.append(stage.now)

    stage.member.on_assigned = assigned
    started = stage.now
    stage.enter()
    assert ends == [started, started]  # for the topic, and for the retry topic
    stage.run(stage.member.resubscribe(filters_of(TOPIC), stage.now + 3))
    assert stage.now == started + 3


def test_a_member_that_leaves_ends_the_wait_for_queues() -> None:
    stage = entered()
    upcoming = stage.member.upcoming
    stage.run(stage.push.exit(stage.now + 5))
    assert upcoming.is_fired


def test_another_filter_counts_for_what_was_not_begun() -> None:
    stage = entered(buffer_messages=4)
    stage.fill(A0, 2)
    stage.fill(A1, 2)
    stopped, other = stage.window(A1), stage.window(R0)
    stopped.stop()
    begun = stage.window(A0).take(1, stage.now)
    assert begun is not None
    assert not stage.member.may_fetch(other)
    other.room = Signal()
    stage.run(stage.member.resubscribe(filters_of({TOPIC: "new"}), stage.now))
    window = stage.window(A0)
    assert [window.epoch, stopped.epoch, other.epoch] == [1, 0, 0]
    assert (window.next_offset, window.position, window.count) == (1, 0, 1)
    assert [each.message_filter.text for each in (window, stopped)] == ["new", "new"]
    assert len(stopped.waiting) == 2  # it is given up with what it has
    assert other.room.is_fired
    assert len(stage.spawned) == 1


def test_a_topic_that_was_not_subscribed_for_a_moment_is_read_on_at_once() -> None:
    stage = entered()
    stage.servers.answer_route("refunds", route("a", queues=1))
    stage.run(stage.member.resubscribe(filters_of("refunds"), stage.now))
    window = stage.window(A0)
    window.room = Signal()  # its fetching waits for a minute
    stage.run(stage.member.resubscribe(filters_of([TOPIC, "refunds"]), stage.now))
    assert window.room.is_fired
    assert (window.epoch, stage.spawned) == (0, [])


def test_a_caller_that_gives_up_subscribing_does_not_keep_queues_from_being_read() -> None:
    stage = entered()
    flow = stage.member.resubscribe(filters_of({TOPIC: "new"}), stage.now + 3)
    effect: Any = next(flow)
    while not isinstance(effect, Gather):  # the routes
        effect = flow.send(stage.servers.perform(effect))
    assert not stage.member.registering.is_fired
    flow.close()
    assert stage.member.registering.is_fired
    assert len(stage.spawned) == 2


def test_a_route_that_changes_divides_the_queues_anew() -> None:
    stage = entered()
    stage.member.changed = Signal()
    core = stage.servers.core
    core.routes.replace(route_of("other", body("a")))
    assert not stage.member.changed.is_fired
    core.routes.replace(route_of(TOPIC, body("a", queues=8)))
    assert stage.member.changed.is_fired


# ---- room ------------------------------------------------------------------------------------


def test_a_queue_that_is_given_up_makes_room_for_others() -> None:
    """They waited for up to a minute: nobody told them."""
    stage = entered(buffer_messages=2)
    stage.fill(A0, 2)
    other = stage.window(A1)
    assert not stage.member.may_fetch(other)
    other.room = Signal()
    stage.run(stage.member.release([stage.window(A0)]))
    stage.run_spawned()
    assert other.room.is_fired
    assert stage.member.may_fetch(other)
    other.is_paused = True
    assert not stage.member.may_fetch(other)


def test_a_window_that_was_replaced_is_removed_alone() -> None:
    stage = entered()
    old = stage.window()
    stage.run(stage.member.move(old, old.position, "moved"))
    stage.run(stage.member.move(old, old.position, "moved"))  # it is moved already
    assert len(stage.spawned) == 1
    stage.run_spawned(last=1)
    assert stage.window() is not old
    stage.member._remove(old)
    assert stage.window() is not old


def test_a_reset_counts_while_a_handler_holds_up_an_earlier_one() -> None:
    stage = entered()
    stage.fill(A0, 3)
    window = stage.window()
    delivery = window.take(2, stage.now)
    assert delivery is not None
    stage.run(stage.member.reset({A0: 9}))
    stage.run(stage.member.reset({A0: 1}))
    assert stage.run(stage.member.commit([window], 103))
    stage.push.finish(delivery)
    stage.run_spawned()
    assert stage.committed[A0] == 0
    assert stage.window().position == 1
    assert stage.run(stage.member.commit([stage.window()], 103))
    assert stage.committed[A0] == 1


def test_a_reset_is_not_undone_by_a_queue_that_is_given_up() -> None:
    stage = entered()
    stage.fill(A0, 3)
    window = stage.window()
    delivery = window.take(2, stage.now)
    assert delivery is not None
    stage.run(stage.member.release([window]))
    stage.run(stage.member.reset({A0: 0}))
    stage.push.finish(delivery)
    stage.run_spawned()
    assert A0 not in stage.member.windows
    assert stage.committed[A0] == 0
    assert A0 not in stage.member.unsaved


def test_a_reset_is_not_undone_by_a_member_that_leaves() -> None:
    stage = entered()
    stage.fill(A0, 3)
    stage.fill(A1, 3)
    deliveries = [stage.window(queue).take(2, stage.now) for queue in (A0, A1)]
    reset = stage.member.reset({A0: 0})

    def end() -> None:
        stage.run(reset)
        for delivery in deliveries:
            assert delivery is not None
            stage.push.finish(delivery)

    stage.on_wait.append(end)
    assert stage.run(stage.push.exit(stage.now + 30)) == []
    assert (stage.committed[A0], stage.committed[A1]) == (0, 2)


def test_a_move_ends_with_the_member() -> None:
    stage = entered()
    stage.run(stage.member.move(stage.window(), stage.window().position, "moved"))
    window = stage.window()
    stage.member.closing.fire()
    stage.run_spawned()
    assert stage.window() is window


# ---- timers ----------------------------------------------------------------------------------


def looped(stage: Stage, name: str, rounds: int) -> None:
    """Run a loop of the background for so many rounds."""
    flow = stage.member.keep_running(name, stage.member.loops()[name])

    def close() -> None:
        stage.member.closing.fire()
        stage.member._doubt.fire()

    stage.on_wait[:] = [lambda: None] * rounds + [close]
    stage.run(flow)


def test_positions_are_committed_again_and_again() -> None:
    stage = entered(commit_interval=7)
    stage.fill(A0, 2)
    stage.work()
    stage.window(A1).next_offset = stage.window(A0).next_offset
    stage.window(A1).locked_until = 0.0  # another member may have it
    looped(stage, "commit", 1)
    assert stage.committed[A0] == 2
    assert stage.committed[A1] == 0
    assert stage.asked(COMMIT) == 1


def test_commits_that_fail_are_published_once_and_counted() -> None:
    """Complaint: a commit is one-way and lost."""
    stage = entered()
    stage.fill(A0, 2)
    stage.work()
    stage.servers.answer("a:1", COMMIT, ConnectFailed("a:1", "away"))
    looped(stage, "commit", 2)
    (notice,) = stage.published(CommitFailed)
    assert notice.error.brief == "away"
    assert stage.member.counts.commits_failed == 2
    assert stage.member.last_commit_error is not None
    stage.open("a")
    assert stage.run(stage.member.commit([stage.window()], stage.now + 3))
    assert stage.member.last_commit_error is None


def test_a_stuck_handler_is_reported_once_with_its_message() -> None:
    """Complaint: a queue stops for ever, and nothing is in the log."""
    stage = entered(handle_timeout=10)
    (message, _) = stage.fill(A0, 2)
    stage.window().take(1, stage.now)
    looped(stage, "watch", 15)
    (notice,) = stage.published(HandlerStuck)
    assert notice.message == message
    assert 10 < notice.age <= 11


def test_locks_are_renewed() -> None:
    stage = entered(lock_interval=5)
    stage.fill(A0, 1)
    stage.push._line.clear()
    stage.window().is_queued = False
    looped(stage, "lock renewal", 1)
    assert stage.queues_asked(LOCK) == [{A0, A1, R0}]
    assert stage.window().locked_until == 135
    assert stage.window().is_queued


def test_a_lock_of_another_member_ends_the_window_without_a_commit() -> None:
    stage = entered()
    stage.fill(A0, 2)
    stage.work()
    stage.refused = {A0}
    looped(stage, "lock renewal", 2)
    assert stage.published(LockLost) == [LockLost("billing", A0)]
    window = stage.window()
    assert (window.is_stopped, window.is_lost) == (True, True)
    stage.member.closing = Signal()
    stage.run_spawned()
    assert A0 not in stage.member.windows
    assert stage.committed[A0] == 0
    assert stage.asked(UNLOCK) == 0


def test_a_queue_that_was_taken_without_its_lock_is_not_lost_by_that() -> None:
    stage = entered()
    window = stage.window()
    window.has_lock, window.locked_until = False, 0.0
    stage.refused = {A0}
    looped(stage, "lock renewal", 1)
    assert not stage.published(LockLost)
    assert not window.is_stopped


def test_after_a_lost_connection_locks_are_renewed_and_offsets_committed() -> None:
    stage = entered(mode="orderly")
    stage.servers.core.on_disconnect("b:1")
    assert stage.window().is_sure
    stage.servers.core.on_disconnect("a:1")
    window = stage.window()
    assert (window.locked_until, window.committed) == (0.0, None)
    stage.fill(A0, 1)
    assert stage.push._take() is None  # without a lock that is trusted
    stage.servers.answer("a:1", LOCK, ConnectFailed("a:1", "away"))
    before = stage.now
    looped(stage, "lock renewal", 3)
    assert stage.now - before <= 4.0  # at once, then each second
    stage.open("a")
    stage.member.closing = Signal()
    looped(stage, "lock renewal", 1)
    assert stage.window().is_sure
    assert stage.push._take() is not None


def test_a_member_that_leaves_after_a_cut_commits_nothing_for_the_next_owner() -> None:
    """Found by the simulation: its commit put the group back behind what another one had read."""
    stage = entered()
    stage.fill(A0, 1)
    stage.fill(A1, 1)
    stage.work()
    stage.servers.core.on_disconnect("a:1")
    stage.refused = {A0}
    stage.committed[A0] = 5
    stage.run(stage.push.exit(stage.now + 5))
    assert stage.published(LockLost) == [LockLost("billing", A0)]
    assert (stage.committed[A0], stage.committed[A1]) == (5, 1)


def test_it_neither_commits_what_another_member_had_and_gave_back() -> None:
    stage = entered()
    stage.fill(A0, 1)
    stage.work()
    stage.servers.core.on_disconnect("a:1")
    stage.committed[A0] = 5
    stage.run(stage.push.exit(stage.now + 5))
    assert stage.committed[A0] == 5


@pytest.mark.parametrize("is_saved", [True, False])
def test_after_a_cut_it_goes_on_where_another_member_has_read_on(is_saved: bool) -> None:
    """Unless it was reset to an earlier place, which is not committed yet."""
    stage = entered()
    stage.window().is_saved = is_saved
    stage.servers.core.on_disconnect("a:1")
    stage.committed[A0] = 5
    looped(stage, "lock renewal", 2)
    assert stage.window().is_lost is is_saved
    assert stage.window().is_stopped is is_saved


def test_a_lost_queue_is_stopped_before_others_are_asked_for() -> None:
    """Found by the simulation: another member handled it meanwhile."""
    stage = entered(mode="orderly")
    stage.servers.core.on_disconnect("a:1")
    stage.refused = {A0}
    stopped: list[tuple[bool, bool]] = []

    def progress(command: Command) -> Command:
        stopped.append((stage.window(A0).is_stopped, stage.window(A1).locked_until > 0))
        return stage._progress(command, "a")

    stage.servers.answer("a:1", RequestCode.QUERY_CONSUMER_OFFSET, progress)
    looped(stage, "lock renewal", 2)
    assert stopped[0] == (True, False)  # and the others wait until it is known that they are ours
    assert stage.window(A1).locked_until > 0


@pytest.mark.parametrize("lost_with", [LOCK, RequestCode.QUERY_CONSUMER_OFFSET])
def test_an_answer_from_before_a_lost_connection_confirms_no_lock(lost_with: RequestCode) -> None:
    """Found by the simulation: the broker had freed the lock, and a handler began without it."""
    stage = entered(mode="orderly")
    stage.fill(A0, 1)
    stage.servers.core.on_disconnect("a:1")
    stage.member._doubt = Signal()

    def answer(command: Command) -> Command:
        stage.servers.core.on_disconnect("a:1")
        return stage._lock(command) if lost_with == LOCK else stage._progress(command, "a")

    stage.servers.answer("a:1", lost_with, answer)
    stage.run(stage.member._renew_locks())
    assert not stage.window().is_sure
    assert stage.push._take() is None
    assert stage.member._doubt.is_fired  # they are renewed at once
    stage.open("a")
    stage.run(stage.member._renew_locks())
    assert stage.window().is_sure
    assert stage.push._take() is not None


def test_the_locks_of_one_broker_are_renewed_while_another_one_is_lost() -> None:
    stage = Stage(start="earliest", brokers="ab", mode="orderly")
    stage.enter()
    b0 = QueueId("orders", "b", 0)
    stage.servers.clock.seconds += 5

    def answer(command: Command) -> Command:
        stage.servers.core.on_disconnect("b:1")
        return stage._lock(command)

    stage.servers.answer("b:1", LOCK, answer)
    stage.run(stage.member._renew_locks())
    assert stage.window(A0).locked_until == stage.now + 30
    assert stage.window(b0).locked_until == 0


@pytest.mark.parametrize("is_early", [True, False])
def test_a_window_that_is_moved_has_the_doubts_of_the_one_before(is_early: bool) -> None:
    stage = entered(mode="orderly")

    def lose() -> None:
        stage.servers.core.on_disconnect("a:1")

    if is_early:
        lose()
    else:
        stage.member._spawn = lambda _: lose()
    stage.run(stage.member.replace_window(stage.window(), QueueOffset(7)))
    window = stage.window()
    assert (window.position, window.has_lock, window.is_sure) == (7, True, False)


def test_a_lock_stays_in_doubt_while_the_broker_does_not_say_what_it_has() -> None:
    stage = entered()
    stage.servers.core.on_disconnect("a:1")
    failing = ConnectFailed("a:1", "away")
    stage.servers.answer("a:1", RequestCode.QUERY_CONSUMER_OFFSET, failing)
    looped(stage, "lock renewal", 2)
    assert not stage.window().is_sure
    assert not stage.window().is_lost


def test_broadcast_has_no_locks_to_doubt() -> None:
    stage = entered(model="broadcast")
    stage.window().committed = stage.window().position
    stage.servers.core.on_disconnect("a:1")
    assert stage.window().committed is not None
    assert len(stage.member.background()) == 3


def test_a_queue_is_not_locked_again_while_it_is_given_back() -> None:
    stage = entered()
    stage.member._renewal = Signal()
    stage.run(stage.member.release([stage.window()]))
    (release,) = stage.spawned
    effect: Any = next(release)
    while not (isinstance(effect, Wait) and effect.signal is stage.member._renewal):
        effect = release.send(stage.servers.perform(effect))
    assert stage.window().is_unlocked
    looped(stage, "lock renewal", 1)
    assert stage.queues_asked(LOCK) == [{A1, R0}]


def test_a_loop_that_fails_is_reported_and_starts_again() -> None:
    stage = entered()
    runs: list[int] = []

    def broken() -> Flow[None]:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("bad")
        yield Pause(0)

    stage.run(stage.member.keep_running("fetching", broken))
    assert len(runs) == 2
    assert stage.servers.interpreter.pauses == [1.0, 0]
    (notice,) = stage.published(UserCodeFailed)
    assert notice.where == "fetching of group billing"


def test_a_renewal_that_fails_does_not_hold_up_the_end() -> None:
    stage = entered()
    flow = stage.member._lock_loop()
    next(flow)
    stage.member._doubt.fire()
    assert isinstance(flow.send(True), Gather)
    assert not stage.member._renewal.is_fired
    with pytest.raises(ValueError, match="bad"):
        flow.throw(ValueError("bad"))
    assert stage.member._renewal.is_fired


def test_a_window_that_fetches_again_is_published() -> None:
    stage = entered()
    window = stage.window()
    window.failure = ConnectFailed("a:1", "away")
    window.failing_since = 1.0
    stage.run(stage.member.note_recovery(window))
    assert window.failure is None


def test_leaving_again_does_nothing() -> None:
    stage = entered()
    stage.run(stage.push.exit(stage.now + 5))
    stage.servers.calls.clear()
    assert stage.run(stage.push.exit(stage.now + 5)) == []
    assert stage.asked(COMMIT) == stage.asked(UNLOCK) == 0
