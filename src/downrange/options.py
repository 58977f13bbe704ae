"""Settings of the servers: frozen, checked when they are made, and safe to pickle.

A bare duration is in seconds; every other number names its unit. What a limit protects is said
beside it. Environment variables and files are read by the command line, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from downrange.errors import OptionError

_MIB: Final = 1024 * 1024


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
