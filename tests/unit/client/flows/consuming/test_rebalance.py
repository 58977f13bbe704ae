"""Which queues a member has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.allocation import Average
from downrange.client.flows.consuming.rebalance import rebalance, rebalance_loop
from downrange.client.flows.consuming.subscriptions import filters_of
from downrange.client.flows.effects import Signal, Wait
from downrange.client.flows.notices import (
    AssignmentChanged,
    ClientIdTaken,
    HandoverEnded,
    SharesFound,
    SharesMissing,
    SubscriptionsDiffer,
    TopicUnread,
    UserCodeFailed,
)
from downrange.errors import ConnectFailed
from downrange.model import QueueId
from downrange.wire.bodies import BrokerReplicas, ClusterBody
from downrange.wire.codes import Permission, RequestCode, ResponseCode
from tests.unit.client.flows.consuming.group_stage import A0, A1, ME, R0, TOPIC, Stage
from tests.unit.client.flows.fake_servers import NAME_SERVER, refusal, reply, route

if TYPE_CHECKING:
    from downrange.wire.command import Command

OTHER = "10.0.0.2@9"
CLUSTER = RequestCode.GET_BROKER_CLUSTER_INFO
CONNECTIONS = RequestCode.GET_CONSUMER_CONNECTION_LIST
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


def test_thousands_of_queues_begin_in_parts_and_their_pulls_are_held_longer() -> None:
    """All at once a broker would be busy with their first pulls, and heartbeats would be late."""
    stage = Stage(start="earliest", queues=2000, suspend=15.0)
    parts: list[int] = []
    stage.member.on_assigned = lambda queues: parts.append(len(queues))
    stage.enter()
    assert parts == [256] * 7 + [208, 1]  # the last one is that of the retry topic
    assert len(stage.member.windows) == 2001
    assert stage.member.suspend == 20.01  # a hundred per second, not all within 15 s


@pytest.mark.parametrize(("count", "seconds"), [(1, 15.0), (1500, 15.0), (90_000, 120.0)])
def test_how_long_pulls_are_held(count: int, seconds: float) -> None:
    stage = Stage(suspend=15.0)
    stage.member.windows = dict.fromkeys(QueueId(TOPIC, "a", n) for n in range(count))  # type: ignore[assignment]
    assert stage.member.suspend == seconds


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


def test_queues_of_a_topic_that_was_unsubscribed_are_no_problem() -> None:
    stage = Stage()
    away = ConnectFailed("a:1", "away")
    stage.servers.answer("a:1", RequestCode.QUERY_CONSUMER_OFFSET, away)
    stage.servers.answer_route("other", route("a", queues=1))
    stage.enter()
    assert len(stage.member.problems()) == 3
    stage.open("a")
    stage.member.subscriptions.replace(filters_of("other"), 1)
    assert rebalanced(stage)
    assert not stage.member.problems()


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
    stage.servers.clock.seconds += 10
    assert not rebalanced(stage)
    assert "no name server answered" in stage.member.problems()[0]


def test_a_topic_without_masters_is_reported_when_that_lasts() -> None:
    stage = Stage()
    stage.servers.answer_route(TOPIC, route("a", without_master="a"))
    stage.enter()
    assert list(stage.member.windows) == [R0]
    assert not stage.member.problems()
    stage.servers.clock.seconds += 10
    assert not rebalanced(stage)
    reason = "none of its brokers has a master now: a"
    assert [notice.reason for notice in stage.published(SharesMissing)] == [reason]


def test_a_strategy_of_the_user_that_fails_is_reported_once() -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("bad")

    stage = Stage(strategy=broken)
    stage.enter()
    for _ in range(3):
        assert not rebalanced(stage)
    assert not stage.member.windows
    (notice,) = stage.published(SharesMissing)
    assert (notice.topic, str(notice.error)) == (TOPIC, "bad")
    assert not stage.published(UserCodeFailed)
    assert stage.servers.core.user_errors == 8
    (problem,) = stage.member.problems()
    assert problem.startswith(f"the queues of {TOPIC}, %RETRY%billing cannot be divided")
    assert problem.endswith("the allocation strategy failed: ValueError('bad')")
    stage.member.strategy = Average()
    assert rebalanced(stage)
    assert stage.published(SharesFound) == [SharesFound("billing")]
    assert not stage.member.problems()


def no_group(remark: str = "subscription group [billing] does not exist, \nSee FAQ") -> Command:
    return refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)


def test_a_group_that_does_not_exist_is_reported_at_once() -> None:
    """Complaint: a queue stops, and nothing is in the log."""
    stage = Stage()
    stage.members = []  # the broker leaves the group out of heartbeats, without a word
    stage.servers.answer("a:1", RequestCode.PULL_MESSAGE, no_group())
    stage.enter()
    assert not rebalanced(stage)
    (notice,) = stage.published(SharesMissing)
    reason = (
        "a:1 does not have group 'billing' (code 26).\n"
        "  Create it with `downrange group create billing`."
    )
    assert notice == SharesMissing("billing", TOPIC, reason)
    assert reason in stage.member.problems()[0]
    stage.members = [ME]
    assert rebalanced(stage)
    assert stage.published(SharesFound) == [SharesFound("billing")]
    assert not stage.member.problems()


MEMBERS, BEAT = RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.HEART_BEAT


@pytest.mark.parametrize(
    ("code", "refused", "reason"),
    [
        (
            BEAT,
            refusal(ResponseCode.SYSTEM_ERROR, "full"),
            "a heartbeat failed: a:1 answered with code 1: full",
        ),
        (
            MEMBERS,
            refusal(ResponseCode.SYSTEM_ERROR, "full"),
            "does not tell the members of the group: a:1 answered with code 1: full",
        ),
        (MEMBERS, refusal(ResponseCode.CONSUMER_NOT_ONLINE, "late"), "code 206: late"),
        (MEMBERS, ConnectFailed("a:1", "away"), "away"),
    ],
)
def test_brokers_that_refuse_a_member_are_reported_when_that_lasts(
    code: RequestCode, refused: Any, reason: str
) -> None:
    stage = Stage()
    stage.members = []
    stage.servers.answer("a:1", code, refused)
    stage.enter()
    stage.servers.clock.seconds += 9
    assert not rebalanced(stage)
    assert not stage.member.problems()  # right after the start that is normal
    stage.servers.clock.seconds += 1
    assert not rebalanced(stage)
    assert not rebalanced(stage)
    (notice,) = stage.published(SharesMissing)
    assert reason in notice.reason
    stage.open("a")
    stage.members = [ME]
    assert rebalanced(stage)
    assert stage.published(SharesFound)


def test_a_heartbeat_that_is_not_permitted_is_reported_at_once() -> None:
    stage = Stage()
    stage.members = []
    stage.servers.answer("a:1", BEAT, refusal(ResponseCode.NO_PERMISSION, "no right"))
    stage.enter()
    assert "code 16: no right" in stage.member.problems()[0]


def test_a_broker_that_leaves_this_member_out_is_reported_when_that_lasts() -> None:
    stage = Stage(brokers="ab")
    stage.members = [OTHER]
    stage.enter()
    stage.servers.clock.seconds += 10
    assert not rebalanced(stage)
    reason = "broker a:1 does not have this client among the members of the group"
    assert [notice.reason for notice in stage.published(SharesMissing)] == [reason]


def test_a_member_that_leaves_reports_nothing() -> None:
    stage = entered()
    stage.member.closing.fire()
    stage.members = []
    stage.servers.answer("a:1", RequestCode.PULL_MESSAGE, no_group())
    assert not rebalanced(stage)
    assert not stage.published(SharesMissing)


def test_a_route_that_is_lost_meanwhile_is_not_pulled() -> None:
    from downrange.client.flows.consuming.rebalance import _missing_group

    stage = entered()
    stage.servers.core.routes._routes.clear()
    assert stage.run(_missing_group(stage.member, TOPIC)) is None


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


def test_a_topic_without_queues_is_reported_once() -> None:
    """Complaint: a misspelt topic, and nothing is in the log."""
    stage = Stage()
    stage.servers.answer_route(TOPIC, None)
    stage.enter()
    assert not rebalanced(stage)
    list_step = "`downrange topic list` shows the topics"
    missing = TopicUnread("billing", TOPIC, "does not exist", list_step)
    assert stage.published(TopicUnread) == [missing]
    assert stage.member.problems() == ["topic orders does not exist"]
    stage.servers.answer_route(TOPIC, route("a", perm=Permission.WRITE))
    assert rebalanced(stage)
    assert rebalanced(stage)
    assert stage.member.problems() == ["topic orders has no queue that may be read"]
    show_step = "`downrange topic show orders` shows why"
    closed = TopicUnread("billing", TOPIC, "has no queue that may be read", show_step)
    assert stage.published(TopicUnread) == [missing, closed]
    stage.servers.answer_route("refunds", route("a", queues=1))
    stage.run(stage.member.resubscribe(filters_of("refunds"), stage.now + 3))
    assert not stage.member.problems()


def test_without_any_broker_a_topic_is_not_said_to_be_missing() -> None:
    stage = Stage()
    stage.servers.answer_route(TOPIC, None)
    brokers = ClusterBody()
    stage.servers.answer(NAME_SERVER, CLUSTER, lambda _: reply(body=brokers))
    stage.enter()
    assert stage.member.problems() == ["topic orders has no route: no broker is registered"]
    brokers = ClusterBody(broker_addr_table={"a": BrokerReplicas(broker_name="a", broker_addrs={})})
    assert not rebalanced(stage)
    assert stage.member.problems() == ["topic orders does not exist"]
    steps = [notice.next_step for notice in stage.published(TopicUnread)]
    assert steps == [
        "Start a broker, or wait until it has registered; `downrange doctor ns:9876` shows more",
        "`downrange topic list` shows the topics",
    ]


def test_a_topic_that_is_created_later_is_read() -> None:
    stage = Stage()
    stage.servers.answer_route(TOPIC, None)
    stage.servers.answer_route("%RETRY%billing", None)  # it was not created by mistake
    stage.enter()
    assert [notice.topic for notice in stage.published(TopicUnread)] == [TOPIC]
    stage.servers.answer_route(TOPIC, route("a", queues=2))
    rebalanced(stage)
    assert list(stage.member.windows) == [A0, A1]
    assert not stage.member.problems()


def test_another_client_with_the_same_id_is_reported_once() -> None:
    """Complaint: two containers, same client id, some queues never read."""
    stage = entered()
    here, there = "10.0.0.1:5", "10.0.0.2:6"
    for addresses in ([here], [here, "old:1"], [here, "new:1"]):  # a connection that ends
        stage.connections = addresses
        rebalanced(stage)
    assert not stage.published(ClientIdTaken)
    stage.connections = [there, here]
    for _ in range(3):
        rebalanced(stage)
    taken = ClientIdTaken("billing", ME, (here, there))
    assert stage.published(ClientIdTaken) == [taken]
    stage.connections = [here]
    rebalanced(stage)
    stage.connections = [there, here]
    rebalanced(stage)
    rebalanced(stage)
    assert stage.published(ClientIdTaken) == [taken] * 2


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


def test_subscriptions_are_not_compared_while_they_are_changed() -> None:
    """The broker has those before, which was taken for those of another member."""
    stage = entered()
    before = stage.asked(CONNECTIONS)
    stage.subscribed = {TOPIC: "new"}
    stage.member.registering = Signal()
    rebalanced(stage)
    assert stage.asked(CONNECTIONS) == before
    stage.member.registering.fire()

    def change(command: Command) -> Command:
        stage.member.registering = Signal()
        return stage._connections(command)

    stage.servers.answer("a:1", CONNECTIONS, change)
    rebalanced(stage)
    assert stage.asked(CONNECTIONS) == before + 1
    assert stage.member.mismatch is None


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


# ---- after a broker's end --------------------------------------------------------------------


def test_a_broker_that_returned_is_left_to_the_members_that_have_its_queues() -> None:
    """It has forgotten locks and commits: another member would handle their messages again."""
    stage = Stage(start="earliest")
    stage.members = [OTHER, ME]
    stage.enter()
    stage.servers.core.on_disconnect("a:1")
    stage.members = [ME]  # the other one has not registered again yet
    stage.run(stage.member._renew_locks())
    assert not rebalanced(stage)
    assert list(stage.member.windows) == [A0, R0]
    stage.servers.clock.seconds += 2.0
    assert rebalanced(stage)
    assert list(stage.member.windows) == [A0, R0, A1]


@pytest.mark.parametrize("case", ["lost", "slow"])
def test_a_lock_is_in_doubt_if_its_connection_ends_before_the_queue_begins(case: str) -> None:
    """And if the lock is too old by then: the broker may have given it to another member."""
    stage = Stage(start="earliest", mode="orderly")

    def assigned(_: list[QueueId]) -> None:
        if case == "lost":
            stage.servers.core.on_disconnect("a:1")
        else:
            stage.servers.clock.seconds += 31

    stage.member.on_assigned = assigned
    stage.enter()
    window = stage.window()
    assert (window.has_lock, window.is_sure, window.committed) == (True, False, None)
    stage.fill(A0, 1)
    assert stage.push._take() is None
    assert stage.member._doubt.is_fired  # it is renewed at once
    stage.run(stage.member._renew_locks())
    assert stage.window().is_sure
    assert stage.push._take() is not None


def lost_at_five(stage: Stage) -> None:
    """Handle five messages of a queue, whose lock then goes to another member."""
    stage.fill(A0, 5)
    stage.work()
    stage.refused = {A0}
    stage.spawned.clear()
    stage.run(stage.member._renew_locks())
    stage.run_spawned()
    assert A0 not in stage.member.windows
    stage.refused = set()


def test_a_member_remembers_what_it_has_handled_and_not_committed() -> None:
    """Complaint: after a broker's kill messages since its last saved offsets came again."""
    stage = entered()
    lost_at_five(stage)
    stage.committed[A0] = 2  # the other member began at what the broker had saved
    rebalanced(stage)
    assert stage.window().position == 5
    taken = stage.published(AssignmentChanged)[-1].taken
    assert taken == {A0: (5, "handled before")}
    stage.run(stage.member.commit([stage.window()], stage.now + 3))
    assert stage.committed[A0] == 5


@pytest.mark.parametrize("case", ["later", "further", "reset"])
def test_it_does_not_go_by_its_memory_for_ever(case: str) -> None:
    stage = entered()
    lost_at_five(stage)
    stage.committed[A0] = 2
    if case == "later":
        stage.servers.clock.seconds += 61.0
    elif case == "further":
        stage.committed[A0] = 7
    else:
        stage.run(stage.member.reset({A0: 2}))
    rebalanced(stage)
    assert stage.window().position == (7 if case == "further" else 2)


def test_a_call_can_wait_for_the_rebalance_that_begins_after_it() -> None:
    stage = entered()
    member = stage.member
    running = member.upcoming
    seen: list[bool] = []

    def look(command: Command) -> Command:
        seen.append(running.is_fired or member.upcoming is running)
        return stage._members(command)

    stage.servers.answer("a:1", RequestCode.GET_CONSUMER_LIST_BY_GROUP, look)
    deadlines(stage, member.changed.fire)
    assert set(seen) == {False}
    assert running.is_fired
    assert not member.upcoming.is_fired
