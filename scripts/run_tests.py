"""Run all tests, several parts at a time, and print the result of each part.

    python scripts/run_tests.py

A part is a process of its own: a folder of tests, a share of a large folder, the type checkers, or
the checks of the Rust code.
Tests with Apache's servers mostly wait, many others mostly compute, so some parts at a time take
little more time than the longest alone. The output of a part is printed when it has ended. The last
lines are the totals, and the skipped tests with their reasons. The exit code is 0 when no part
failed.

The native part is used if it is built. The tests of `PURE` then run a second time without it
(`DOWNRANGE_PURE=1`), because the twins in Python are the reference. If it is not built, all runs in
Python, the second runs are left out, and a line says why; with `DOWNRANGE_REQUIRE_NATIVE=1` in the
environment that is a failure.

Coverage is measured in the parts of `COVERED`, which reach the limits alone: it slows down all code
that only computes, such as a simulation. The unit tests count without the native part, because
only then do they run the twins in Python everywhere; the embedded servers run with it.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING
from xml.etree import ElementTree

from downrange.native import PURE_VARIABLE, native, pure_reason

if TYPE_CHECKING:
    from types import FrameType

TESTS = Path("tests")
BUILD = Path("build")
#: How many parts run at a time. Each has its own servers: about 3 GiB if these are Apache's.
AT_ONCE = 4
#: The folders that take long, with the number of their shares. First shares run first, so that
#: parts which wait and parts which compute run together; all other folders run last.
LONG = {
    "spark": 2,
    "contract": 3,
    "apache": 2,
    "interop": 2,
    "embedded": 1,
    "faults": 1,
    "browser": 1,
    "unit": 1,
    "examples": 1,
}
#: All shares of this folder run first: each takes nearly as long as the whole run.
LONGEST = "spark"
#: What also runs without the native part, with the tests that are left out there: Apache's servers
#: are the same for both. Of the Spark jobs those that read and those of one task, without a JVM.
PURE = {
    "contract": "apache",
    "unit": "",
    "simulation": "",
    "golden": "",
    "embedded/spark": "",
    "spark/test_read.py": "",
}
#: The parts that only compute, without clocks. They run at a lower priority: tests that wait for
#: servers then have a core when they need it.
COMPUTING = frozenset({"types", "rust", "simulation"})
NICE = ("nice", "-n", "10")
#: The parts that count towards the coverage.
COVERED = ("embedded", "pure-unit", "pure-golden")
PYTEST = ("-m", "pytest")
COVERAGE = ("-m", "coverage", "run", "--parallel-mode")
MAKE = ("make", "--no-print-directory")
#: Set to 1, the native part must be there.
REQUIRE_VARIABLE = "DOWNRANGE_REQUIRE_NATIVE"
#: How long an interrupted part may take to stop its servers.
STOP_SECONDS = 60.0
_KINDS = ("passed", "failed", "skipped")


@dataclass
class Part:
    """One process: its command, its output and its end.

    Attributes:
        name: For headings and file names.
        command: The command line.
        environment: Variables to set.
        code: The exit code, when it has ended.
        seconds: How long it took.
        cpu_seconds: The CPU time that it took, with all processes that it waited for.
    """

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    code: int | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _output: IO[bytes] | None = field(default=None, repr=False)
    _begun: float = 0.0

    @property
    def report(self) -> Path:
        """The results as XML."""
        return BUILD / f"tests-{self.name}.xml"

    @property
    def log(self) -> Path:
        """The output."""
        return BUILD / f"tests-{self.name}.txt"

    def start(self) -> None:
        """Start the process."""
        self.report.unlink(missing_ok=True)
        self._begun = time.monotonic()
        self._output = self.log.open("wb")
        is_computing = self.name.removeprefix("pure-") in COMPUTING
        self._process = subprocess.Popen(
            [*NICE, *self.command] if is_computing else self.command,
            env=os.environ | self.environment,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        assert self._process is not None
        before = _children_cpu_seconds()
        if self._process.poll() is None:
            return False
        self.cpu_seconds = _children_cpu_seconds() - before
        self._end()
        return True

    def stop(self, *, is_told: bool) -> None:
        """Stop the process as Ctrl-C does, so that it stops its servers; else kill it.

        Args:
            is_told: It has the signal already, as all processes of a terminal do.
        """
        assert self._process is not None
        if not is_told:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        assert self._output is not None
        self._output.close()
        self.code = self._process.returncode
        self.seconds = time.monotonic() - self._begun


def _children_cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run all parts."""
    signal.signal(signal.SIGTERM, _exit)
    # A shell that starts this in the background has SIGINT ignored, which tests and all their
    # processes would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    BUILD.mkdir(exist_ok=True)
    if native is None:
        if os.environ.get(REQUIRE_VARIABLE, "0") not in ("", "0"):
            sys.exit(f"{REQUIRE_VARIABLE} is set, but {pure_reason}")
        print(f"Left out: all tests of the native part, because {pure_reason}")
    begun = time.monotonic()
    parts = _parts()
    _run(parts)
    counts, reasons = Counter[str](), Counter[str]()
    for part in parts:
        _count(part.report, counts, reasons)
    failed = [part.name for part in parts if part.code != 0]
    print("\nParts by CPU time")
    for part in sorted(parts, key=lambda part: -part.cpu_seconds):
        print(f"{part.cpu_seconds:>6.0f} s of CPU, {part.seconds:>5.0f} s  {part.name}")
    print(f"Time: {time.monotonic() - begun:.0f} s for {len(parts)} parts, {AT_ONCE} at a time")
    print(f"Parts that failed: {', '.join(failed) or 'none'}")
    print(f"All tests: {', '.join(f'{counts[kind]} {kind}' for kind in _KINDS)}")
    print("Skipped: none" if not reasons else "Skipped, with reasons")
    for reason, count in reasons.most_common():
        print(f"{count:>6}  {reason}")
    sys.exit(1 if failed else 0)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit("stopped by SIGTERM")


def _parts() -> list[Part]:
    found = {path.name: sorted(path.rglob("test_*.py")) for path in TESTS.iterdir()}
    others = sorted(name for name, files in found.items() if files and name not in LONG)
    parts = [Part("types", [*MAKE, "types"]), Part("rust", [*MAKE, "rust"])]
    shares = [(number, folder) for number in range(max(LONG.values())) for folder in LONG]
    shares.sort(key=lambda share: share[1] != LONGEST)
    for number, folder in shares:
        count = LONG[folder]
        if files := found.get(folder, [])[number::count] if number < count else []:
            name = folder if count == 1 else f"{folder}-{number + 1}"
            parts.append(_tests(name, [TESTS / folder] if count == 1 else files))
    if native is not None:
        for path, without in PURE.items():
            name = path.removesuffix(".py").replace("/", "-")
            pure = _tests(f"pure-{name}", [TESTS / path])
            pure.environment[PURE_VARIABLE] = "1"
            pure.command += ["-m", f"not {without}"] if without else []
            parts.append(pure)
    parts += [_tests(name, [TESTS / name]) for name in others]
    return parts


def _tests(name: str, paths: list[Path]) -> Part:
    is_measured = name in COVERED or (native is None and f"pure-{name}" in COVERED)
    part = Part(name, [sys.executable, *(COVERAGE if is_measured else ()), *PYTEST])
    part.command += [f"--junitxml={part.report}", *map(str, paths)]
    return part


def _run(parts: list[Part]) -> None:
    """Run parts in this order, and print the output of each when it has ended."""
    left, running = list(reversed(parts)), list[Part]()
    try:
        while left or running:
            while left and len(running) < AT_ONCE:
                part = left.pop()
                part.start()
                running.append(part)
            time.sleep(0.1)
            for part in [part for part in running if part.has_ended()]:
                running.remove(part)
                print(f"\n==== {part.name}: {part.seconds:.0f} s\n")
                print(part.log.read_text(errors="replace"), flush=True)
    except BaseException as error:
        for part in running:
            part.stop(is_told=isinstance(error, KeyboardInterrupt))
        raise


def _count(report: Path, counts: Counter[str], reasons: Counter[str]) -> None:
    """Add the results of a report; the type checkers and a part that crashed have written none."""
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            counts["skipped"] += 1
            reasons[skipped.get("message", "no reason")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        else:
            counts["passed"] += 1


if __name__ == "__main__":
    main()
