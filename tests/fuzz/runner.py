"""Runs targets on damaged input. The same seed gives each target the same input in every run."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.fuzz.mutation import mutate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.fuzz.targets import Target

#: How many accepted inputs are kept as seeds for further damage.
_KEPT_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """Input on which a reader or the check of its result failed."""

    target: str
    data: bytes
    trace: str

    def __str__(self) -> str:
        return f"target: {self.target}\ninput:  {self.data.hex()}\n{self.trace}"


class Campaign:
    """The fuzzing of one target."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.executions = 0
        self.accepted = 0
        self._source = Random(f"{seed} {target.name}")
        self._pool = list(target.seeds)

    def step(self) -> Failure | None:
        """Run the target once."""
        source = self._source
        data = mutate(source, source.choice(self._pool), source.choice(self._pool))
        self.executions += 1
        try:
            is_accepted = self.target.run(data)
        except Exception:
            return Failure(self.target.name, data, traceback.format_exc())
        if is_accepted:
            self.accepted += 1
            self._keep(data)
        return None

    def _keep(self, data: bytes) -> None:
        if len(self._pool) < len(self.target.seeds) + _KEPT_MAX:
            self._pool.append(data)
        else:
            at = self._source.randrange(len(self.target.seeds), len(self._pool))
            self._pool[at] = data


def steps(campaigns: Iterable[Campaign]) -> Iterator[Failure | None]:
    """Run all targets in turn, without an end."""
    turn = list(campaigns)
    while True:
        for campaign in turn:
            yield campaign.step()


def summary(campaigns: Iterable[Campaign]) -> str:
    """Return a table of the runs, and how many inputs were accepted."""
    lines = ["executions  accepted  target"]
    lines += [f"{c.executions:>10}  {c.accepted:>8}  {c.target.name}" for c in campaigns]
    return "\n".join(lines)
