"""A connection of a browser. The log names a peer that begins with TLS where there is none."""

from __future__ import annotations

import logging
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from downrange.server.net.foreign_protocols import RareLines

_log: Final = logging.getLogger("downrange.console")
#: A TLS record that begins a handshake, and the major version of all TLS.
_TLS: Final = b"\x16\x03"
_PROBLEM: Final = (
    "a TLS handshake on a port without TLS: open the address with http://, or start the console "
    "with --https-certificate"
)
_rare_lines: Final = RareLines()


class HttpConnection(H11Protocol):
    """Reads HTTP as uvicorn does, after a look at the first bytes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_new = True

    def data_received(self, data: bytes) -> None:
        """Read bytes; refuse TLS."""
        is_tls = self._is_new and data.startswith(_TLS)
        self._is_new = False
        if is_tls:
            self._refuse_tls()
        else:
            super().data_received(data)

    def _refuse_tls(self) -> None:
        host = "?" if self.client is None else self.client[0]
        level = logging.WARNING if _rare_lines.is_due(host) else logging.DEBUG
        _log.log(level, "a connection of %s is cut: it began with %s", host, _PROBLEM)
        self.send_400_response(_PROBLEM)
