"""Settings of the servers: frozen, checked when they are made, and safe to pickle.

A bare duration is in seconds; every other number names its unit. What a limit protects is said
beside it. Environment variables and files are read by the command line, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from downrange.errors import OptionError
from downrange.options.checks import check_at_least, check_positive
from downrange.wire.limits import BODY_BYTES_MAX, FRAME_BYTES_MAX, MIB, QUEUES_MAX
from downrange.wire.system_names import LEGAL_NAME

#: How a listener treats TLS: Apache's three modes.
TlsMode: TypeAlias = Literal["disabled", "permissive", "enforcing"]

#: When a send is acknowledged: after it is durable, or before.
FlushMode: TypeAlias = Literal["sync", "async"]

#: Apache's delay levels, from 1 on.
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: Half of the largest frame that clients take.
_BULK_BYTES_MAX: Final = FRAME_BYTES_MAX // 2
_REGION_LENGTH_MAX: Final = 255


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
        busy_poll: Requests that follow each other within so many seconds keep the server awake: it
            looks for the next one for so long before it sleeps, which halves the time of a send and
            takes a core meanwhile. 0 sleeps at once, which is right in a process with other work,
            and what a broker with `flush="sync"` always does. `downrange serve` takes 0.0005 where
            there are two cores or more.
    """

    host: str = "127.0.0.1"
    port: int = 0
    frame_bytes_max: int = FRAME_BYTES_MAX
    connections_max: int = 10_000
    connections_per_host_max: int = 2_000
    in_flight_max: int = 4_096
    unread_bytes_max: int = 16 * MIB
    unread_timeout: float = 10.0
    idle_timeout: float = 120.0
    handshake_timeout: float = 10.0
    stop_timeout: float = 1.0
    tls_mode: TlsMode = "permissive"
    busy_poll: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        if not self.host:
            raise OptionError("host='' names no address; 0.0.0.0 is every address of this machine")
        if not 0 <= self.port <= 65535:
            raise OptionError(f"port={self.port} is no TCP port; 0 picks a free one")
        check_at_least(8, "frame_bytes_max", self.frame_bytes_max)
        for name in (
            *("connections_max", "connections_per_host_max", "in_flight_max", "unread_bytes_max"),
        ):
            check_at_least(1, name, getattr(self, name))
        for name in ("unread_timeout", "idle_timeout", "handshake_timeout"):
            check_positive(name, getattr(self, name))
        for name in ("stop_timeout", "busy_poll"):
            check_at_least(0, name, getattr(self, name))
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
    key_value_bytes_max: int = 8 * MIB

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        if self.store == "":
            raise OptionError("store='' names no folder; leave it out to keep nothing")
        for name in ("broker_timeout", "scan_interval"):
            check_positive(name, getattr(self, name))
        for name in ("brokers_max", "topics_max", "key_value_bytes_max"):
            check_at_least(1, name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How a broker decides. Java's names of the settings stand in parentheses.

    Attributes:
        name: What clients and name servers call it (brokerName).
        cluster: The cluster it belongs to (brokerClusterName).
        broker_id: 0 for a master; others only make sense beside one of the same name (brokerId).
        advertised_host: What clients are told to connect to; the address it listens on unless
            given (brokerIP1).
        name_servers: "host:port" of each name server to register at (namesrvAddr).
        register_interval: How often it registers anew (registerNameServerPeriod).
        flush: Whether a send is acknowledged when it is durable, or before (flushDiskType).
        flush_interval: How often the log is made durable under "async" (flushIntervalCommitLog).
        flush_bytes: So much new log is made durable before the interval is over
            (flushCommitLogLeastPages, but in bytes).
        flush_timeout: How long a send waits for its flush before it is answered with
            FLUSH_DISK_TIMEOUT (syncFlushTimeout).
        checkpoint_interval: How often the indexes are made durable as well; recovery after a crash
            reads again what came later.
        retention_interval: How often old segments are looked for (cleanResourceInterval).
        is_topic_created: Whether a send to a missing topic creates it (autoCreateTopicEnable).
        topics_created_per_minute_max: How many topics sends may create.
        topics_max: How many topics there may be in all.
        is_group_created: Whether a client of a missing group creates it
            (autoCreateSubscriptionGroup).
        groups_max: How many consumer groups there may be.
        default_topic_queues: Queues of TBW102, and so the most a created topic gets
            (defaultTopicQueueNums).
        message_bytes_max: Largest body (maxMessageSize).
        delay_levels: Delays by level, from 1 on (messageDelayLevel).
        timer_delay_max: How far ahead a message may be timed (timerMaxDelaySec).
        timer_messages_max: How many timed messages may wait.
        is_recall_enabled: Whether timed messages may be taken back (recallMessageEnable).
        transaction_timeout: How old a half message gets before its producer is asked
            (transactionTimeOut).
        transaction_check_interval: How often old half messages are looked for.
        transaction_checks_max: How often a producer is asked about one (transactionCheckMax).
        client_timeout: How long a client lives without a heartbeat.
        parked_pulls_max: How many pulls may wait for messages.
        pull_messages_max: Messages per answer (maxTransferCountOnMessageInMemory).
        pull_bytes_max: Bytes per answer (maxTransferBytesOnMessageInMemory).
        bulk_pull_messages_max: Messages per answer to a pull that asks for more than both limits
            above: with `maxMsgNums` and `maxMsgBytes`. Apache knows no such answers, and its
            clients do not ask for them unless they are told to.
        bulk_pull_bytes_max: Bytes per such answer, against holding up everyone else. With one of
            the two no larger than the limit above there are no such answers.
        region: Told to producers, and kept with each message (regionId).
        is_trace_on: Told to producers: whether their trace is wanted (traceOn).
        is_trace_topic_created: Whether the trace topic exists from the start (traceTopicEnable).
    """

    name: str = "broker-a"
    cluster: str = "DefaultCluster"
    broker_id: int = 0
    advertised_host: str | None = None
    name_servers: tuple[str, ...] = ()
    register_interval: float = 30.0
    flush: FlushMode = "async"
    flush_interval: float = 0.5
    flush_bytes: int = 4 * MIB
    flush_timeout: float = 5.0
    checkpoint_interval: float = 5.0
    retention_interval: float = 10.0
    is_topic_created: bool = True
    topics_created_per_minute_max: int = 60_000
    topics_max: int = 100_000
    is_group_created: bool = True
    groups_max: int = 100_000
    default_topic_queues: int = 8
    message_bytes_max: int = BODY_BYTES_MAX
    delay_levels: str = DELAY_LEVELS
    timer_delay_max: float = 259_200.0
    timer_messages_max: int = 1_000_000
    is_recall_enabled: bool = True
    transaction_timeout: float = 6.0
    transaction_check_interval: float = 30.0
    transaction_checks_max: int = 15
    client_timeout: float = 120.0
    parked_pulls_max: int = 100_000
    pull_messages_max: int = 32
    pull_bytes_max: int = 256 * 1024
    bulk_pull_messages_max: int = 8192
    bulk_pull_bytes_max: int = 4 * MIB
    region: str = "DefaultRegion"
    is_trace_on: bool = True
    is_trace_topic_created: bool = False

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        for name in ("name", "cluster"):
            if LEGAL_NAME.fullmatch(getattr(self, name)) is None:
                raise OptionError(
                    f"{name}={getattr(self, name)!r} may hold letters, digits, '_', '-', '%' and "
                    "'|' only"
                )
        if isinstance(self.name_servers, str):
            raise OptionError(f"name_servers={self.name_servers!r} is one text; give a tuple")
        if self.advertised_host == "":
            raise OptionError("advertised_host='' names no host; leave it out")
        if not self.region.isprintable() or len(self.region) > _REGION_LENGTH_MAX:
            raise OptionError(f"region={self.region[:300]!r} cannot be kept with each message")
        if self.flush not in get_args(FlushMode):
            raise OptionError(f"flush={self.flush!r} is none of {', '.join(get_args(FlushMode))}")
        for name in (
            *("register_interval", "flush_interval", "flush_timeout", "checkpoint_interval"),
            *("retention_interval", "timer_delay_max", "transaction_timeout"),
            *("transaction_check_interval", "client_timeout"),
        ):
            check_positive(name, getattr(self, name))
        for name in (
            *("flush_bytes", "topics_max", "groups_max", "default_topic_queues"),
            *("message_bytes_max", "transaction_checks_max", "pull_messages_max"),
            *("pull_bytes_max", "bulk_pull_messages_max", "bulk_pull_bytes_max"),
            "timer_messages_max",
        ):
            check_at_least(1, name, getattr(self, name))
        for name in ("broker_id", "topics_created_per_minute_max", "parked_pulls_max"):
            check_at_least(0, name, getattr(self, name))
        if self.default_topic_queues > QUEUES_MAX:
            queues = self.default_topic_queues
            raise OptionError(f"default_topic_queues={queues} is more than {QUEUES_MAX}")
        if self.bulk_pull_bytes_max > _BULK_BYTES_MAX:
            raise OptionError(
                f"bulk_pull_bytes_max={self.bulk_pull_bytes_max} comes too close to the largest "
                f"frame that clients take; {_BULK_BYTES_MAX} does not"
            )
        delays_of(self.delay_levels)


def delays_of(levels: str) -> list[int]:
    """Return the delays of the levels in ms, level 1 first.

    Raises:
        OptionError: A word is not a number with one of the units s, m, h, d.
    """
    delays: list[int] = []
    for word in levels.split():
        number, unit = word[:-1], word[-1:]
        if not number.isdecimal() or unit not in _UNIT_MS:
            raise OptionError(f"delay_levels: {word!r} is no delay such as 10s, 5m, 2h or 1d")
        delays.append(int(number) * _UNIT_MS[unit])
    if not delays:
        raise OptionError("delay_levels='' names no level")
    return delays
