"""Counts the cost of an operation, in figures that do not depend on the load of the machine.

Only the package's own code is counted, so the simulated peer costs nothing: function calls,
bytecode instructions, and the peak of allocated bytes.

A subject is a function without arguments that returns a context manager of the operation:

    @contextmanager
    def sending() -> Generator[Operation]:
        with … as producer:
            yield lambda: producer.send(message)

    counts = counted_apart("tests.guards.sends:sending", "native")

It counts in a separate process, because coverage and debuggers use the interpreter's only trace
hook, too. To print the figures:

    python -m tests.guards.count tests.guards.sends:sending
    DOWNRANGE_PURE=1 python -m tests.guards.count tests.guards.sends:sending

What the native part does costs a call, and nothing else here: its own work is not counted.
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
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

import downrange
from downrange.native import PURE_VARIABLE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType

Operation: TypeAlias = Callable[[], object]
Subject: TypeAlias = "Callable[[], AbstractContextManager[Operation]]"

#: Which twins of hot functions run; see `downrange.native`.
Twins: TypeAlias = Literal["pure", "native"]

ROOT: Final = Path(__file__).parents[2]
_PACKAGE: Final = str(Path(downrange.__file__).parent) + os.sep
#: Code that the package compiles at run time: conversions of headers.
_COMPILED: Final = "<string>"
#: Enough to fill every cache, and for a round robin to pass all queues.
_WARM_UPS: Final = 20
#: The smallest of this many counts, so that timers that fire meanwhile are not counted.
_ROUNDS: Final = 5
_TIMEOUT: Final = 120


class Counts(msgspec.Struct, frozen=True):
    """The cost of one run of an operation.

    Attributes:
        calls: Calls from and to the package; each step of a generator counts.
        instructions: Bytecode instructions of the package.
        held_bytes: The peak of allocated bytes, above those before the run.
    """

    calls: int
    instructions: int
    held_bytes: int


class Budget(NamedTuple):
    """The most that an operation may cost, for each path.

    Attributes:
        pure: With the twins in Python.
        native: With the native twins; as `pure` if None.
    """

    pure: Counts
    native: Counts | None = None

    def of(self, twins: Twins) -> Counts:
        """Return the budget of a path."""
        return self.native if twins == "native" and self.native is not None else self.pure


def count(operation: Operation) -> Counts:
    """Count the cost of an operation in this thread, after warming up."""
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


def counted_apart(subject: str, twins: Twins) -> Counts:
    """Count the cost of a subject, "module:function", in a separate process."""
    pure = "1" if twins == "pure" else "0"
    done = subprocess.run(
        [sys.executable, "-m", "tests.guards.count", subject],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0", PURE_VARIABLE: pure},
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
