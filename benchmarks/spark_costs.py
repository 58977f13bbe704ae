"""Measures a job: CPU time of broker, JVM and Python workers, and the memory of one worker.

All values come from /proc. Python workers start and end, but stay for a minute after their work, so
the CPU time of the workers that exist at the end of a job is complete.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_RESET_PEAK: Final = "5"  # resets VmHWM when written to clear_refs; see proc(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """CPU time in seconds, and the largest resident set of one Python worker.

    Attributes:
        seconds: Duration.
        broker: CPU of the broker's processes.
        jvm: CPU of Spark's JVM.
        python: CPU of the Python workers, including those for planning.
        worker_peak_bytes: Largest memory of one Python worker; 0 without workers.
    """

    seconds: float
    broker: float
    jvm: float
    python: float
    worker_peak_bytes: int


class Meter:
    """Measures the costs since its creation."""

    def __init__(self, jvm: int, brokers: Sequence[int]) -> None:
        """Read the CPU time so far.

        Args:
            jvm: Process id of Spark's JVM.
            brokers: Process ids of the broker.
        """
        self._jvm = jvm
        self._brokers = brokers
        for worker in _below(jvm):
            with contextlib.suppress(OSError):
                Path(f"/proc/{worker}/clear_refs").write_text(_RESET_PEAK)
        self._brokers_before, self._jvm_before = _cpu(brokers), _cpu([jvm])
        self._workers_before = {worker: _cpu([worker]) for worker in _below(jvm)}
        self._begun = time.perf_counter()

    def costs(self) -> Costs:
        """Return the costs since the creation."""
        seconds = time.perf_counter() - self._begun
        workers = _below(self._jvm)
        return Costs(
            seconds=seconds,
            broker=_cpu(self._brokers) - self._brokers_before,
            jvm=_cpu([self._jvm]) - self._jvm_before,
            python=sum(_cpu([each]) - self._workers_before.get(each, 0.0) for each in workers),
            worker_peak_bytes=max(map(_peak_bytes, workers), default=0),
        )


def _below(pid: int) -> list[int]:
    """Return all running descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        waiting += (below := children.get(waiting.pop(), []))
        found += below
    return found


def _cpu(pids: Iterable[int]) -> float:
    """Return user plus system time; a process that has ended counts as 0."""
    return sum(sum(map(int, _stat(pid)[11:13])) for pid in pids) / _TICKS


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; [] if the process has ended."""
    try:
        # The second field, the program's name in brackets, may contain spaces and brackets.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _peak_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
