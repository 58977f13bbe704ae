"""Findings about brokers and groups; what is asked for is given by each test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from downrange.cli.doctor import doctor
from downrange.client.flows.admin import health_checks, stuck_queues
from downrange.client.flows.admin.clusters import BrokerFacts, ClusterFacts
from downrange.client.flows.admin.health_checks import GROUPS_MAX, check_cluster
from downrange.client.flows.admin.reports import (
    GroupLag,
    GroupMembers,
    GroupSummary,
    Member,
    MemberQueue,
    MemberRates,
    QueueLag,
    RunningState,
    TopicFilter,
)
from downrange.client.flows.admin.stuck_queues import RECHECK_AFTER
from downrange.client.flows.admin.topics import QueueState
from downrange.errors import NoPermission, RocketMQError, RouteNotFound, ServerError
from downrange.model import QueueId
from downrange.options.consumers import DEFAULT_COMMIT
from downrange.wire.codes import ResponseCode
from tests.unit.client.flows.fake_servers import FakeServers

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.admin.doctor import Finding
    from downrange.client.flows.effects import Flow

QUEUE = QueueId("orders", "a", 0)


class Cluster:
    """What a cluster answers; an error is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.servers = FakeServers()
        self.gone: RocketMQError | None = None
        self.figures: Any = {}
        self.groups: Any = []
        self.lags: dict[str, list[Any]] = {}
        self.members: dict[str, Any] = {}
        self.letters: dict[str, Any] = {}
        self.states: list[Any] = []
        self.notes: list[str] = []
        for name, answer in (
            ("cluster_facts", self._facts),
            ("broker_figures", self._next_figures),
            ("list_groups", lambda: self.groups),
            ("group_members", lambda group: self.members[group]),
            ("topic_stats", lambda topic: self.letters.get(topic, _no_route(topic))),
        ):
            monkeypatch.setattr(health_checks, name, _flow_of(answer))
        next_lag = _flow_of(lambda group: self.lags[group].pop(0))
        for module in (health_checks, stuck_queues):
            monkeypatch.setattr(module, "group_lag", next_lag)
        monkeypatch.setattr(stuck_queues, "member_states", _flow_of(self._next_states))

    def _facts(self) -> Any:
        """Return a broker for each name of the figures; "b" alone if there are no names."""
        if self.gone is not None:
            return self.gone
        names = self.figures if isinstance(self.figures, dict) else "b"
        brokers = tuple(BrokerFacts(name, "main", {0: f"{name}:1"}) for name in names)
        return ClusterFacts({}, (*brokers, BrokerFacts("replica", "main", {1: "r:1"})))

    def _next_figures(self, broker: str) -> Any:
        """Return the figures of a broker; those of a list one after the other."""
        found = self.figures[broker] if isinstance(self.figures, dict) else self.figures
        found = found.pop(0) if isinstance(found, list) else found
        return found if isinstance(found, RocketMQError) else {broker: found}

    def _next_states(self, group: str) -> Any:
        """Return what members say; the last one is repeated."""
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return found if isinstance(found, RocketMQError) else {found.client_id: found}

    def check(self, pause: float = 2.0, **options: Any) -> list[Finding]:
        flow = check_cluster(self.servers.core, pause=pause, notify=self.notes.append, **options)
        return list(self.servers.run(flow))

    def found(self, target: str) -> list[Finding]:
        return [each for each in self.check() if each.target == target]


def _no_route(topic: str) -> RouteNotFound:
    return RouteNotFound(topic, ["ns:9876"], "there is none")


def _flow_of(answer: Callable[..., Any]) -> Callable[..., Flow[Any]]:
    def ask(core: Any, *arguments: str, **options: Any) -> Flow[Any]:
        found = answer(*arguments)
        if isinstance(found, RocketMQError):
            raise found
        return found
        yield

    return ask


@pytest.fixture(name="cluster")
def _cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def lag(committed: int, end: int, age: float | None = None, owner: str | None = None) -> GroupLag:
    waited = None if age is None else timedelta(seconds=age)
    return GroupLag(
        group="g",
        queues=(QueueLag(queue=QUEUE, committed=committed, end=end, age=waited, owner=owner),),
    )


def group(name: str = "g", **given: Any) -> GroupSummary:
    facts: dict[str, Any] = {"members": 1, "lag": 5, "model": "clustering", **given}
    return GroupSummary(group=name, **facts)


def denied() -> NoPermission:
    return NoPermission(16, "no", "a:1", None)


# ---- brokers -----------------------------------------------------------------------------------


def test_figures_that_a_broker_does_not_have_are_no_finding(cluster: Cluster) -> None:
    cluster.figures = {"a": {}, "b": {"commitLogDiskRatio": "?", "runtime": "long", "x": "1"}}
    assert [each.name for each in cluster.check()] == ["groups"]


@pytest.mark.parametrize(("ratio", "is_ok"), [("0.79", True), ("0.80", False), ("0.97", False)])
def test_a_disk_is_full_from_a_ratio_on(cluster: Cluster, ratio: str, is_ok: bool) -> None:
    cluster.figures = {"a": {"commitLogDiskRatio": ratio}}
    (finding,) = cluster.found("broker a")
    assert (finding.name, finding.is_ok) == ("disk", is_ok)
    assert (finding.next_step is None) == is_ok


@pytest.mark.parametrize(
    ("off_ms", "text"),
    [
        (0, "agrees"),
        (-4_000, "agrees"),
        (60_000, "60 s ahead"),
        (-60_000, "59 s behind"),
    ],
)
def test_clocks_are_compared(cluster: Cluster, off_ms: int, text: str) -> None:
    cluster.servers.clock.seconds += 200_000
    now_ms = cluster.servers.clock.wall_ms()
    runtime = "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    started = now_ms - (((24 + 2) * 60 + 3) * 60 + 4) * 1000 + off_ms
    cluster.figures = {"a": {"bootTimestamp": str(started), "runtime": runtime}}
    (finding,) = cluster.found("broker a")
    assert text in finding.text
    assert finding.is_ok == (text == "agrees")


def test_what_an_account_may_not_ask_is_not_a_failure(cluster: Cluster) -> None:
    cluster.figures = cluster.groups = denied()
    findings = cluster.check()
    assert [(each.name, each.target, each.is_ok) for each in findings] == [
        ("access", "brokers", True),
        ("access", "groups", True),
    ]


def test_broker_that_has_just_started_is_asked_again(cluster: Cluster) -> None:
    early = ServerError(int(ResponseCode.SYSTEM_ERROR), "NoSuchElementException", "a:10911")
    cluster.figures = {"a": [early, early, {"commitLogDiskRatio": "0.5"}]}
    assert [(each.name, each.is_ok) for each in cluster.found("broker a")] == [("disk", True)]
    cluster.figures = [early] * 3
    assert [(each.name, each.is_ok) for each in cluster.found("broker b")] == [("answer", False)]
    assert cluster.figures == []


def test_a_broker_that_does_not_answer_does_not_hide_the_others(cluster: Cluster) -> None:
    gone = RocketMQError("no answer")
    cluster.figures = {"a": gone, "b": {"commitLogDiskRatio": "0.5"}, "c": denied()}
    found = [(each.name, each.target, each.is_ok) for each in cluster.check()]
    assert found[:3] == [
        ("answer", "broker a", False),
        ("disk", "broker b", True),
        ("access", "broker c", True),
    ]


def test_what_is_not_answered_is_a_failure(cluster: Cluster) -> None:
    cluster.figures = cluster.groups = RocketMQError("no answer")
    assert [(each.name, each.is_ok) for each in cluster.check()] == [("answer", False)] * 2
    cluster.gone = RocketMQError("no answer")
    (finding,) = cluster.found("brokers")
    assert (finding.name, finding.is_ok) == ("answer", False)


# ---- groups ------------------------------------------------------------------------------------


def behind(cluster: Cluster, *offsets: int) -> None:
    """Have one group whose offset is that, at one look after the other."""
    cluster.groups = [group()]
    cluster.lags["g"] = [
        lag(offset, 80, 61.0 + 2 * number) for number, offset in enumerate(offsets)
    ]


def state(cluster: Cluster, *, idle: float | None = None, **given: Any) -> RunningState:
    """Return what the member "me" says; its last message is so many seconds ago."""
    now = datetime.fromtimestamp(cluster.servers.clock.wall_ms() / 1000, UTC)
    facts: dict[str, Any] = {"queue": QUEUE, "oldest": 3, "buffered": 5, "committed": 3}
    facts["consumed_at"] = None if idle is None else now - timedelta(seconds=idle)
    facts |= {
        name: given.pop(name) for name in list(given) if name in MemberQueue.__struct_fields__
    }
    return RunningState(client_id="me", queues=(MemberQueue(**facts),), **given)


def rates(consumed: float, topic: str = "orders") -> tuple[MemberRates, ...]:
    return (MemberRates(topic=topic, consumed=consumed, failed=1.0),)


def test_the_second_look_comes_after_two_commits() -> None:
    assert RECHECK_AFTER > 2 * DEFAULT_COMMIT
    (option,) = [each for each in doctor.params if each.name == "recheck"]
    assert option.default == RECHECK_AFTER


def test_a_queue_that_moves_with_the_next_commit_is_not_stuck(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 15)
    cluster.states = [state(cluster)]
    (finding,) = cluster.found("group g")
    assert (finding.name, finding.is_ok) == ("lag", True)
    assert finding.text == "65 messages wait, and it moves on"
    assert cluster.servers.interpreter.pauses == [2.0, RECHECK_AFTER]
    (note,) = cluster.notes
    assert note.startswith("1 queue of group g did not move; looking again in 12 s, because")


def test_the_wait_tells_how_much_did_not_move(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 15)
    cluster.groups.append(group("h"))
    cluster.lags["h"] = list(cluster.lags["g"])
    cluster.states = [state(cluster)]
    cluster.check()
    assert cluster.notes[0].startswith("2 queues of 2 groups did not move")


def test_without_a_time_to_wait_nothing_is_told(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 3)
    cluster.states = [state(cluster)]
    (_, finding) = cluster.check(pause=0, recheck=0)
    assert (finding.name, finding.is_ok) == ("stuck", False)
    assert (cluster.notes, cluster.servers.interpreter.pauses) == ([], [])


def test_a_wait_without_a_listener(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 15)
    cluster.states = [state(cluster)]
    found = cluster.servers.run(check_cluster(cluster.servers.core, pause=2.0))
    assert [each.name for each in found] == ["groups", "lag"]


@pytest.mark.parametrize("third", [lag(80, 80), GroupLag(group="g")])
def test_a_queue_that_is_empty_or_gone_at_the_last_look(cluster: Cluster, third: GroupLag) -> None:
    behind(cluster, 3, 3)
    cluster.lags["g"].append(third)
    cluster.states = [state(cluster)]
    (finding,) = cluster.found("group g")
    assert finding.text == "0 messages wait, and it moves on"


def test_a_queue_that_stands_still_without_an_owner(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 3)
    cluster.states = [RunningState(client_id="me")]
    (finding,) = cluster.found("group g")
    assert (finding.name, finding.is_ok) == ("stuck", False)
    assert "stands still at 3: its oldest message has waited for 0:01:05" in finding.text
    assert "the offset did not move in 14 s, and no member that answers reads it" in finding.text
    assert finding.next_step is not None
    assert "reset" not in finding.next_step


def test_a_member_that_gave_the_queue_up_is_not_its_owner(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 3)
    cluster.states = [state(cluster, is_given_up=True)]
    (finding,) = cluster.found("group g")
    assert "no member that answers reads it" in finding.text


def test_a_queue_that_stands_still_with_an_owner(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 3)
    cluster.states = [state(cluster)]
    (finding,) = cluster.found("group g")
    assert (finding.name, finding.is_ok) == ("stuck", False)
    assert "me, which reads it, handled no message of it" in finding.text
    step = finding.next_step
    assert step is not None
    assert "group runinfo g me --stack" in step
    assert "downrange pull orders a:0 3 --count 1" in step
    assert "Only if that message can be lost for the group, skip it" in step
    assert "--queue a:0 --to 4 --apply" in step
    assert "may have done a part of its work" in step


ORDERLY = {"PROP_CONSUMEORDERLY": "true"}


@pytest.mark.parametrize(
    ("before", "after", "is_slow"),
    [
        # No message ended, and none for a minute.
        ({}, {}, False),
        ({"idle": 70}, {"idle": 84}, False),
        # The oldest one changed, or all are done.
        ({}, {"oldest": 4}, True),
        ({}, {"oldest": None, "buffered": 0}, True),
        ({"oldest": None, "buffered": 0}, {}, False),
        # It will commit what the broker does not know yet.
        ({}, {"committed": 4}, True),
        ({"committed": None}, {}, False),
        # The handler needs longer than the time between the looks.
        ({"idle": 16}, {"idle": 30}, True),
        ({}, {"idle": 1, "rates": rates(0.2)}, True),
        ({}, {"idle": 1, "rates": rates(0.0, "other")}, True),
        # It fails again and again.
        ({"idle": 3}, {"idle": 1, "rates": rates(0.0)}, False),
        ({"idle": 3}, {"idle": 1, "rates": rates(9.0), "properties": ORDERLY}, False),
        ({"idle": 16}, {"idle": 30, "rates": rates(0.1), "properties": ORDERLY}, True),
        ({}, {"idle": 1, "rates": rates(9.0), "properties": ORDERLY}, False),
        ({"idle": 16}, {"idle": 29.99, "rates": rates(9.0), "properties": ORDERLY}, True),
        # By pop there is no time of the last message.
        ({"by_pop": True, "buffered": 5}, {"by_pop": True, "buffered": 4}, True),
        ({"by_pop": True}, {"by_pop": True}, False),
        ({"by_pop": True}, {"by_pop": True, "rates": rates(0.2)}, True),
        ({"by_pop": True}, {"by_pop": True, "rates": rates(0.0)}, False),
    ],
)
def test_a_slow_queue_is_told_from_one_that_stands_still(
    cluster: Cluster, before: dict[str, Any], after: dict[str, Any], is_slow: bool
) -> None:
    behind(cluster, 3, 3, 3)
    cluster.states = [state(cluster, **before)]
    cluster.servers.clock.seconds += 14
    cluster.states.append(state(cluster, **after))
    cluster.servers.clock.seconds -= 14
    (finding,) = cluster.found("group g")
    assert (finding.name, finding.is_ok) == (("slow", True) if is_slow else ("stuck", False))


def test_a_slow_group_has_one_finding(cluster: Cluster) -> None:
    queues = [QueueId("orders", "a", number) for number in range(3)]
    cluster.groups = [group()]
    look = GroupLag(
        group="g",
        queues=tuple(
            QueueLag(queue=queue, committed=3, end=8, age=timedelta(seconds=61 + queue.number))
            for queue in queues
        ),
    )
    cluster.lags["g"] = [look] * 3
    cluster.states = [
        RunningState(
            client_id="me",
            queues=tuple(MemberQueue(queue=queue, oldest=oldest) for queue in queues),
        )
        for oldest in (3, 4)
    ]
    (finding,) = cluster.found("group g")
    assert finding.text == (
        "queue 2 of orders on a is slow: its offset 3 did not move in 14 s, and its oldest message "
        "has waited for 0:01:03, but me handles messages of it, and so for 2 more queues"
    )
    assert finding.next_step == "how long a message takes: `downrange group runinfo g me`"


def test_a_member_that_answered_only_once(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 3)
    cluster.states = [RocketMQError("no answer"), state(cluster, idle=1)]
    (finding,) = cluster.found("group g")
    assert finding.name == "slow"


def test_a_last_look_that_fails_is_told(cluster: Cluster) -> None:
    behind(cluster, 3, 3, 3)
    cluster.states = [state(cluster), RocketMQError("no answer")]
    (finding,) = cluster.found("group g")
    assert (finding.name, finding.is_ok) == ("answer", False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lag(3, 8, 61.0), lag(4, 8, 61.0)),  # it moved
        (lag(3, 8, 1.0), lag(3, 8, 3.0)),  # its message is young
        (lag(3, 8), lag(3, 8)),  # its age is not known
        (lag(3, 8), lag(3, 20)),  # it grew by little
    ],
)
def test_a_lag_that_is_usual_is_no_failure(
    cluster: Cluster, first: GroupLag, second: GroupLag
) -> None:
    cluster.groups = [group()]
    cluster.lags["g"] = [first, second]
    (finding,) = cluster.found("group g")
    assert (finding.name, finding.is_ok) == ("lag", True)


def test_a_queue_that_was_emptied_is_no_failure(cluster: Cluster) -> None:
    cluster.groups = [group()]
    cluster.lags["g"] = [lag(3, 8, 61.0), lag(8, 8)]
    (finding,) = cluster.found("group g")
    assert finding.is_ok


def test_a_lag_that_grows(cluster: Cluster) -> None:
    cluster.groups = [group()]
    cluster.lags["g"] = [lag(3, 103), lag(4, 204)]
    (finding,) = cluster.found("group g")
    assert finding.text == "its lag grew from 100 to 200 messages in 2 s"
    assert not finding.is_ok


def test_a_group_without_members_is_told(cluster: Cluster) -> None:
    cluster.groups = [group(members=0)]
    cluster.lags["g"] = [lag(3, 8, 61.0), lag(3, 8, 63.0)]
    (finding,) = cluster.found("group g")
    assert finding.is_ok
    assert "no member is connected" in finding.text


def test_a_broadcast_group_has_no_lag_on_brokers(cluster: Cluster) -> None:
    cluster.groups = [group(model="broadcast"), group("done", lag=0)]
    assert [each.name for each in cluster.check(pause=0)] == ["groups"]


@pytest.mark.parametrize("position", [0, 1])
def test_a_lag_that_cannot_be_asked_for(cluster: Cluster, position: int) -> None:
    cluster.groups = [group()]
    answers: list[Any] = [lag(3, 8, 61.0), lag(3, 8, 63.0)]
    answers[position] = RocketMQError("no answer")
    cluster.lags["g"] = answers
    (finding,) = cluster.found("group g")
    assert (finding.name, finding.is_ok) == ("answer", False)


def test_members_that_read_differently(cluster: Cluster) -> None:
    cluster.groups = [group(members=2, lag=0), group("other", members=2, lag=0)]
    members = tuple(
        Member(client_id=tag, address="h:1", filters=(TopicFilter("orders", tag),))
        for tag in ("new", "paid")
    )
    cluster.members = {"g": GroupMembers(group="g", members=members), "other": RocketMQError("no")}
    (finding,) = [each for each in cluster.check() if each.name != "groups"]
    assert (finding.name, finding.target, finding.is_ok) == ("subscriptions", "group g", False)
    assert "new reads 'new', paid reads 'paid'" in finding.text


def test_many_groups_are_examined_in_part(cluster: Cluster) -> None:
    cluster.groups = [group(f"g{number:03}", lag=0) for number in range(GROUPS_MAX + 7)]
    cluster.groups += [GroupSummary(group="CID_RMQ_SYS_X", kind="system")]
    (finding,) = cluster.check()
    assert finding.text == f"{GROUPS_MAX} examined; 7 with smaller lags were left out"


# ---- dead letters ------------------------------------------------------------------------------


def letters(cluster: Cluster, age: timedelta, count: int = 2) -> list[QueueState]:
    now = datetime.fromtimestamp(cluster.servers.clock.wall_ms() / 1000, UTC)
    return [QueueState(QueueId("%DLQ%g", "a", 0), 0, count, now - age)]


@pytest.mark.parametrize(("minutes", "is_ok"), [(59, False), (61, True)])
def test_dead_letters_fail_for_an_hour(cluster: Cluster, minutes: int, is_ok: bool) -> None:
    cluster.groups = [group(lag=0)]
    cluster.letters["%DLQ%g"] = letters(cluster, timedelta(minutes=minutes))
    (finding,) = cluster.found("group g")
    assert (finding.name, finding.is_ok) == ("dead letters", is_ok)
    assert finding.text.startswith("2 dead letters, the last one at ")
    assert (finding.next_step is None) == is_ok


def test_an_empty_dead_letter_topic_is_no_finding(cluster: Cluster) -> None:
    cluster.groups = [group(lag=0)]
    cluster.letters["%DLQ%g"] = letters(cluster, timedelta(), 0)
    assert cluster.found("group g") == []
    cluster.letters["%DLQ%g"] = [QueueState(QueueId("%DLQ%g", "a", 0), 0, 3, None)]
    assert cluster.found("group g") == []


def test_dead_letters_that_cannot_be_asked_for(cluster: Cluster) -> None:
    cluster.groups = [group(lag=0)]
    cluster.letters["%DLQ%g"] = denied()
    (finding,) = cluster.found("group g, dead letters")
    assert (finding.name, finding.is_ok) == ("access", True)
