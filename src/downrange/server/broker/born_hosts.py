"""Where a record says that it was born: the sender's address, as bytes."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from downrange.wire.codes import SysFlag

_BORN_HOST_V6: Final = int(SysFlag.BORN_HOST_V6)


class BornHost(NamedTuple):
    """A sender's address, and the `sysFlag` bit that says whether it is IPv6."""

    ip: bytes
    port: int
    sys_flag: int


@lru_cache(maxsize=4096)
def born_host(address: str) -> BornHost:
    """Read "host:port", an IPv6 host in brackets; IPv4 in the clothes of IPv6 counts as IPv4."""
    host, _, port = address.rpartition(":")
    ip = ip_address(host.strip("[]").partition("%")[0])
    packed = (getattr(ip, "ipv4_mapped", None) or ip).packed
    return BornHost(packed, int(port), _BORN_HOST_V6 if len(packed) == 16 else 0)
