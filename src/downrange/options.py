"""Settings of the servers: frozen, checked when they are made, and safe to pickle.

A bare duration is in seconds; every other number names its unit. What a limit protects is said
beside it. Environment variables and files are read by the command line, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from downrange.errors import OptionError

#: How a listener treats TLS: Apache's three modes.
TlsMode: TypeAlias = Literal["disabled", "permissive", "enforcing"]

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """How a server listens, and what it takes from one peer.

    Attributes:
        host: Address to listen on; only this machine by default. "0.0.0.0" is every IPv4 address.
        port: TCP port; 0 picks a free one.
        frame_bytes_max: Largest request or reply; Java's limit, at which its clients hang up too.
        connections_max: Open connections in all, against running out of file handles.
        connections_per_host_max: Open connections from one address, so that one bad client leaves
            room for the others.
        in_flight_max: Requests of one connection that wait for a late reply. Reading pauses there.
        unread_bytes_max: Reply bytes that a peer has not taken yet. Reading pauses there.
        unread_timeout: How long a peer may leave them before it is cut off.
        idle_timeout: A connection that is silent in both directions for so long is closed.
        handshake_timeout: How long the first byte and the TLS handshake may take.
        stop_timeout: How long `stop` waits for replies on their way; then it cuts.
        tls_mode: With a TLS context: take plain text only, both, or TLS only.
    """

    host: str = "127.0.0.1"
    port: int = 0
    frame_bytes_max: int = 16 * _MIB
    connections_max: int = 10_000
    connections_per_host_max: int = 2_000
    in_flight_max: int = 4_096
    unread_bytes_max: int = 16 * _MIB
    unread_timeout: float = 10.0
    idle_timeout: float = 120.0
    handshake_timeout: float = 10.0
    stop_timeout: float = 1.0
    tls_mode: TlsMode = "permissive"

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        if not self.host:
            raise OptionError("host='' names no address; 0.0.0.0 is every address of this machine")
        if not 0 <= self.port <= 65535:
            raise OptionError(f"port={self.port} is no TCP port; 0 picks a free one")
        _check_at_least(8, "frame_bytes_max", self.frame_bytes_max)
        for name in (
            *("connections_max", "connections_per_host_max", "in_flight_max", "unread_bytes_max"),
        ):
            _check_at_least(1, name, getattr(self, name))
        for name in ("unread_timeout", "idle_timeout", "handshake_timeout"):
            _check_positive(name, getattr(self, name))
        _check_at_least(0, "stop_timeout", self.stop_timeout)
        if self.tls_mode not in get_args(TlsMode):
            raise OptionError(
                f"tls_mode={self.tls_mode!r} is none of {', '.join(get_args(TlsMode))}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerOptions:
    """How a name server decides.

    Attributes:
        store: Folder of `kvConfig.json`; without one, key-value config lives as long as the server.
        is_order_message_enabled: Put a topic's order config into its route (Java:
            `orderMessageEnable`).
        is_acting_master_supported: Announce the lowest slave of a group without master as its
            master, when the group allows it (Java: `supportActingMaster`).
        broker_timeout: How long a broker that names no time of its own lives without a word.
        scan_interval: How often expired brokers are looked for.
        brokers_max: Broker processes, topics: what registrations may make the server hold.
        topics_max: See `brokers_max`.
        key_value_bytes_max: Size of all key-value config together.
    """

    store: str | None = None
    is_order_message_enabled: bool = False
    is_acting_master_supported: bool = False
    broker_timeout: float = 120.0
    scan_interval: float = 5.0
    brokers_max: int = 10_000
    topics_max: int = 1_000_000
    key_value_bytes_max: int = 8 * _MIB

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        if self.store == "":
            raise OptionError("store='' names no folder; leave it out to keep nothing")
        for name in ("broker_timeout", "scan_interval"):
            _check_positive(name, getattr(self, name))
        for name in ("brokers_max", "topics_max", "key_value_bytes_max"):
            _check_at_least(1, name, getattr(self, name))


def _check_at_least(smallest: int, name: str, value: float) -> None:
    if not value >= smallest:  # not a number compares as false
        raise OptionError(f"{name}={value} is less than {smallest}")


def _check_positive(name: str, seconds: float) -> None:
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{name}={seconds} is no time span in seconds above 0")
