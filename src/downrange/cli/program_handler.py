"""Runs a program for each message: the body on its standard input, the rest in its environment.

Its exit code says what becomes of the message:

     0  done
    65  a dead letter, at once (EX_DATAERR of sysexits.h)
    75  delivered again later (EX_TEMPFAIL); every other code, and a signal, has the same effect
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from downrange.client.flows.validation import RESERVED_PROPERTIES
from downrange.errors import DeadLetter, OptionError, Retry

if TYPE_CHECKING:
    from typing import IO

    from downrange.model import ReceivedMessage

#: The exit code for a dead letter, and the usual one for another delivery.
DEAD_LETTER: Final = 65
TRY_LATER: Final = 75
_LINE_BYTES: Final = 4096
#: Seconds that a child of a program which has ended may keep its standard error open.
_READER_GRACE: Final = 1.0
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]")
_log = logging.getLogger("downrange.worker")


class ProgramHandler:
    """Handles messages by running a program; may be called from any number of threads.

    Args:
        command: The program and its arguments, quoted as for a shell. No shell is run.
        timeout: Seconds after which the program and its children are killed.

    Raises:
        OptionError: There is no such program.
    """

    def __init__(self, command: str, timeout: float) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise OptionError(f"--exec {command!r}: {error}") from None
        if not self._arguments:
            raise OptionError("--exec is empty; give a program and its arguments")
        if shutil.which(self._arguments[0]) is None:
            raise OptionError(f"--exec: there is no program {self._arguments[0]!r}")
        self._timeout = timeout
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._is_closed = False

    def __call__(self, message: ReceivedMessage) -> None:
        """Run the program.

        Raises:
            Retry: It ended with a code that asks for another delivery, or was killed.
            DeadLetter: It ended with 65.
        """
        with tempfile.TemporaryFile() as body:
            body.write(message.body)
            body.seek(0)
            code = self._run(message, body)
        if code == DEAD_LETTER:
            _log.warning("message %s: the program asks for a dead letter", message.message_id)
            raise DeadLetter(f"the program ended with {code}")
        if code != 0:
            raise Retry

    def kill_all(self) -> None:
        """Kill all programs and their children, and begin no further one."""
        with self._lock:
            self._is_closed = True
            for process in self._running:
                _kill_group(process)

    def _run(self, message: ReceivedMessage, body: IO[bytes]) -> int:
        process = self._start(message, body)
        assert process.stderr is not None
        reader = threading.Thread(
            target=_log_lines, args=(process.stderr, message.message_id), daemon=True
        )
        reader.start()
        try:
            code = process.wait(self._timeout)
            if code not in (0, DEAD_LETTER, TRY_LATER):
                _log.warning("message %s: the program %s", message.message_id, _ending(code))
        except subprocess.TimeoutExpired:
            _log.warning(
                "message %s: the program did not end within %g s and is killed",
                *(message.message_id, self._timeout),
            )
            _kill_group(process.pid)
            code = process.wait()
        finally:
            with self._lock:
                self._running.discard(process.pid)
        reader.join(_READER_GRACE)
        return code

    def _start(self, message: ReceivedMessage, body: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise Retry
            try:
                process = subprocess.Popen(
                    self._arguments,
                    stdin=body,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **environment(message)},
                    # A session of its own: Ctrl-C reaches the worker alone, and a kill of the
                    # group reaches the children.
                    start_new_session=True,
                )
            except OSError as error:
                _log.warning("message %s: the program did not start: %s", message.message_id, error)
                raise Retry from error
            self._running.add(process.pid)
            return process


def environment(message: ReceivedMessage) -> dict[str, str]:
    """Return the variables for a message."""
    own = {
        name: value for name, value in message.properties.items() if name not in RESERVED_PROPERTIES
    }
    queue = message.queue
    facts: dict[str, Any] = {
        "TOPIC": message.topic,
        "TAGS": message.tags or "",
        "KEYS": " ".join(message.keys),
        "MESSAGE_ID": message.message_id,
        "ATTEMPT": message.delivery_attempts + 1,
        "QUEUE": f"{queue.broker}:{queue.number}",
        "OFFSET": message.offset,
        "BORN_AT_MS": message.born_at_ms,
        "PROPERTIES": json.dumps(own, ensure_ascii=False),
        **{f"PROPERTY_{_NO_NAME.sub('_', name).upper()}": value for name, value in own.items()},
    }
    return {f"DOWNRANGE_{name}": str(fact) for name, fact in facts.items()}


def _log_lines(stream: IO[bytes], message_id: str) -> None:
    from downrange.cli.output import readable

    with stream, suppress(ValueError, OSError):
        while line := stream.readline(_LINE_BYTES):
            text = line.decode(errors="replace").rstrip("\r\n")
            _log.warning("message %s: %s", message_id, readable(text))


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _kill_group(process: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
