"""A whole run of the matrix with fake servers and clients."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks import server_pair
from benchmarks.matrix import rounds
from benchmarks.matrix.cells import READS
from benchmarks.matrix.children import ClientFailed
from benchmarks.matrix.plan import FULL, QUICK
from benchmarks.matrix.rounds import Matrix
from benchmarks.matrix.tasks import Measured
from benchmarks.server_pair import Pair, Peer

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.matrix.cells import Cell, ClientName
    from benchmarks.matrix.plan import Plan

CLIENTS: tuple[ClientName, ...] = ("threads", "asyncio", "generator")


class FakePeer(Peer):
    """A server that holds what the fake client put into `held`."""

    def make_topic(self, topic: str) -> None:
        self.acknowledged[topic] = 0

    def stored(self, topic: str) -> int:
        return HELD.get((self.name, topic), 0)


class FakeClient:
    """Stores ten messages in each round, unless a test changes that."""

    def __init__(self) -> None:
        self.measured: list[tuple[Cell, float, float]] = []
        self.lost = 0
        self.error: BaseException | None = None

    def measure(self, peer: Peer, cell: Cell, *, seconds: float, lead_in: float) -> Measured:
        self.measured.append((cell, seconds, lead_in))
        if self.error is not None and lead_in:
            raise self.error
        if cell.work not in READS:
            held = (peer.name, cell.topic)
            HELD[held] = HELD.get(held, 0) + 10 - self.lost
        return Measured(
            messages=8,
            messages_before=2,
            seconds=0.5,
            client_cpu=0.008,
            server_cpu=0.016,
            client_bytes=1,
            latencies_us=(1.0, 2.0),
        )


class SilentProgress:
    """Adds up the estimated times."""

    total = 0.0

    def show(self, text: str) -> None:
        pass

    def advance(self, seconds: float) -> None:
        self.total += seconds


HELD: dict[tuple[str, str], int] = {}


@pytest.fixture(autouse=True)
def _fake_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def start_both(_flush: server_pair.Flush) -> Generator[Pair]:
        HELD.clear()
        yield Pair(
            FakePeer(name="downrange", name_server="", broker="", pids=[], started_in=0.5),
            FakePeer(name="apache", name_server="", broker="", pids=[], started_in=10.0),
        )

    def fill(peer: Peer, topic: str, count: int, _body_bytes: int) -> None:
        HELD[peer.name, topic] = peer.acknowledged[topic] = count

    monkeypatch.setattr(server_pair, "start_both", start_both)
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(server_pair, "_COUNT_TIMEOUT", 0.0)
    monkeypatch.setattr(server_pair, "_SETTLING", 0.0)
    monkeypatch.setattr(rounds, "fill", fill)


def plan(*only: str) -> Plan:
    return replace(FULL.narrowed(only), settling=0.0, idle_seconds=0.0)


def matrix(client: FakeClient, *only: str, progress: SilentProgress | None = None) -> Matrix:
    return Matrix(plan(*only), progress or SilentProgress(), dict.fromkeys(CLIENTS, client))


def test_every_cell_has_all_its_rounds() -> None:
    client = FakeClient()
    run = matrix(client, "asyncio", "start")
    run.run()
    assert {len(each.samples) for each in run.series.values()} == {FULL.rounds}
    assert not any(each.failures for each in run.series.values())
    (sample, *_) = next(iter(run.series.values())).samples
    assert (sample.round, sample.rate, sample.p99_us) == (1, 16, 2.0)
    assert (sample.client_us, sample.server_us) == (1000, 2000)
    assert [probe.ratio for probe in run.probes] == [20]


def test_run_takes_the_estimated_time() -> None:
    progress = SilentProgress()
    run = matrix(FakeClient(), "asyncio", "start", "idle-cpu", progress=progress)
    run.run()
    assert progress.total == pytest.approx(run.estimated_seconds)


@pytest.mark.parametrize(("of", "minutes"), [(FULL, 22), (QUICK, 5)])
def test_plans_take_no_longer_than_the_docs_say(of: Plan, minutes: float) -> None:
    seconds = Matrix(of, SilentProgress()).estimated_seconds
    assert 0.7 * minutes < seconds / 60 <= minutes


def test_server_in_java_is_warmed_up_first() -> None:
    client = FakeClient()
    matrix(client, "generator/*/sync-1/*").run()
    (warm_up, seconds, lead_in), *rest = client.measured
    assert (warm_up.server, seconds, lead_in) == ("apache", FULL.warm_up, 0.0)
    assert {lead_in for _, _, lead_in in rest} == {FULL.lead_in}


def test_round_that_fails_is_recorded_and_the_others_continue() -> None:
    client = FakeClient()
    client.error = ClientFailed("Traceback\n  File ours.py\n  no answer")
    run = matrix(client, "threads/downrange/sync-1/1024/*")
    run.run()
    (series,) = run.series.values()
    assert series.samples == []
    assert series.failures == ["no answer"] * FULL.rounds


@pytest.mark.parametrize("work", ["one-way", "sync-1"])
def test_round_whose_messages_are_lost_has_no_figures(work: str) -> None:
    client = FakeClient()
    client.lost = 3
    run = matrix(client, f"threads/downrange/{work}/1024/*")
    run.run()
    (series,) = run.series.values()
    assert series.samples == []
    assert len(series.failures) == FULL.rounds
    assert all("stored" in failure for failure in series.failures)


def test_messages_that_are_missing_at_the_end_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    run = matrix(FakeClient(), "threads/downrange/sync-1/1024/*")
    counts = iter([10, 20, 30, 29])
    monkeypatch.setattr(FakePeer, "stored", lambda _peer, _topic: next(counts))
    run.run()
    (series,) = run.series.values()
    assert len(series.samples) == FULL.rounds
    assert series.failures == ["downrange stored 29 of 30 in bench-sync-1-1024"]


def test_results_stay_when_the_run_is_interrupted() -> None:
    client = FakeClient()
    run = matrix(client, "threads/downrange/sync-1/*")

    def interrupt(peer: Peer, cell: Cell, *, seconds: float, lead_in: float) -> Measured:
        if len(client.measured) == 4:
            raise KeyboardInterrupt
        return FakeClient.measure(client, peer, cell, seconds=seconds, lead_in=lead_in)

    client.measure = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert [len(each.samples) for each in run.series.values()] == [2, 1, 1]
