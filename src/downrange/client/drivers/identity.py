"""Identity of a client: clocks, randomness, this machine's address, client ids and message ids.

One rule: nothing here sends a packet or waits for one.
"""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import struct
import sys
import threading
import time
import traceback
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Final

from downrange.wire.ids import UniqueIdMaker

if TYPE_CHECKING:
    from downrange.options import ClientOptions

_LOOPBACK: Final = "127.0.0.1"
#: Linux: ioctl for the IPv4 address of an interface, and where the answer holds it.
_SIOCGIFADDR: Final = 0x8915
_ADDRESS_IN_ANSWER: Final = slice(20, 24)
#: An address for documentation (RFC 5737): routed like any other, assigned to no host.
_OUTSIDE: Final = ("192.0.2.1", 9)


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    #: Monotonic seconds; the function itself, as it is called several times per message.
    now = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000


class SystemRandomness:
    """A random generator of its own, independent of `random.seed` in the program."""

    __slots__ = ("_random",)

    def __init__(self) -> None:
        self._random = random.Random()

    def below(self, limit: int) -> int:
        """Return one of 0, 1, …, limit - 1."""
        return int(self._random.random() * limit)  # half the time of `randrange`

    def uuid(self) -> str:
        """Return a new UUID."""
        return str(uuid.uuid4())


def client_ip() -> str:
    """Return the IPv4 address of this machine for others, as far as it is known here.

    That of the first interface other than loopback, else the source address of packets to the
    Internet, else 127.0.0.1.
    """
    for address in _addresses_of_interfaces():
        if not ipaddress.ip_address(address).is_loopback:
            return address
    return _address_towards_internet() or _LOOPBACK


def client_id(options: ClientOptions, counter: int) -> str:
    """Return the id of a client at brokers: `ip@instance[@unit][@STREAM]`.

    Args:
        options: May give any part of it.
        counter: A number of its own for each client of this process; it forms the instance together
            with the process id and a random part, unless options give one. Containers may have the
            same address and process ids, and brokers take two clients with one id for one.
    """
    parts = [
        options.client_ip or client_ip(),
        options.instance or f"{os.getpid()}#{counter}#{os.urandom(6).hex()}",
    ]
    if options.unit:
        parts.append(options.unit)
    if options.is_stream_request:
        parts.append("STREAM")
    return "@".join(parts)


def unique_ids(ip: str) -> UniqueIdMaker:
    """Return a maker of message ids that are unique across processes and machines.

    Args:
        ip: This machine's address. Instead of a name, which fits into a client id but not into a
            message id, the machine's own address is used.
    """
    try:
        address = ipaddress.ip_address(ip.strip("[]"))
    except ValueError:
        address = ipaddress.ip_address(client_ip())
    # Java has one salt and one counter per process. Here each maker has its own counter, so it has
    # its own salt, which also separates processes whose ids have the same low 16 bits.
    return UniqueIdMaker(address.packed, os.getpid(), _salt(), month_around)


def month_around(now_ms: int) -> tuple[int, int]:
    """Return when the month of a time began and when it ends, in ms, by the local time zone."""
    local = time.localtime(now_ms / 1000)
    year, month = local.tm_year, local.tm_mon
    return _month_start_ms(year, month), _month_start_ms(year, month + 1)


def _month_start_ms(year: int, month: int) -> int:
    # Month 13 is the first of next year; -1: the system determines daylight saving time.
    return int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))) * 1000


def _salt() -> int:
    return int.from_bytes(os.urandom(4), "big")


def _addresses_of_interfaces() -> list[str]:
    """Return the IPv4 addresses of this machine's interfaces, in their order; on Linux only.

    This is no generator: one that is left early is closed by Python's finalizer, which drops what a
    signal handler raises meanwhile, such as KeyboardInterrupt.
    """
    addresses: list[str] = []
    if sys.platform != "linux":
        return addresses
    import fcntl

    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            except OSError:  # this interface has no address
                continue
            addresses.append(socket.inet_ntoa(answer[_ADDRESS_IN_ANSWER]))
    return addresses


def _address_towards_internet() -> str | None:
    """Return the source address of packets; "connecting" a datagram socket sends nothing."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asking:
        try:
            asking.connect(_OUTSIDE)
        except OSError:  # no route
            return None
        return str(asking.getsockname()[0])


def thread_stacks() -> str:
    """Return what each thread of this process does now, for tools that ask a consumer."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"{names.get(ident, 'unknown')} TID: {ident}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # pyright: ignore[reportPrivateUsage]
    ]
    return "\n".join(parts)
