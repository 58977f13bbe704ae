"""When it is published that a member gets no queues."""

from __future__ import annotations

import pytest

from downrange.client.flows.consuming.missing_shares import MissingShares, NoShare, no_share
from downrange.client.flows.notices import SharesFound, SharesMissing
from downrange.errors import ConnectFailed, server_error
from downrange.wire.codes import ResponseCode
from tests.unit.client.flows.fake_servers import FakeServers

LASTING = NoShare("no group", may_pass=False)
PASSING = NoShare("busy", may_pass=True)


class World:
    """The missing shares of a group, and a clock."""

    def __init__(self) -> None:
        servers = FakeServers()
        self.clock = servers.clock
        self.notices = servers.core.notices
        self.missing = MissingShares(servers.core, "g")


def test_what_lasts_is_published_once() -> None:
    world = World()
    for _ in range(3):
        world.missing.note("t", LASTING)
    assert list(world.notices) == [SharesMissing("g", "t", "no group")]
    text = "the queues of t cannot be divided among the members: no group"
    assert world.missing.problems() == [text]


def test_what_may_pass_is_waited_out() -> None:
    world = World()
    world.missing.note("t", PASSING)
    world.clock.seconds += 9.9
    world.missing.note("t", PASSING)
    world.missing.note_found("t")
    assert not world.notices
    assert not world.missing.problems()


def test_what_may_pass_is_published_when_it_stays() -> None:
    world = World()
    world.missing.note("t", PASSING)
    world.clock.seconds += 10
    world.missing.note("t", PASSING)
    world.missing.note("t", LASTING)
    assert list(world.notices) == [SharesMissing("g", "t", "busy")]
    assert "no group" in world.missing.problems()[0]  # the newest reason


def test_the_same_reason_is_published_for_one_topic_and_its_end_for_all() -> None:
    world = World()
    world.missing.note("t", LASTING)
    world.missing.note("u", LASTING)
    world.missing.note("v", NoShare("other", may_pass=False))
    assert [notice.topic for notice in world.notices] == ["t", "v"]  # type: ignore[union-attr]
    assert [text.partition(" cannot")[0] for text in world.missing.problems()] == [
        *("the queues of t, u", "the queues of v")
    ]
    world.notices.clear()
    world.missing.note_found("t")
    world.missing.forget("u")
    assert not world.notices
    world.missing.note_found("v")
    world.missing.note_found("v")
    assert list(world.notices) == [SharesFound("g")]
    assert not world.missing.problems()


def test_topics_that_are_not_subscribed_any_more_are_forgotten() -> None:
    world = World()
    world.missing.note("t", LASTING)
    world.missing.keep(["u"])
    assert not world.missing.problems()


@pytest.mark.parametrize(
    ("code", "may_pass"),
    [
        *((ResponseCode.SUBSCRIPTION_NOT_EXIST, True), (ResponseCode.CONSUMER_NOT_ONLINE, True)),
        *((ResponseCode.SUBSCRIPTION_NOT_LATEST, True), (ResponseCode.SYSTEM_ERROR, True)),
        *((ResponseCode.NO_PERMISSION, False), (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, False)),
    ],
)
def test_which_errors_may_pass(code: ResponseCode, may_pass: bool) -> None:
    error = server_error(int(code), "no", "a:1")
    assert no_share(error) == NoShare(str(error), may_pass)


def test_a_broker_that_is_away_may_come_back() -> None:
    assert no_share(ConnectFailed("a:1", "away")).may_pass
