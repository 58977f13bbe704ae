"""Run all tests under coverage, in two parallel processes, and print the result of both.

    python scripts/run_tests.py

Tests with Apache's servers mostly wait, all others mostly compute: in parallel they take little
more time than the longer half alone. The output of the waiting half is printed when both halves
have ended, then the totals, and the skipped tests with their reasons. The exit code is 0 when no
test failed.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

TESTS = Path("tests")
BUILD = Path("build")
#: Folders whose tests need Apache's servers or clients; all other folders are the second half.
WAITING = ("apache", "contract", "conversations", "interop")
PYTEST = (sys.executable, "-m", "coverage", "run", "--parallel-mode", "-m", "pytest")


def main() -> None:
    """Run both halves."""
    BUILD.mkdir(exist_ok=True)
    folders = [path.name for path in TESTS.iterdir() if any(path.rglob("test_*.py"))]
    computing = sorted(set(folders) - set(WAITING))
    log = BUILD / "tests-waiting.txt"
    with log.open("wb") as output:
        waiting = subprocess.Popen(
            _command("waiting", WAITING), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            code = subprocess.run(_command("computing", computing), check=False).returncode
            waiting_code = waiting.wait()
        except BaseException:  # Ctrl-C: both processes get the signal and end by themselves
            waiting.wait()
            raise
    print(f"\n==== {', '.join(WAITING)}\n\n{log.read_text(errors='replace')}")
    counts, reasons = Counter[str](), Counter[str]()
    for half in ("waiting", "computing"):
        _count(_report(half), counts, reasons)
    print(f"\nAll tests: {', '.join(f'{counts[kind]} {kind}' for kind in _KINDS)}")
    print("Skipped: none" if not reasons else "Skipped, with reasons")
    for reason, count in reasons.most_common():
        print(f"{count:>6}  {reason}")
    sys.exit(1 if code or waiting_code else 0)


_KINDS = ("passed", "failed", "skipped")


def _command(half: str, folders: tuple[str, ...] | list[str]) -> list[str]:
    report = _report(half)
    report.unlink(missing_ok=True)
    return [*PYTEST, f"--junitxml={report}", *(str(TESTS / folder) for folder in folders)]


def _report(half: str) -> Path:
    return BUILD / f"tests-{half}.xml"


def _count(report: Path, counts: Counter[str], reasons: Counter[str]) -> None:
    """Add the results of a report; a run that crashed has written none."""
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
