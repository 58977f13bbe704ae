"""Message ids: the producer's unique id, and the broker's offset id.

Unique id, upper-case hexadecimal of
    IP (4 or 16 bytes), process id (low 16 bits), a number per process (i32),
    milliseconds since the month began in local time (i32), counter (16 bits)

Offset id, upper-case hexadecimal of
    IP of the broker (4 or 16 bytes), port (i32), position in its commit log (i64)

Either is 32 characters long with an IPv4 address and 56 with an IPv6 one.
"""

from __future__ import annotations

from ipaddress import ip_address
from itertools import count, islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import MalformedId
from downrange.model import LogOffset

if TYPE_CHECKING:
    from collections.abc import Callable

_UNIQUE_TAIL: Final = Struct(">HiiH")
_OFFSET_TAIL: Final = Struct(">iq")
_IP_SIZES: Final = (4, 16)


class UniqueId(NamedTuple):
    """The parts of a unique id."""

    host: str
    process_id: int
    process_salt: int
    month_ms: int
    counter: int


class OffsetId(NamedTuple):
    """The parts of an offset id: the broker, and the position in its log."""

    host: str
    port: int
    log_offset: LogOffset

    def __str__(self) -> str:
        tail = _OFFSET_TAIL.pack(self.port, self.log_offset)
        return (ip_address(self.host).packed + tail).hex().upper()


def offset_id(ip: bytes, port: int, log_offset: int) -> str:
    """Return the offset id of a record; the IP address is given in bytes."""
    return (ip + _OFFSET_TAIL.pack(port, log_offset)).hex().upper()


def parse_offset_id(text: str) -> OffsetId:
    """Read an offset id.

    Raises:
        MalformedId: The text is not an offset id.
    """
    ip, tail = _split(text, _OFFSET_TAIL, "offset id")
    port, log_offset = _OFFSET_TAIL.unpack(tail)
    return OffsetId(str(ip_address(ip)), port, LogOffset(log_offset))


def parse_unique_id(text: str) -> UniqueId:
    """Read a unique id in the form of our and of Java's producers.

    Raises:
        MalformedId: The text has another form. Producers may use any text as an id.
    """
    ip, tail = _split(text, _UNIQUE_TAIL, "unique id")
    return UniqueId(str(ip_address(ip)), *_UNIQUE_TAIL.unpack(tail))


def _split(text: str, tail: Struct, what: str) -> tuple[bytes, bytes]:
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise MalformedId(f"{what} {text[:80]!r}", "is not a hexadecimal number") from error
    ip_size = len(raw) - tail.size
    if ip_size not in _IP_SIZES or len(text) != 2 * len(raw):
        raise MalformedId(f"{what} {text[:80]!r}", f"has {len(text)} characters, not 32 or 56")
    return raw[:ip_size], raw[ip_size:]


class UniqueIdMaker:
    """Makes unique ids for one process; it is thread-safe.

    Args:
        ip: This host's address, 4 or 16 bytes.
        process_id: Its low 16 bits are used.
        process_salt: A number that differs between two runs with the same process id.
        month_around: Given a time in ms, returns the ms at which its month begins and ends, in
            local time. It is called at the start and at the end of a month.
    """

    __slots__ = (
        "_counter",
        "_moment",
        "_month_around",
        "_month_end_ms",
        "_month_start_ms",
        "_prefix",
    )

    def __init__(
        self,
        ip: bytes,
        process_id: int,
        process_salt: int,
        month_around: Callable[[int], tuple[int, int]],
    ) -> None:
        salt = process_salt & 0xFFFFFFFF
        self._prefix = f"{ip.hex().upper()}{process_id & 0xFFFF:04X}{salt:08X}"
        self._month_around = month_around
        self._month_start_ms = self._month_end_ms = 0
        #: A millisecond and the first part of its ids; one object, so that threads can share it.
        self._moment = (-1, "")
        self._counter = count(1)

    def make(self, now_ms: int) -> str:
        """Return the next id; `now_ms` is the wall clock."""
        moment_ms, front = self._moment
        if now_ms != moment_ms:
            front = self._front_at(now_ms)
        return f"{front}{next(self._counter) & 0xFFFF:04X}"

    def make_several(self, now_ms: int, count: int) -> list[str]:
        """Return the next `count` ids."""
        front = self._front_at(now_ms)
        return [f"{front}{number & 0xFFFF:04X}" for number in islice(self._counter, count)]

    def _front_at(self, now_ms: int) -> str:
        """Return the first part of the ids of a millisecond, and cache it."""
        if now_ms >= self._month_end_ms:
            self._month_start_ms, self._month_end_ms = self._month_around(now_ms)
        # If the clock is set back to the month before, the field must not wrap.
        front = f"{self._prefix}{max(now_ms - self._month_start_ms, 0):08X}"
        self._moment = (now_ms, front)
        return front
