"""What the project wants to reach, as data, and whether a run reached it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.matrix.cells import CLIENT_TITLES, SERVER_TITLES, WORK_TITLES, Cell
from benchmarks.matrix.results import ratio

if TYPE_CHECKING:
    from benchmarks.matrix.cells import ClientName, FlushName, ServerName, WorkName
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
    """A ratio of two cells that is wanted.

    Attributes:
        ours: The cell that shall be better.
        base: The cell that it is compared with.
        at_least: How many times better.
        figure: In what.
    """

    ours: Cell
    base: Cell
    at_least: float
    figure: Figure = "rate"

    @property
    def comparison(self) -> str:
        """Who is compared with whom."""
        return f"{_pair_title(self.ours)}, to {_pair_title(self.base)}"

    @property
    def title(self) -> str:
        """What they do, and what of it is compared."""
        flush = ", sync flush" if self.ours.flush == "sync" else ""
        return f"{WORK_TITLES[self.ours.work]}{flush}{_FIGURE_TITLES[self.figure]}"

    @property
    def cells(self) -> tuple[Cell, Cell]:
        """What must be measured for it."""
        return self.ours, self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """A ratio of something else than cells that is wanted."""

    probe: ProbeName
    title: str
    at_least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a target came out."""

    comparison: str
    title: str
    ratio: float
    at_least: float

    @property
    def is_met(self) -> bool:
        """Whether it is reached."""
        return self.ratio >= self.at_least


def _pair_title(cell: Cell) -> str:
    return f"{CLIENT_TITLES[cell.client]} → {SERVER_TITLES[cell.server]}"


def _cell(
    client: ClientName, server: ServerName, work: WorkName, flush: FlushName = "async"
) -> Cell:
    return Cell(client=client, server=server, work=work, flush=flush)


def _of_our_client(
    client: ClientName,
    server: ServerName,
    work: WorkName,
    at_least: float,
    figure: Figure = "rate",
) -> Target:
    """Want one of our clients to be better than Java's with Apache's server."""
    base = _cell("java", "apache", work)
    return Target(ours=_cell(client, server, work), base=base, at_least=at_least, figure=figure)


def _of_our_server(
    client: ClientName,
    work: WorkName,
    at_least: float,
    figure: Figure = "rate",
    flush: FlushName = "async",
) -> Target:
    """Want our server to be better than Apache's for the same client."""
    return Target(
        ours=_cell(client, "downrange", work, flush),
        base=_cell(client, "apache", work, flush),
        at_least=at_least,
        figure=figure,
    )


TARGETS: Final = (
    _of_our_client("threads", "apache", "sync-1", 2.0),
    _of_our_client("threads", "apache", "sync-64", 1.5),
    _of_our_client("asyncio", "apache", "async-256", 1.5),
    _of_our_client("asyncio", "apache", "async-256", 4.0, "client_us"),
    _of_our_client("asyncio", "apache", "batch", 1.5),
    _of_our_client("asyncio", "apache", "auto-batch", 1.5),
    _of_our_server("java", "sync-1", 1.7),
    _of_our_server("java", "async-256", 1.5),
    _of_our_server("java", "batch", 1.2),
    _of_our_server("java", "pull", 1.0),
    _of_our_server("java", "sync-1", 1.0, "p99_us"),
    _of_our_server("java", "async-256", 1.0, "p99_us"),
    _of_our_server("generator", "sync-1", 3.0),
    _of_our_server("generator", "async-256", 3.0),
    _of_our_server("generator", "batch", 1.5),
    _of_our_client("threads", "downrange", "sync-1", 10.0),
    _of_our_client("asyncio", "downrange", "async-256", 5.0),
    _of_our_client("asyncio", "downrange", "batch", 3.0),
    _of_our_server("generator", "sync-64", 1.0, flush="sync"),
    _of_our_server("java", "sync-64", 1.0, flush="sync"),
)
PROBE_TARGETS: Final = (
    ProbeTarget(probe="start", title="start to first send", at_least=20.0),
    ProbeTarget(probe="idle-memory", title="memory when idle", at_least=10.0),
)


def verdicts(run: Run) -> list[Verdict]:
    """Compare a run with all targets that it has measured something for."""
    found = [
        Verdict(
            comparison=target.comparison,
            title=target.title,
            ratio=compared,
            at_least=target.at_least,
        )
        for target in TARGETS
        if (compared := _ratio_of(run, target)) is not None
    ]
    for wanted in PROBE_TARGETS:
        probe = run.probe(wanted.probe)
        if probe is not None and probe.ratio is not None:
            found.append(
                Verdict(
                    comparison="embedded, to Apache",
                    title=wanted.title,
                    ratio=probe.ratio,
                    at_least=wanted.at_least,
                )
            )
    return found


def _ratio_of(run: Run, target: Target) -> float | None:
    ours, base = run.find(target.ours), run.find(target.base)
    return None if ours is None or base is None else ratio(ours, base, target.figure)
