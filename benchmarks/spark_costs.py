"""What a job took: CPU time of broker, JVM and Python workers, and the memory of one worker.

All from the kernel's accounts in /proc. Python workers come and go; one that has worked stays for a
minute, so what counts is the CPU time of those that are there when a job has ended.
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
_RESET_PEAK: Final = "5"  # what proc(5) says clear_refs takes to forget a peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """CPU time in seconds, and the largest resident set of one Python worker.

    Attributes:
        seconds: How long it took.
        broker: CPU of the broker's processes.
        jvm: CPU of Spark's JVM.
        python: CPU of the Python workers, those that plan included.
        worker_peak_bytes: The most that one Python worker had in memory; 0 without one.
    """

    seconds: float
    broker: float
    jvm: float
    python: float
    worker_peak_bytes: int


class Meter:
    """Reads the accounts at its making, and says the difference when asked."""

    def __init__(self, jvm: int, brokers: Sequence[int]) -> None:
        """Note what all have used so far.

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
        """Return what was used since."""
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
    """Return all descendants of a process that live now."""
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
    """Return user and system time together; a process that is gone has none."""
    return sum(sum(map(int, _stat(pid)[11:13])) for pid in pids) / _TICKS


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; none of a process that is gone."""
    try:
        # The second field is the program's name in brackets, and may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _peak_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
