"""What the native part costs before any message: import, start and idle memory, beside pure Python.

Each round measures both paths, and every second round in reverse order. A ratio is the median of
the ratios of the rounds; it may be 1.05 at most.

    python -m benchmarks.footprint [--rounds 9]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median
from typing import Final, Literal, NamedTuple, TypeAlias

from benchmarks import server_pair
from downrange.native import PURE_VARIABLE, path_in_use

PathName: TypeAlias = Literal["native", "pure"]

AT_MOST: Final = 1.05
_VARIABLES: Final[dict[PathName, dict[str, str]]] = {
    "native": {PURE_VARIABLE: "0"},
    "pure": {PURE_VARIABLE: "1"},
}
_IMPORTS: Final = {
    "import downrange": "CPU of import downrange, ms",
    "from downrange import Producer, PushConsumer": "CPU of importing the clients, ms",
    "from downrange import Cluster": "CPU of importing the servers, ms",
}
_START: Final = "server: start to first send, ms"
_MEMORY: Final = "server: memory when idle, MB"
_SETTLING: Final = 1.0


class Comparison(NamedTuple):
    """One figure of both paths, by round; less is better."""

    title: str
    native: list[float]
    pure: list[float]

    @property
    def ratio(self) -> float:
        """How many times as much the native path takes."""
        return median(ours / base for ours, base in zip(self.native, self.pure, strict=True))

    @property
    def is_met(self) -> bool:
        """Whether it is at most a twentieth more."""
        return self.ratio <= AT_MOST


def measure(rounds: int) -> list[Comparison]:
    """Measure both paths in turns, after an unmeasured round that compiles all modules."""
    _figures("pure")
    titles = [*_IMPORTS.values(), _START, _MEMORY]
    found = {title: Comparison(title, [], []) for title in titles}
    for number in range(rounds):
        paths: tuple[PathName, PathName] = ("native", "pure")
        for path in paths if number % 2 else paths[::-1]:
            for title, value in _figures(path).items():
                getattr(found[title], path).append(value)
    return list(found.values())


def _figures(path: PathName) -> dict[str, float]:
    found = {title: _import_ms(code, path) for code, title in _IMPORTS.items()}
    with server_pair.start("downrange", variables=_VARIABLES[path]) as peer:
        time.sleep(_SETTLING)
        return {**found, _START: peer.started_in * 1e3, _MEMORY: peer.memory_bytes() / 1e6}


def _import_ms(code: str, path: PathName) -> float:
    """Return the CPU time of a process that only imports, without that of an empty one."""
    variables = {**server_pair.environment(), **_VARIABLES[path]}
    return (_cpu_seconds(code, variables) - _cpu_seconds("pass", variables)) * 1e3


def _cpu_seconds(code: str, variables: dict[str, str]) -> float:
    child = subprocess.Popen([sys.executable, "-c", code], env=variables)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{code!r} failed")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    if path_in_use() != "native":
        sys.exit(f"there is nothing to compare, because this is {path_in_use()}")
    print(f"{'':<36}{'native':>9}{'pure':>9}{'ratio':>8}  target")
    for each in measure(asked.rounds):
        figures = f"{median(each.native):>9.1f}{median(each.pure):>9.1f}{each.ratio:>7.2f}x"
        print(f"{each.title:<36}{figures}  ≤ {AT_MOST:g}x {'met' if each.is_met else 'missed'}")


if __name__ == "__main__":
    main()
