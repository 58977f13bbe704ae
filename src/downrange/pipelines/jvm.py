"""The Java process of a session, started so that its standard error can be filtered.

Java and Spark print two harmless messages there at every log level: the warning about an incubator
module, and the traceback of a Python worker whose pipe was closed. These are dropped; everything
else is forwarded unchanged.
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
#: In the traceback of a Spark worker that ends after its pipe was closed.
_BROKEN_PIPE: Final = ("pyspark/daemon.py", "BrokenPipeError")


def start_context(settings: Mapping[str, str]) -> None:
    """Start Java with a Spark context, which becomes the context of this process.

    Does nothing if Java already runs: all contexts of a process share it.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    launch: Any = java_gateway.launch_gateway
    if getattr(SparkContext, "_gateway", None) is not None:
        return
    conf = SparkConf().setAll(list(settings.items()))
    gateway = launch(conf, {"stderr": subprocess.PIPE})
    process: Any = gateway.proc
    # A daemon thread ends with Java, or with this process if that ends first.
    threading.Thread(target=forward_errors, args=(process.stderr,), daemon=True).start()
    SparkContext(conf=conf, gateway=gateway)


def forward_errors(stream: IO[bytes]) -> None:
    """Forward lines to standard error, except the harmless messages."""
    lines = (line.decode(errors="replace") for line in stream)
    for text in without_noise(lines):
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except ValueError:  # standard error is closed at exit
            return


def without_noise(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines without the harmless messages."""
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
