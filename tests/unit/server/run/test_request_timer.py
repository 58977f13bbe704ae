"""Times of requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from downrange.server.metrics.request_times import RequestTimes, reply_name, request_name
from downrange.server.outputs import LateReplies, LateReply, Output, Peer, Reply
from downrange.server.run.request_timer import RequestTimer
from downrange.wire.codes import CommandFlag, RequestCode
from downrange.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

    from downrange.server.outputs import OnReply
    from downrange.wire.send_replies import StoredForm
    from downrange.wire.send_runs import SendRun

PEER = Peer(1, "10.0.0.7:4000")
SEND, PULL = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.PULL_MESSAGE)


class FakeService:
    """Returns what a test has set."""

    def __init__(self) -> None:
        self.outputs: Sequence[Output] = ()
        self.performed: list[Output] = []
        self.held = 0
        self.is_holding = False
        self.takes_runs = True

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        self.held += self.is_holding
        return self.outputs

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        return self.outputs

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        return self.outputs

    def handle_run(self, run: SendRun, peer: Peer, now_ms: int) -> bool:
        return self.takes_runs

    def perform(self, outputs: Iterable[Output]) -> None:
        self.performed += outputs


def timed() -> tuple[FakeService, RequestTimer]:
    service = FakeService()
    return service, RequestTimer(service, service.perform, lambda: service.held, service.handle_run)


def counts(timer: RequestTimer) -> dict[tuple[int, int, bool, str], int]:
    return {kind: times.count for kind, times in timer.times.kinds.items()}


def test_a_reply_at_once_is_timed() -> None:
    service, timer = timed()
    service.outputs = [Reply(Command(17))]
    assert list(timer.handle(Command(SEND), PEER, 0)) == service.outputs
    assert counts(timer) == {(SEND, 17, False, "success"): 1}


def test_a_late_reply_is_timed_once() -> None:
    service, timer = timed()
    request = Command(SEND)
    assert list(timer.handle(request, PEER, 0)) == []
    late = LateReply(1, request, Command(0))
    timer.perform((late,))
    timer.perform([late])  # not known any more
    assert service.performed == [late, late]
    assert counts(timer) == {(SEND, 0, False, "success"): 1}


def test_a_request_that_waited_for_messages_is_told_apart() -> None:
    service, timer = timed()
    service.is_holding = True
    request = Command(PULL)
    timer.handle(request, PEER, 0)
    service.outputs = [LateReply(1, request, Command(19))]
    timer.on_reply(lambda reply, now_ms: (), None, 0)
    assert counts(timer) == {(PULL, 19, True, "success"): 1}


def test_a_one_way_request_is_counted_without_a_reply() -> None:
    _, timer = timed()
    timer.handle(Command(SEND, flags=int(CommandFlag.ONEWAY)), PEER, 0)
    assert counts(timer) == {(SEND, 0, False, "oneway"): 1}


class FakeRun:
    """Three sends, of which two are answered."""

    def __init__(self, reply_count: int = 2) -> None:
        self.reply_count = reply_count

    def __len__(self) -> int:
        return 3


def test_the_sends_of_a_run_are_timed_together() -> None:
    service, timer = timed()
    run = cast("SendRun", FakeRun())
    assert timer.handle_run(run, PEER, 0)
    timer.perform([LateReplies(1, run, cast("StoredForm", None))])
    timer.perform([LateReplies(1, run, cast("StoredForm", None))])  # not known any more
    assert counts(timer) == {(SEND, 0, False, "oneway"): 1, (SEND, 0, False, "success"): 2}
    service.takes_runs = False
    assert not timer.handle_run(run, PEER, 0)


def test_a_run_of_one_way_sends_is_not_waited_for() -> None:
    _, timer = timed()
    for _ in range(3):
        assert timer.handle_run(cast("SendRun", FakeRun(reply_count=0)), PEER, 0)
    assert timer._runs == {}
    assert counts(timer) == {(SEND, 0, False, "oneway"): 9}


def test_a_run_whose_sends_are_answered_one_by_one_is_forgotten_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("downrange.server.run.request_timer.time", clock)
    _, timer = timed()
    runs = [cast("SendRun", FakeRun()) for _ in range(100)]
    for run in runs:  # each a second after the one before; none gets its replies together
        now += 1.0
        assert timer.handle_run(run, PEER, 0)
    assert len(timer._runs[PEER.number]) == 61
    timer.perform([LateReplies(1, runs[-60], cast("StoredForm", None))])  # slow, and timed
    assert counts(timer)[SEND, 0, False, "success"] == 2
    assert timer.times.kinds[SEND, 0, False, "success"].sum == 2 * 59_000


def test_a_run_in_the_place_of_one_that_is_gone_is_noted_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs are known by their place in memory, which is soon used again."""
    now = 1_000.0
    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("downrange.server.run.request_timer.time", clock)
    _, timer = timed()
    first, second = cast("SendRun", FakeRun()), cast("SendRun", FakeRun())
    for run in (first, second, first):
        now += 50.0
        timer.handle_run(run, PEER, 0)
    now += 20.0
    timer.handle_run(cast("SendRun", FakeRun()), PEER, 0)
    assert len(timer._runs[PEER.number]) == 2  # not the second, 70 s after it came


def test_requests_of_a_closed_connection_are_forgotten() -> None:
    _, timer = timed()
    request = Command(SEND)
    timer.handle(request, PEER, 0)
    assert list(timer.on_disconnect(PEER, 0)) == []
    timer.perform([LateReply(1, request, Command(0))])
    assert counts(timer) == {}


def test_creations_have_times_of_their_own() -> None:
    times = RequestTimes()
    times.add((int(RequestCode.UPDATE_AND_CREATE_TOPIC), 0, False, "success"), 20.0)
    times.add((int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP), 1, False, "success"), 1.0)
    assert {key: each.count for key, each in times.creations.items()} == {
        ("topic", True): 1,
        ("group", False): 1,
    }


def test_kinds_are_limited() -> None:
    times = RequestTimes()
    for code in range(5_000):
        times.add((code, 0, False, "success"), 1.0)
    assert len(times.kinds) == 2_000


def test_codes_have_names() -> None:
    assert (request_name(SEND), request_name(99_999)) == ("send_message_v2", "unknown")
    assert (reply_name(0), reply_name(99_999)) == ("success", "unknown")
