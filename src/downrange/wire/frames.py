"""Frames: the units of the byte stream, cut out of input in chunks of any size.

    bytes 0-3   length        i32, bytes that follow this word = 4 + header + body
    bytes 4-7   header word   codec (8 bits) and header length (24 bits)
    header      JSON text or the binary form; see `command`
    body        the rest; no bytes means "no body"

One rule: the buffer is bounded. A frame above the limit is refused as soon as its length word is
read, so a peer can make us buffer at most one frame of `bytes_max` and one read.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from downrange.errors import FrameTooLarge, MalformedFrame, Unencodable, WireError
from downrange.wire.codes import HeaderCodec
from downrange.wire.limits import FRAME_BYTES_MAX
from downrange.wire.send_answers import (
    ANSWER_BEGINNING,
    ANSWER_LENGTH_MAX,
    StoredAnswer,
    stored_answers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.wire.send_runs import SendRun

_HEADER_BYTES_MAX: Final = (1 << 24) - 1
_BINARY_MARK: Final = HeaderCodec.BINARY << 24
_JSON: Final = HeaderCodec.JSON  # looking up the enum member costs as much as cutting a frame
_BINARY: Final = HeaderCodec.BINARY
_LENGTH: Final = Struct(">i")
_WORDS: Final = Struct(">ii")
#: The rest of a read is joined with the next read as bytes, unless it is larger: a large frame that
#: arrives in many reads would be copied with each of them.
_REST_BYTES_MAX: Final = 64 * 1024
_NO_ANSWERS: Final[list[StoredAnswer]] = []


class Frame(msgspec.Struct, gc=False):
    """One frame, cut into its parts but not decoded."""

    codec: HeaderCodec
    header: bytes
    body: bytes


class FrameSplitter:
    """Cuts a stream of bytes into frames.

    `receive` takes bytes as they arrive, `next_frame` returns complete frames. After an error, the
    next frame boundary is unknown: the same error is raised again, and the connection must be
    closed.
    """

    __slots__ = ("_buffer", "_error", "_length_max", "_position")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._length_max = bytes_max - 4
        self._buffer: bytes | bytearray = b""
        self._position = 0
        self._error: WireError | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer; after an error they are dropped."""
        if self._error is not None:
            return
        if self._position == len(self._buffer):
            # The usual case: a read ends with a frame, so it is used without copying.
            self._buffer = data
        else:
            if type(self._buffer) is bytearray:
                del self._buffer[: self._position]
            elif len(self._buffer) - self._position <= _REST_BYTES_MAX:
                rest = memoryview(self._buffer)[self._position :]
                self._buffer = b"".join((rest, data))
                self._position = 0
                return
            else:
                self._buffer = bytearray(memoryview(self._buffer)[self._position :])
            self._buffer += data
        self._position = 0

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None if more bytes are needed.

        Raises:
            FrameTooLarge: The length word is above the limit.
            MalformedFrame: The length word or header word is impossible.
        """
        if self._error is not None:
            raise self._error
        buffer, start = self._buffer, self._position
        buffered = len(buffer) - start
        if buffered < 8:
            if buffered >= 4:
                self._check_length(_LENGTH.unpack_from(buffer, start)[0])
            return None
        length, word = _WORDS.unpack_from(buffer, start)
        if length > self._length_max:
            self._check_length(length)
        # The high byte is the codec, so a JSON header's word is the plain length of the header.
        if 0 <= word <= length - 4 and word < _BINARY_MARK:
            codec, header_size = _JSON, word
        elif 0 <= word - _BINARY_MARK <= min(length - 4, _HEADER_BYTES_MAX):
            codec, header_size = _BINARY, word - _BINARY_MARK
        else:
            self._check_length(length)
            self._fail(_word_error(word, length))
        if buffered < length + 4:
            return None
        body_start = start + 8 + header_size
        end = start + 4 + length
        if type(buffer) is bytes:
            header, body = buffer[start + 8 : body_start], buffer[body_start:end]
        else:  # a slice of a bytearray would be a bytearray
            view = memoryview(buffer)
            header, body = bytes(view[start + 8 : body_start]), bytes(view[body_start:end])
        if buffered == length + 4:
            self._buffer = b""  # release the read; the frame has copies of its parts
            self._position = 0
        else:
            self._position = end
        return Frame(codec, header, body)

    def next_run(self, take: Callable[[bytes, int, int], SendRun | None]) -> SendRun | None:
        """Return the plain sends that are next, or None: then `next_frame` has the next frame.

        Args:
            take: `send_runs.take_sends`; given bytes, a position, and the limit of a length word.
        """
        buffer = self._buffer
        if type(buffer) is not bytes or len(buffer) - self._position < 8:
            return None
        run = take(buffer, self._position, self._length_max)
        if run is not None:
            if run.end == len(buffer):
                self._buffer, self._position = b"", 0
            else:
                self._position = run.end
        return run

    def next_answers(self) -> list[StoredAnswer]:
        """Return the next complete frames that are plain replies to sends; often none."""
        buffer, start = self._buffer, self._position
        if len(buffer) - start < 8 or self._error is not None:
            return _NO_ANSWERS
        length, word = _WORDS.unpack_from(buffer, start)
        if word != length - 4 or not buffer.startswith(ANSWER_BEGINNING, start + 8):
            return _NO_ANSWERS  # the next frame has a body, or is another reply
        if type(buffer) is not bytes:
            self._buffer = buffer = bytes(memoryview(buffer)[start:])
            start = 0
        answers, end = stored_answers(buffer, start, min(self._length_max, ANSWER_LENGTH_MAX))
        if end == len(buffer):
            self._buffer, end = b"", 0
        self._position = end
        return answers

    @property
    def is_idle(self) -> bool:
        """Whether the input so far ends with a complete frame."""
        return self._position == len(self._buffer)

    def _check_length(self, length: int) -> None:
        if length > self._length_max:
            self._fail(FrameTooLarge(length + 4, self._length_max + 4))
        if length < 4:
            self._fail(MalformedFrame("frame length", f"{length} leaves no room for a header word"))

    def _fail(self, error: WireError) -> NoReturn:
        self._error = error
        self._buffer = b""
        self._position = 0
        raise error


def join_frame(codec: HeaderCodec, header: bytes, body: bytes, bytes_max: int) -> bytes:
    """Write one frame.

    Raises:
        FrameTooLarge: Header and body together are above the limit.
        Unencodable: The header is too long for its length field.
    """
    header_size = len(header)
    length = 4 + header_size + len(body)
    if length + 4 > bytes_max:
        raise FrameTooLarge(length + 4, bytes_max)
    if header_size > _HEADER_BYTES_MAX:  # possible only with a limit above Java's
        raise Unencodable("frame header", f"{header_size} bytes do not fit 24 bits of length")
    word = header_size if codec is _JSON else header_size + _BINARY_MARK
    return _WORDS.pack(length, word) + header + body


def _word_error(word: int, length: int) -> MalformedFrame:
    codec, header_size = word >> 24 & 0xFF, word & _HEADER_BYTES_MAX
    if codec not in (_JSON, _BINARY):
        return MalformedFrame("frame header word", f"unknown header codec {codec}")
    return MalformedFrame(
        "frame header word", f"a header of {header_size} bytes in a frame of length {length}"
    )
