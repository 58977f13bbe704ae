"""What an operation costs, in numbers that are the same on a busy machine and on an idle one.

Counted is the package's own code only, so that whatever plays the other side costs nothing: calls
that it makes and frames that it enters, the instructions it executes, and the bytes that are held
at the same time while it runs.

A subject is a function without arguments that returns a context manager of the operation:

    @contextmanager
    def sending() -> Generator[Operation]:
        with … as producer:
            yield lambda: producer.send(message)

    counts = counted_apart("tests.guards.sends:sending")

That counts in a process of its own, for coverage and a debugger want the interpreter's one hook,
too. By hand, to see the figures:

    python -m tests.guards.count tests.guards.sends:sending
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

import downrange

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType

Operation: TypeAlias = Callable[[], object]
Subject: TypeAlias = "Callable[[], AbstractContextManager[Operation]]"

ROOT: Final = Path(__file__).parents[2]
_PACKAGE: Final = str(Path(downrange.__file__).parent) + os.sep
#: What the package compiles when it runs: conversions of headers.
_COMPILED: Final = "<string>"
#: Enough to fill every cache, and for a lane to come round.
_WARM_UPS: Final = 20
#: The smallest of so many counts: a timer that rings meanwhile is no cost of the operation.
_ROUNDS: Final = 5
_TIMEOUT: Final = 120


class Counts(msgspec.Struct, frozen=True):
    """What one run of an operation costs.

    Attributes:
        calls: Functions that the package calls or is called by; a generator once per step.
        instructions: Bytecode instructions of the package.
        held_bytes: The most bytes allocated at one time, beyond those before it.
    """

    calls: int
    instructions: int
    held_bytes: int


def count(operation: Operation) -> Counts:
    """Count what an operation costs once everything is warm, in this thread."""
    for _ in range(_WARM_UPS):
        operation()
    gc.collect()
    gc.disable()
    try:
        return Counts(
            min(_calls(operation) for _ in range(_ROUNDS)),
            min(_instructions(operation) for _ in range(_ROUNDS)),
            _held_bytes(operation),
        )
    finally:
        gc.enable()


def counted_apart(subject: str) -> Counts:
    """Count in a process of its own what a subject costs, named as "module:function"."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.guards.count", subject],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Counts)


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_PACKAGE) or name == _COMPILED


def _calls(operation: Operation) -> int:
    calls = 0

    def notice(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call") and _is_ours(frame):
            calls += 1

    sys.setprofile(notice)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return calls


def _instructions(operation: Operation) -> int:
    instructions = 0

    def step(_: FrameType, event: str, __: Any) -> Any:
        nonlocal instructions
        if event == "opcode":
            instructions += 1
        return step

    def enter(frame: FrameType, _: str, __: Any) -> Any:
        if not _is_ours(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return step

    sys.settrace(enter)
    try:
        operation()
    finally:
        sys.settrace(None)
    return instructions


def _held_bytes(operation: Operation) -> int:
    tracemalloc.start()
    try:
        held: list[int] = []
        for _ in range(_ROUNDS):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            operation()
            held.append(tracemalloc.get_traced_memory()[1] - before)
        return min(held)
    finally:
        tracemalloc.stop()


def main(name: str) -> None:
    """Count a subject and print the counts as JSON."""
    module, _, function = name.partition(":")
    subject: Subject = getattr(import_module(module), function)
    with subject() as operation:
        counts = count(operation)
    sys.stdout.write(msgspec.json.encode(counts).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
