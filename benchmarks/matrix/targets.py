"""The targets of the project as data, and whether a run meets them.

Most are ratios of two cells or of a probe. A limit is a figure of one cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.matrix.cells import (
    CLIENT_TITLES,
    SERVER_TITLES,
    SERVERS,
    USUAL_BODY,
    WORK_TITLES,
    Cell,
    size_title,
)
from benchmarks.matrix.results import ratio

if TYPE_CHECKING:
    from benchmarks.matrix.cells import ClientName, ServerName, WorkName
    from benchmarks.matrix.results import Figure, ProbeName, Run

_FIGURE_TITLES: Final[dict[Figure, str]] = {
    "rate": "",
    "p50_us": ", median",
    "p99_us": ", 99th percentile",
    "client_us": ", client's CPU per message",
    "server_us": ", server's CPU per message",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target for the ratio of two cells.

    Attributes:
        ours: The cell that should be better.
        base: The cell to compare with.
        at_least: How many times better it should be.
        figure: The compared figure.
    """

    ours: Cell
    base: Cell
    at_least: float
    figure: Figure = "rate"

    @property
    def comparison(self) -> str:
        """Both pairs of client and server, or both works of one pair."""
        if self.ours.work != self.base.work:
            pair = _pair_title(self.ours)
            return f"{pair}: {WORK_TITLES[self.ours.work]} vs. {WORK_TITLES[self.base.work]}"
        return f"{_pair_title(self.ours)} vs. {_pair_title(self.base)}"

    @property
    def title(self) -> str:
        """The work and the compared figure."""
        return _title(self.ours, self.figure)

    @property
    def cells(self) -> tuple[Cell, Cell]:
        """The cells that must be measured for it."""
        return self.ours, self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit for a figure of one cell, in µs."""

    ours: Cell
    figure: Figure
    at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """A target for the ratio of a probe."""

    probe: ProbeName
    title: str
    at_least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a target: a ratio, or the figure of a limit."""

    comparison: str
    title: str
    figure: float
    target: float
    is_ratio: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the target is met."""
        return self.figure >= self.target if self.is_ratio else self.figure <= self.target


def _pair_title(cell: Cell) -> str:
    return f"{CLIENT_TITLES[cell.client]} → {SERVER_TITLES[cell.server]}"


def _title(cell: Cell, figure: Figure) -> str:
    size = "" if cell.body_bytes == USUAL_BODY else f", {size_title(cell.body_bytes)}"
    return f"{WORK_TITLES[cell.work]}{size}{_FIGURE_TITLES[figure]}"


def _cell(client: ClientName, server: ServerName, work: WorkName, body: int = USUAL_BODY) -> Cell:
    return Cell(client=client, server=server, work=work, body_bytes=body)


def _client_target(
    client: ClientName,
    server: ServerName,
    work: WorkName,
    at_least: float,
    figure: Figure = "rate",
    body: int = USUAL_BODY,
) -> Target:
    """Return a target for one of our clients relative to Java's, with Apache's server."""
    base = _cell("java", "apache", work, body)
    ours = _cell(client, server, work, body)
    return Target(ours=ours, base=base, at_least=at_least, figure=figure)


def _server_target(
    client: ClientName, work: WorkName, at_least: float, body: int = USUAL_BODY
) -> Target:
    """Return a target for our server relative to Apache's, with the same client."""
    ours, base = _cell(client, "downrange", work, body), _cell(client, "apache", work, body)
    return Target(ours=ours, base=base, at_least=at_least)


def _push_target(
    client: ClientName,
    server: ServerName,
    figure: Figure,
    at_least: float,
    body: int = USUAL_BODY,
    work: WorkName = "push",
) -> Target:
    """Return a target for one of our push consumers relative to Java's, with the same server."""
    ours, base = _cell(client, server, work, body), _cell("java", server, work, body)
    return Target(ours=ours, base=base, at_least=at_least, figure=figure)


_SMALL_BODY: Final = 100
_OURS: Final[tuple[ClientName, ...]] = ("asyncio", "threads")
_LATENCY_FIGURES: Final[tuple[Figure, ...]] = ("p50_us", "p99_us")
_PUSH_LATENCIES: Final[tuple[WorkName, ...]] = ("push-one", "push-paced")
#: At least Java's rate with asyncio, 0.7 of it with threads; at most 1.5 times its CPU.
_PUSHED: Final[tuple[tuple[ClientName, Figure, float], ...]] = (
    ("asyncio", "rate", 1.0),
    ("threads", "rate", 0.7),
    ("asyncio", "client_us", 0.67),
    ("threads", "client_us", 0.67),
)
TARGETS: Final = (
    _server_target("generator", "sync-1", 2.0),
    _server_target("generator", "async-256", 4.0),
    _server_target("generator", "batch", 1.3),
    _server_target("generator", "pull", 2.0),
    _server_target("java", "batch", 1.3),
    _server_target("java", "batch", 1.8, _SMALL_BODY),
    _server_target("java", "auto-batch", 1.2),
    _client_target("asyncio", "downrange", "async-256", 4.5),
    _client_target("asyncio", "downrange", "batch", 1.5),
    _client_target("asyncio", "downrange", "pull", 3.0),
    _client_target("asyncio", "apache", "batch", 1.1),
    _client_target("asyncio", "apache", "batch", 1.0, body=_SMALL_BODY),
    _client_target("asyncio", "apache", "pull", 1.8),
    _client_target("asyncio", "apache", "auto-batch", 1.0),
    _client_target("asyncio", "apache", "async-256", 6.0, "client_us"),
    _client_target("threads", "apache", "sync-1", 1.2),
    _client_target("threads", "apache", "sync-64", 1.2),
    Target(  # a pop costs the server at most 1.5 times as much as a pull
        ours=_cell("generator", "downrange", "pop-ack"),
        base=_cell("generator", "downrange", "pull-commit"),
        at_least=0.67,
        figure="server_us",
    ),
    *(
        _push_target(client, server, figure, at_least, body)
        for body in (USUAL_BODY, _SMALL_BODY)
        for server in SERVERS
        for client, figure, at_least in _PUSHED
    ),
    *(
        _push_target(client, server, figure, 1.0, work=work)
        for work in _PUSH_LATENCIES
        for server in SERVERS
        for client in _OURS
        for figure in _LATENCY_FIGURES
    ),
)
LIMITS: Final = (
    Limit(ours=_cell("java", "downrange", "transactions"), figure="server_us", at_most=40.0),
)
PROBE_TARGETS: Final = (
    ProbeTarget(probe="start", title="start to first send", at_least=20.0),
    ProbeTarget(probe="idle-memory", title="memory when idle", at_least=10.0),
)


def needed_cells() -> set[Cell]:
    """Return the cells that must be measured for all targets."""
    compared = {cell for target in TARGETS for cell in target.cells}
    return compared | {limit.ours for limit in LIMITS}


def verdicts(run: Run) -> list[Verdict]:
    """Compare a run with all targets that it has measured."""
    found = [
        Verdict(
            comparison=target.comparison,
            title=target.title,
            figure=compared,
            target=target.at_least,
        )
        for target in TARGETS
        if (compared := _ratio_of(run, target)) is not None
    ]
    for limit in LIMITS:
        series = run.find(limit.ours)
        if series is not None:
            found.append(
                Verdict(
                    comparison=_pair_title(limit.ours),
                    title=_title(limit.ours, limit.figure),
                    figure=median(series.figures(limit.figure)),
                    target=limit.at_most,
                    is_ratio=False,
                )
            )
    for target in PROBE_TARGETS:
        probe = run.probe(target.probe)
        if probe is not None and probe.ratio is not None:
            found.append(
                Verdict(
                    comparison="embedded vs. Apache",
                    title=target.title,
                    figure=probe.ratio,
                    target=target.at_least,
                )
            )
    return found


def _ratio_of(run: Run, target: Target) -> float | None:
    ours, base = run.find(target.ours), run.find(target.base)
    return None if ours is None or base is None else ratio(ours, base, target.figure)
