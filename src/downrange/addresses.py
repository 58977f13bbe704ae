"""Addresses as users write them: "host:port". Pure text; whether the host exists is seen later."""

from __future__ import annotations

from downrange.errors import OptionError


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port"; an IPv6 address is in brackets.

    Raises:
        OptionError: The text is no such address.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise OptionError(f"{address!r}: write an IPv6 address in brackets, [::1]:9876")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(f"{address!r} is no host:port")
    return host, int(port)
