"""Addresses in the form "host:port". Only the text is checked, not whether the host exists."""

from __future__ import annotations

from downrange.errors import OptionError


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port"; an IPv6 address stands in brackets.

    Raises:
        OptionError: The text is not such an address.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise OptionError(f"{address!r}: write an IPv6 address in brackets, [::1]:9876")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(f"{address!r} is not an address of the form host:port")
    return host, int(port)
