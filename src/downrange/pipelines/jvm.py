"""The Java process of a session, started so that its standard error can be looked through.

Java and Spark say two things there, whatever the level of logging is, that only worry people: that
a module is an incubator's, and that a Python worker wrote to somebody who had gone home. These are
left out; all the rest is passed on as it is.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_INCUBATOR: Final = "WARNING: Using incubator modules"
_TRACEBACK: Final = "Traceback (most recent call last):"
#: What a worker of Spark's says when it is done and nobody listens any more.
_BROKEN_PIPE: Final = ("pyspark/daemon.py", "BrokenPipeError")


def start_context(settings: Mapping[str, str]) -> None:
    """Start Java and a context of Spark in it, which becomes that of this process.

    Does nothing where Java runs already: it is shared by all contexts of a process.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    launch: Any = java_gateway.launch_gateway
    if getattr(SparkContext, "_gateway", None) is not None:
        return
    conf = SparkConf().setAll(list(settings.items()))
    gateway = launch(conf, {"stderr": subprocess.PIPE})
    process: Any = gateway.proc
    # A daemon: it ends with Java, or is left behind when this process ends first.
    threading.Thread(target=forward_errors, args=(process.stderr,), daemon=True).start()
    SparkContext(conf=conf, gateway=gateway)


def forward_errors(stream: IO[bytes]) -> None:
    """Write what comes to standard error, but for what only worries people."""
    lines = (line.decode(errors="replace") for line in stream)
    for text in without_noise(lines):
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except ValueError:  # closed, at the very end
            return


def without_noise(lines: Iterable[str]) -> Iterator[str]:
    """Leave out what only worries people."""
    held: list[str] = []
    for line in lines:
        if held:
            held.append(line)
            if line.startswith((" ", "\t")):
                continue
            if not all(any(mark in one for one in held) for mark in _BROKEN_PIPE):
                yield "".join(held)
            held = []
        elif line.startswith(_TRACEBACK):
            held = [line]
        elif not line.startswith(_INCUBATOR):
            yield line
    yield "".join(held)
