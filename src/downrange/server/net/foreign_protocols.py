"""What a peer speaks that does not speak this protocol: TLS, HTTP or HTTP/2, by its first bytes.

A frame begins with its length, 4 bytes. The first bytes of these protocols, read as a length, are
far above every limit. So a server sees them as a frame that is too large, and this module says what
they are, and what to do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from downrange.errors import FrameTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from downrange.errors import WireError

#: The type of a TLS record that begins a handshake; its major version follows.
TLS_HANDSHAKE: Final = b"\x16"
_TLS_PREFIX: Final = b"\x16\x03"
_HTTP_STARTS: Final = (
    *(b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC"),
)
_HTTP2_START: Final = b"PRI "

_TLS: Final = (
    "a TLS handshake on a port without TLS: start the server with --tls-certificate and --tls-key, "
    "or the client without TLS (--tls)"
)
_HTTP: Final = (
    "an HTTP request, but this port speaks RocketMQ's protocol: metrics and health checks have a "
    "port of their own (--metrics)"
)
_HTTP2: Final = (
    "an HTTP/2 request, as gRPC clients of RocketMQ 5 send it: they need a proxy; this port speaks "
    "RocketMQ's own protocol"
)
_PLAIN: Final = (
    "plain text where TLS is required (--tls-mode enforcing): start the client with TLS (--tls)"
)
#: Seconds between two lines about the same host and protocol.
_INTERVAL: Final = 10.0
_SOURCES_MAX: Final = 1_000


def begins_with_tls(first: bytes) -> bool:
    """Whether bytes begin with a TLS handshake."""
    return first.startswith(_TLS_PREFIX)


def foreign_protocol(first: bytes) -> str | None:
    """Return what a peer speaks and what to do, from its first 4 bytes; None if that is unknown."""
    start = first[:4]
    if begins_with_tls(start):
        return _TLS
    if start in _HTTP_STARTS:
        return _HTTP
    return _HTTP2 if start == _HTTP2_START else None


def foreign_error(error: WireError) -> str | None:
    """Return the same from the error that the bytes led to."""
    if isinstance(error, FrameTooLarge) and 0 < error.size - 4 <= 0xFFFFFFFF:
        return foreign_protocol((error.size - 4).to_bytes(4, "big"))
    return None


def plain_on_tls(first: bytes) -> str:
    """Return what a peer speaks that does not begin with a TLS handshake where that is required."""
    found = foreign_protocol(first)
    return _PLAIN if found is None else f"{found}. It also requires TLS"


class RareLines:
    """Decides which of many equal lines are logged: one in ten seconds.

    A probe of another protocol, which comes every second, must not fill the log.

    Args:
        clock: A monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: dict[Hashable, float] = {}

    def is_due(self, line: Hashable) -> bool:
        """Whether a line is logged now."""
        now = self._clock()
        if now - self._logged_at.get(line, float("-inf")) < _INTERVAL:
            return False
        self._logged_at.pop(line, None)
        self._logged_at[line] = now
        if len(self._logged_at) > _SOURCES_MAX:
            del self._logged_at[next(iter(self._logged_at))]
        return True
