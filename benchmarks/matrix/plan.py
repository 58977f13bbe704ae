"""Plans: the cells to measure and the durations. There is a full plan and a quick one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from benchmarks.matrix.cells import CLIENT_TITLES, SERVERS, USUAL_BODY, all_cells, size_title
from benchmarks.matrix.targets import needed_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.matrix.cells import Cell
    from benchmarks.matrix.results import ProbeName

PROBES: Final[tuple[ProbeName, ...]] = ("start", "idle-memory", "idle-cpu")
#: Large bodies fill the disk, so they are sent for this share of a round.
_LARGE_PART: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure, and for how long.

    Attributes:
        cells: Cells to measure.
        probes: Other measurements of both servers.
        rounds: Rounds per cell.
        seconds: Duration of a round.
        lead_in: Duration of the same load before each round.
        warm_up: Duration of the load on each server and each Java client before the first round,
            so that a JVM compiles; divided among all works of the Java client.
        settling: Seconds from the start until a server counts as idle.
        idle_seconds: How long the idle server is measured.
        more_starts: Additional starts, only to measure the start time.
    """

    cells: tuple[Cell, ...]
    probes: tuple[ProbeName, ...] = PROBES
    rounds: int
    seconds: float
    lead_in: float
    warm_up: float
    settling: float
    idle_seconds: float
    more_starts: int

    def seconds_of(self, cell: Cell) -> float:
        """Return the duration of a round of a cell."""
        return self.seconds * (_LARGE_PART if cell.body_bytes > USUAL_BODY else 1.0)

    def narrowed(self, only: Sequence[str]) -> Plan:
        """Return a plan with only the matching cells and probes.

        Raises:
            ValueError: Nothing matches.
        """
        if not only:
            return self
        cells = tuple(cell for cell in self.cells if cell.matches(only))
        probes = tuple(name for name in self.probes if name in only)
        if not cells and not probes:
            raise ValueError(f"no cell or probe matches {' or '.join(only)}")
        return replace(self, cells=cells, probes=probes)


def _target_cells() -> tuple[Cell, ...]:
    needed = needed_cells()
    return tuple(cell for cell in all_cells() if cell in needed)


FULL: Final = Plan(
    cells=tuple(all_cells()),
    rounds=3,
    seconds=1.5,
    lead_in=0.3,
    warm_up=30.0,
    settling=10.0,
    idle_seconds=5.0,
    more_starts=3,
)
QUICK: Final = Plan(
    cells=_target_cells(),
    rounds=2,
    seconds=0.4,
    lead_in=0.2,
    warm_up=10.0,
    settling=2.0,
    idle_seconds=2.0,
    more_starts=0,
)


def left_out(plan: Plan) -> list[str]:
    """Return the parts of the matrix that a plan does not measure, as texts.

    Works are named by client and body size; a server is named only if the other one is measured.
    """
    missing = [cell for cell in all_cells() if cell not in plan.cells]
    lines: list[str] = []
    for body in sorted({cell.body_bytes for cell in missing}):
        of_size = [cell for cell in missing if cell.body_bytes == body]
        if not any(cell.body_bytes == body for cell in plan.cells):
            lines.append(f"bodies of {size_title(body)}")
            continue
        for client, title in CLIENT_TITLES.items():
            names = [_short(cell, missing) for cell in of_size if cell.client == client]
            if names:
                lines.append(f"{title}: {', '.join(dict.fromkeys(names))}")
    return lines


def _short(cell: Cell, missing: Sequence[Cell]) -> str:
    flush = ", sync flush" if cell.flush == "sync" else ""
    is_missing_at_both = all(
        msgspec.structs.replace(cell, server=server) in missing for server in SERVERS
    )
    return f"{cell.work}{flush}{'' if is_missing_at_both else f' to {cell.server}'}"
