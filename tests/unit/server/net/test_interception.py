"""Rules that delay, replace or follow the handling of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.server.net import interception
from tests.unit.server.stage import KEEP, Stage

if TYPE_CHECKING:
    import pytest

    from downrange.server.net.interception import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command


def _stage(*interceptions: Interception | None) -> Stage:
    """Return a stage whose rule applies these interceptions, one per request, and then none."""
    stage = Stage()
    left = iter(interceptions)
    stage.dispatcher.intercept = lambda request, peer: next(left, None)
    return stage


def _reply_ids(stage: Stage) -> list[int]:
    return [reply.request_id for reply in stage.transport.replies()]


def test_a_rule_gets_request_and_peer_and_may_return_none() -> None:
    seen: list[tuple[int, str]] = []

    def rule(request: Command, peer: Peer) -> None:
        seen.append((request.code, peer.address))

    stage = Stage()
    stage.dispatcher.intercept = rule
    stage.receive(17)
    assert seen == [(17, "10.0.0.7:4242")]
    assert stage.service.events == ["17"]


def test_a_dropped_request_is_not_handled_and_not_counted() -> None:
    stage = _stage(interception.drop())
    stage.receive(1, 2)
    assert stage.service.events == ["2"]
    assert _reply_ids(stage) == [1]
    assert stage.connection.unanswered == 0


def test_a_refused_request_gets_the_error_and_is_not_handled() -> None:
    stage = _stage(interception.refuse(2, "too busy"))
    stage.receive(1, 2)
    assert stage.service.events == ["2"]
    refused, _ = stage.transport.replies()
    assert (refused.request_id, refused.code, refused.remark) == (0, 2, "too busy")


def test_a_request_that_cuts_is_not_handled() -> None:
    stage = _stage(interception.cut())
    stage.receive(1)
    assert stage.service.events == []
    assert (stage.transport.state, stage.transport.writes) == ("aborted", [])


def test_a_request_with_a_lost_reply_is_handled() -> None:
    stage = _stage(interception.lose_reply())
    stage.receive(1, 2)
    assert stage.service.events == ["1", "2"]
    assert _reply_ids(stage) == [1]


def test_a_late_reply_is_lost_as_well_and_not_counted() -> None:
    stage = _stage(interception.lose_reply())
    stage.receive(KEEP, KEEP)
    assert stage.connection.unanswered == 1
    stage.release(0, 1)
    assert _reply_ids(stage) == [1]
    assert stage.connection.unanswered == 0


def test_a_request_is_handled_and_its_connection_cut_before_the_reply() -> None:
    stage = _stage(interception.handle_then_cut())
    stage.receive(1)
    assert stage.service.events == ["1"]
    assert (stage.transport.state, stage.transport.writes) == ("aborted", [])


def test_a_fault_of_a_handler_whose_reply_is_lost_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = _stage(interception.lose_reply())
    stage.service.kept.clear()
    stage.receive(998, 1)  # there is nothing to release
    assert "request 998 of 10.0.0.7:4242 failed" in caplog.text
    assert _reply_ids(stage) == [1]


def test_a_delayed_request_is_overtaken_and_handled_in_the_end() -> None:
    stage = _stage(interception.deliver(after=5.0))
    stage.receive(1, 2)
    assert stage.service.events == ["2"]
    stage.loop.timers[0].run()
    assert stage.service.events == ["2", "1"]
    assert _reply_ids(stage) == [1, 0]


def test_a_delayed_request_is_dropped_when_its_connection_ends() -> None:
    stage = _stage(interception.refuse(2, "busy", after=5.0))
    stage.receive(1)
    stage.connection.connection_lost(None)
    stage.loop.timers[0].run()
    assert stage.transport.writes == []
