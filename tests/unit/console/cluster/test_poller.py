from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from downrange import GroupSummary, TopicName, TopicProgress, Unanswered
from downrange.console.cluster import limits
from downrange.console.cluster.poller import Poller, missing_notes
from downrange.console.cluster.problems import TooManyViewers
from downrange.console.cluster.shared_answer import SharedAnswer
from downrange.errors import ConnectFailed, server_error
from tests.unit.console.cluster.fake_admin import FakeAdmin, at, figures, message


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.second = 1000.0

    def __call__(self) -> float:
        return self.second


def poller_of(admin: FakeAdmin, clock: Clock | None = None) -> Poller:
    return Poller(cast("Any", admin), ("ns:9876",), poll_seconds=2.0, now=clock or Clock())


async def test_a_poll_reads_rates_storage_and_brokers() -> None:
    admin, clock = FakeAdmin(), Clock()
    admin.figures = {"a": figures(), "b": ConnectFailed("b:1", "connection refused")}
    poller = poller_of(admin, clock)
    await poller.poll()
    admin.figures["a"] = figures(msgPutTotalTodayNow="20", msgGetTotalTodayNow="10")
    clock.second += 2
    await poller.poll()
    page = poller.overview()
    assert page.state.is_up
    assert (page.state.since, page.state.checked_at, page.at) == (at(1000), at(1002), at(1002))
    assert (page.sent_rate, page.received_rate, page.stored_bytes) == (10.0, 5.0, 100)
    assert (page.brokers_up, [row.is_up for row in page.brokers]) == (1, [True, False])
    assert (page.disk_used, page.brokers[1].problem) == (0.25, "connection refused")
    assert page.recent.columns["sent"] == (None, 10.0)
    assert (page.lag, page.topic_count, page.dead_letters_last_hour) == (None, None, None)


async def test_a_cluster_that_goes_away_is_noticed_and_comes_back_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="downrange.console")
    admin, clock = FakeAdmin(), Clock()
    poller = poller_of(admin, clock)
    await poller.poll()
    admin.is_gone = True
    for _ in range(2):
        clock.second += 2
        await poller.poll()
    gone = poller.overview()
    assert (gone.state.is_up, gone.state.since) == (False, at(1002))
    assert (gone.state.problem, gone.state.checked_at) == ("connection refused", at(1004))
    assert (gone.at, gone.brokers_up, gone.brokers[0].is_up) == (at(1000), 0, False)
    assert gone.recent.columns["stored"] == (100.0, None, None)
    admin.is_gone = False
    clock.second += 2
    await poller.poll()
    assert (poller.state.is_up, poller.state.since) == (True, at(1006))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_cluster_without_a_broker_that_answers_is_gone() -> None:
    admin = FakeAdmin()
    admin.figures = {"a": ConnectFailed("a:1", "connection refused")}
    poller = poller_of(admin)
    await poller.poll()
    assert poller.state.problem == "no broker answers: connection refused"
    admin.figures = {}
    await poller.poll()
    assert poller.state.problem == "no broker is registered at the name server"


async def test_a_cluster_whose_brokers_answer_with_errors_is_up_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="downrange.console")
    admin, clock = FakeAdmin(), Clock()
    admin.figures = {
        "a": ConnectFailed("a:1", "connection refused"),
        "b": server_error(1, "not yet", "b:1"),
    }
    poller = poller_of(admin, clock)
    for _ in range(2):
        await poller.poll()
    page = poller.overview()
    assert page.state.is_up
    assert page.state.problem == "no broker tells its figures: code 1: not yet"
    assert (page.at, page.brokers_up, page.stored_bytes) == (None, 1, None)
    assert [row.is_up for row in page.brokers] == [False, True]
    admin.figures["b"] = figures()
    clock.second += 2
    await poller.poll()
    assert (poller.state.problem, poller.overview().at) == (None, at(1002))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "answers, but no broker tells its figures" in caplog.text


async def test_the_slow_poll_reads_lags_dead_letters_and_topics() -> None:
    admin, clock = FakeAdmin(), Clock()
    clock.second = 10_000.0
    admin.add(message(0, topic="orders"), message(1, topic="orders"))
    admin.topics.append(TopicName("%DLQ%billing", "dead-letter"))
    admin.add(
        message(0, topic="%DLQ%billing", second=100.0),
        message(1, topic="%DLQ%billing", second=9_000.0),
    )
    admin.progress = [
        TopicProgress(group="billing", topic="orders", lag=5, rate=1.0),
        TopicProgress(group="audit", topic="orders", lag=9),
        TopicProgress(group="audit", topic="idle"),
    ]
    poller = poller_of(admin, clock)
    await poller.poll_slowly()
    page = poller.overview()
    assert (page.topic_count, page.group_count, page.lag) == (1, 2, 14)
    assert [(row.group, row.messages) for row in page.largest_lags] == [
        ("audit", 9),
        ("billing", 5),
    ]
    (dead,) = page.dead_letters
    assert (dead.group, dead.last_hour, dead.total) == ("billing", 1, 2)
    assert (page.dead_letters_last_hour, dead.last_at) == (1, at(9_000))
    figure = poller.figures.get("orders")
    assert figure is not None
    assert (figure.messages, figure.rate) == (2, None)


async def test_the_slow_poll_asks_nothing_while_the_cluster_is_gone() -> None:
    admin = FakeAdmin()
    admin.is_gone = True
    poller = poller_of(admin)
    await poller.poll_slowly()
    assert [name for name, _ in admin.calls] == ["cluster_facts"]


async def test_groups_are_those_of_offsets_while_a_broker_is_down() -> None:
    admin = FakeAdmin()
    admin.groups = [GroupSummary(group="billing", brokers=("a",))]
    poller = poller_of(admin)
    assert [group.group for group in await poller.groups.get()] == ["billing"]
    admin.broken["list_groups"] = ConnectFailed("b:1", "connection refused")
    admin.progress = [TopicProgress(group="audit", topic="orders")]
    poller.forget()
    found = await poller.groups.get()
    assert [(group.group, group.brokers) for group in found] == [("audit", ()), ("billing", ("a",))]


async def test_viewers_get_each_poll_and_one_poll_serves_all() -> None:
    admin, clock = FakeAdmin(), Clock()
    poller = poller_of(admin, clock)
    poller._tasks = [asyncio.create_task(asyncio.sleep(0))]  # as if started
    viewers = [poller.overviews() for _ in range(3)]
    assert [(await anext(viewer)).at for viewer in viewers] == [at(1000)] * 3
    following = [asyncio.ensure_future(anext(viewer)) for viewer in viewers]
    await asyncio.sleep(0)
    clock.second += 2
    await poller.poll()
    shown = [await each for each in following]
    assert [page.at for page in shown] == [at(1002)] * 3
    assert shown[0] is shown[1] is shown[2]  # it is made once
    assert admin.count("cluster_facts") == 2
    await poller.close()
    for viewer in viewers:
        with pytest.raises(StopAsyncIteration):
            await anext(viewer)


async def test_viewers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VIEWERS_MAX", 1)
    poller = poller_of(FakeAdmin())
    first = poller.overviews()
    await anext(first)
    with pytest.raises(TooManyViewers, match="1 viewers"):
        await anext(poller.overviews())
    await first.aclose()  # type: ignore[attr-defined]
    await anext(poller.overviews())


async def test_polls_at_the_same_time_ask_once() -> None:
    admin = FakeAdmin()
    poller = poller_of(admin)
    await asyncio.gather(*(poller.poll() for _ in range(5)))
    assert admin.count("cluster_facts") == 1


def test_missing_brokers_and_limits_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from downrange import AllProgress

    (note,) = missing_notes(AllProgress(unanswered=(Unanswered("b", "b:1", "refused"),)))
    assert (note.code, note.text) == ("lags-incomplete", "lags of broker b are missing: refused")
    assert missing_notes(None) == ()


async def test_dead_letters_of_too_many_groups_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DEAD_LETTER_TOPICS_MAX", 1)
    admin = FakeAdmin()
    admin.topics = [TopicName(f"%DLQ%g{number}", "dead-letter") for number in range(3)]
    poller = poller_of(admin)
    await poller.poll_slowly()
    (note,) = poller.overview().notes
    assert (note.code, note.values) == ("dead-letters-limited", {"counted": 1, "groups": 3})


# ---- shared answers ------------------------------------------------------------------------------


async def test_an_answer_is_shared_until_it_is_too_old() -> None:
    clock, asked = Clock(), [0]

    async def ask() -> int:
        asked[0] += 1
        clock.second += 0.5  # what it costs
        return asked[0]

    answer = SharedAnswer(ask, 2.0, clock)
    assert [*await asyncio.gather(answer.get(), answer.get())] == [1, 1]
    clock.second += 4.9
    assert await answer.get() == 1  # ten times the cost is longer than two seconds
    clock.second += 0.2
    assert (await answer.get(), answer.last) == (2, 2)
    answer.forget()
    assert await answer.get() == 3


async def test_a_failure_is_not_kept() -> None:
    admin = FakeAdmin()
    answer = SharedAnswer(admin.list_topics)
    admin.is_gone = True
    with pytest.raises(ConnectFailed):
        await answer.get()
    admin.is_gone = False
    assert await answer.get() == []
