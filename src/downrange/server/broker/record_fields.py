"""Fields of records that the broker itself writes: hosts, allowed flags, encoded properties."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.wire.codes import SysFlag
from downrange.wire.ids import offset_id
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Properties of the broker that a record can do without.
_SPARE_KEYS: Final = (
    str(PropertyKey.TRACE_ON),
    str(PropertyKey.REGION),
    str(PropertyKey.CLUSTER),
    str(PropertyKey.ORIGIN_GROUP),
)

_BORN_HOST_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_HOST_V6: Final = int(SysFlag.STORE_HOST_V6)


class BornHost(NamedTuple):
    """A sender's address, and the `sysFlag` bit that marks it as IPv6."""

    ip: bytes
    port: int
    sys_flag: int


@lru_cache(maxsize=4096)
def born_host(address: str) -> BornHost:
    """Parse "host:port", an IPv6 host in brackets; an IPv4-mapped IPv6 address counts as IPv4."""
    host, _, port = address.rpartition(":")
    ip = ip_address(host.strip("[]").partition("%")[0])
    packed = (getattr(ip, "ipv4_mapped", None) or ip).packed
    return BornHost(packed, int(port), _BORN_HOST_V6 if len(packed) == 16 else 0)


@dataclass(frozen=True, slots=True)
class StoreHost:
    """The broker's own address, as its records and message ids contain it.

    Attributes:
        ip: 4 or 16 bytes.
        port: The TCP port.
        address: Both as text, "host:port".
        sys_flag: The `sysFlag` bit that marks the address as IPv6, or 0.
        born_flag: The same where the broker is also the sender.
        id_prefix: The beginning of all offset ids of this broker.
    """

    ip: bytes
    port: int
    address: str
    sys_flag: int
    born_flag: int
    id_prefix: str

    @classmethod
    def of(cls, host: str, port: int) -> StoreHost:
        """Make a store host from a numeric address."""
        packed = ip_address(host).packed
        is_v6 = len(packed) == 16
        return cls(
            ip=packed,
            port=port,
            address=f"[{host}]:{port}" if is_v6 else f"{host}:{port}",
            sys_flag=_STORE_HOST_V6 if is_v6 else 0,
            born_flag=_BORN_HOST_V6 if is_v6 else 0,
            id_prefix=offset_id(packed, port, 0)[:-16],
        )

    @property
    def host(self) -> str:
        """The numeric address as text, an IPv6 one without brackets (Java: brokerIP1)."""
        return self.address.rpartition(":")[0].strip("[]")

    def id_of(self, log_offset: int) -> str:
        """Return the offset id of a record in this broker's log."""
        return f"{self.id_prefix}{log_offset:016X}"


def join_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties that were decoded from a property string, so need no check."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode(
        errors="replace"
    )


def make_room(properties: dict[str, str], spare_bytes: int) -> bool:
    """Whether properties fit into a record; removes some of the broker's own if they do not.

    Args:
        properties: Is changed.
        spare_bytes: How many bytes must be left.
    """
    for key in (None, *_SPARE_KEYS):
        if key is not None:
            properties.pop(key, None)
        if len(join_properties(properties)) + spare_bytes <= PROPERTIES_BYTES_MAX:
            return True
    return False
