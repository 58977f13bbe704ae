"""Standard input, output and error of the process: closed, full, or without Unicode.

One rule: an output that cannot be written ends the command without a traceback. Each form of
output (print, click, rich, bytes) goes through `_Output`, so no command handles this itself.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

#: The code of a process that a broken pipe ends: 128 + SIGPIPE.
BROKEN_PIPE: Final = 141
_FAILED: Final = 1


class OutputFailed(Exception):
    """Standard output cannot be written.

    Attributes:
        number: The error number.
    """

    def __init__(self, number: int) -> None:
        """Take the error number."""
        super().__init__(f"standard output: {os.strerror(number)}")
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return BROKEN_PIPE if self.number == errno.EPIPE else _FAILED


def run(command: Callable[[], object]) -> None:
    """Run a command on streams that end it without a traceback.

    A command whose reader is gone (`| head`) exits with 141 and prints nothing. Other errors of
    standard output are printed, and the exit code is 1. Errors of standard error are ignored.
    """
    _open_closed_descriptors()
    _replace_streams()
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except OutputFailed as error:
        if error.number != errno.EPIPE:
            print(f"downrange: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def check_reader() -> None:
    """Check that the reader of a pipe is still there, for a command that waits for its next output.

    Raises:
        OutputFailed: It is gone.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # not a file: output that a test captures
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # errors only
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise OutputFailed(errno.EPIPE)


# ---- streams -------------------------------------------------------------------------------------


class _Output(io.FileIO):
    """Standard output; raises `OutputFailed` at the first error, then discards everything."""

    _is_broken = False

    def write(self, data: ReadableBuffer) -> int:
        size = memoryview(data).nbytes
        if self._is_broken:
            return size
        try:
            return super().write(data)
        except OSError as error:
            self._is_broken = True
            raise OutputFailed(error.errno or errno.EIO) from None


class _Errors(io.FileIO):
    """Standard error; what cannot be written is discarded."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _open_closed_descriptors() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next socket or file gets their descriptor, and output would go into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (open until the process ends)


def _replace_streams() -> None:
    """Replace the streams of the interpreter; those that a test or a program has set stay."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text_stream(_Output(1, "w", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text_stream(_Errors(2, "w", closefd=False), sys.stderr)


def _text_stream(raw: io.FileIO, old: Any) -> TextIO:
    is_unbuffered = raw.fileno() == 2 or raw.isatty() or getattr(old, "write_through", False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors="backslashreplace",  # a character that the encoding does not have
        line_buffering=is_unbuffered,
    )
