"""Why a connection could not be opened: system errors turned into our errors, in words.

One rule: each text gives the reason first and then, where there is one, the next step. Every text
begins with the address, which is also a field.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Final

from downrange.errors import ConnectFailed, HostNotFound, TlsFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

#: OpenSSL's numbers for a certificate that names another host, or another IP address.
_WRONG_HOST: Final = (62, 64)
_EXPIRED: Final = 10


def not_found(address: str, timeout: float, error: Exception) -> HostNotFound:
    """Return the error for a host name that was not found."""
    if isinstance(error, TimeoutError):
        return HostNotFound(address, f"its name was not found within {timeout:g} s")
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
        return HostNotFound(address, "name not found, the name service does not answer")
    return HostNotFound(address, "name not found")


def unreachable(address: str, timeout: float, failures: Iterable[OSError]) -> ConnectFailed:
    """Return the error for a host none of whose addresses could be reached."""
    reasons = dict.fromkeys(_reason(error, timeout) for error in failures)
    return ConnectFailed(address, ", ".join(reasons))


def proxy_failed(address: str, timeout: float, proxy: str, error: Exception) -> ConnectFailed:
    """Return the error for a proxy that did not connect to the address."""
    if isinstance(error, ConnectFailed):
        return ConnectFailed(address, f"proxy {error}")
    reason = _reason(error, timeout) if isinstance(error, OSError) else str(error)
    return ConnectFailed(address, f"proxy {proxy}: {reason}")


def tls_failed(address: str, timeout: float, error: Exception) -> TlsFailed:
    """Return the error for a peer with which TCP works and TLS does not."""
    if isinstance(error, TimeoutError):
        problem = f"the TLS handshake did not finish within {timeout:g} s; does it speak TLS?"
        return TlsFailed(address, problem)
    return TlsFailed(address, tls_problem(error))


def tls_problem(error: Exception) -> str:
    """Return what a TLS error means and what to do about it.

    With TLS 1.3 a server rejects a client certificate after the handshake, so this is also used for
    errors while reading.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_problem(error)
    reason = str(getattr(error, "reason", None) or "")
    said = f" ({reason.lower().replace('_', ' ')})" if reason else ""
    if "ALERT" in reason:
        step = "it may require a client certificate, TLS(certificate=…)"
        return f"it refused the connection{said}; {step}"
    return f"it does not speak TLS{said}; turn TLS on there, or leave tls out here"


def _certificate_problem(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_HOST:
        return (
            f"its certificate is for another host ({reason}); connect by a name that it holds, or "
            "set TLS(check_host=False)"
        )
    if error.verify_code == _EXPIRED:
        return f"its certificate is not trusted ({reason}); it must be renewed there"
    return f"its certificate is not trusted ({reason}); name its authority's file with TLS(ca=…)"


def _reason(error: OSError, timeout: float) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"no answer within {timeout:g} s"
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]
