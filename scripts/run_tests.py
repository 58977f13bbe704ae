"""Run all tests, several parts at a time, and print the result of each part.

    python scripts/run_tests.py

A part is a process of its own: a folder of tests, a share of a large folder, or the type checkers.
Tests with Apache's servers mostly wait, many others mostly compute, so some parts at a time take
little more time than the longest alone. The output of a part is printed when it has ended. The last
lines are the totals, and the skipped tests with their reasons. The exit code is 0 when no part
failed.

Coverage is measured in some folders, which reach the limits alone: it slows down code that only
computes, such as a simulation.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING
from xml.etree import ElementTree

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
    "unit": 1,
    "examples": 1,
}
#: The folders that count towards the coverage.
COVERED = ("unit", "golden", "embedded", "contract", "spark")
PYTEST = ("-m", "pytest")
COVERAGE = ("-m", "coverage", "run", "--parallel-mode")
TYPES = ("make", "--no-print-directory", "types")
#: How long an interrupted part may take to stop its servers.
STOP_SECONDS = 60.0
_KINDS = ("passed", "failed", "skipped")


@dataclass
class Part:
    """One process: its command, its output and its end.

    Attributes:
        name: For headings and file names.
        command: The command line.
        code: The exit code, when it has ended.
        seconds: How long it took.
    """

    name: str
    command: list[str]
    code: int | None = None
    seconds: float = 0.0
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
        self._process = subprocess.Popen(
            self.command, stdout=self._output, stderr=subprocess.STDOUT
        )

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        assert self._process is not None
        if self._process.poll() is None:
            return False
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


def main() -> None:
    """Run all parts."""
    signal.signal(signal.SIGTERM, _exit)
    BUILD.mkdir(exist_ok=True)
    begun = time.monotonic()
    parts = _parts()
    _run(parts)
    counts, reasons = Counter[str](), Counter[str]()
    for part in parts:
        _count(part.report, counts, reasons)
    failed = [part.name for part in parts if part.code != 0]
    print(f"\nTime: {time.monotonic() - begun:.0f} s for {len(parts)} parts, {AT_ONCE} at a time")
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
    parts = [Part("types", list(TYPES))]
    for number in range(max(LONG.values())):
        for folder, count in LONG.items():
            if files := found.get(folder, [])[number::count] if number < count else []:
                name = folder if count == 1 else f"{folder}-{number + 1}"
                parts.append(_tests(name, [TESTS / folder] if count == 1 else files))
    parts += [_tests(name, [TESTS / name]) for name in others]
    return parts


def _tests(name: str, paths: list[Path]) -> Part:
    measured = COVERAGE if paths[0].relative_to(TESTS).parts[0] in COVERED else ()
    part = Part(name, [sys.executable, *measured, *PYTEST])
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
