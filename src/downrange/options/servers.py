"""Options of listeners, name servers and brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from downrange.addresses import split_address
from downrange.checks import (
    check_at_least,
    check_between,
    check_count,
    check_flag,
    check_one_of,
    check_positive,
    check_text,
    check_type,
    check_whole,
)
from downrange.errors import OptionError
from downrange.wire.limits import BODY_BYTES_MAX, FRAME_BYTES_MAX, MIB, QUEUES_MAX
from downrange.wire.system_names import LEGAL_NAME

#: Which connections a listener accepts: Apache's three TLS modes.
TlsMode: TypeAlias = Literal["disabled", "permissive", "enforcing"]

#: When a send is acknowledged: after the message is durable, or before.
FlushMode: TypeAlias = Literal["sync", "async"]

#: How consumers read: they pull with offsets of their own, or the broker hands messages out.
RequestMode: TypeAlias = Literal["PULL", "POP"]

#: Apache's delay levels, from 1 on.
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

#: A broker's VIP channel is its port less this (Java: MixAll.brokerVIPChannel).
VIP_DISTANCE: Final = 2

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: Half of the largest frame that clients accept.
_BULK_BYTES_MAX: Final = FRAME_BYTES_MAX // 2
_REGION_LENGTH_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """Where a server listens, and the limits of a connection.

    Attributes:
        host: Address to listen on; only this machine by default. "0.0.0.0" is every IPv4 address.
        port: TCP port; 0 picks a free one.
        frame_bytes_max: The largest request or reply. The default is Java's limit: its clients
            close the connection on a larger frame.
        connections_max: Open connections in all; protects against running out of file handles.
        connections_per_host_max: Open connections from one address, so that one faulty client
            cannot use up all connections.
        in_flight_max: Requests of one connection whose replies are pending, without those that wait
            for messages. At the limit, reading from the connection pauses.
        unread_bytes_max: Reply bytes that a peer has not read yet. At the limit, reading from the
            connection pauses.
        unread_timeout: Seconds in that state after which the connection is closed.
        idle_timeout: Seconds without traffic in either direction after which a connection is
            closed.
        handshake_timeout: Seconds until the first byte must arrive and the TLS handshake be done.
        stop_timeout: Seconds that `stop` waits for pending replies before it cuts connections.
        tls_mode: If there is a TLS context: accept plain text only, both, or TLS only.
        busy_poll: Seconds. While requests follow each other at a shorter distance, the server
            polls for the next one instead of sleeping. That halves the time of a send and takes a
            whole core. 0 turns it off, which is right in a process with other work; a broker with
            `flush="sync"` never polls. `downrange serve` uses 0.0005 on two or more cores.
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
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        check_text("host", self.host)
        if not self.host:
            raise OptionError("host='' is empty; 0.0.0.0 is every address of this machine")
        check_between(0, 65_535, "port", self.port)
        check_count(8, "frame_bytes_max", self.frame_bytes_max)
        for name in (
            *("connections_max", "connections_per_host_max", "in_flight_max", "unread_bytes_max"),
        ):
            check_count(1, name, getattr(self, name))
        for name in ("unread_timeout", "idle_timeout", "handshake_timeout"):
            check_positive(name, getattr(self, name))
        for name in ("stop_timeout", "busy_poll"):
            check_at_least(0, name, getattr(self, name))
        check_one_of("tls_mode", self.tls_mode, get_args(TlsMode))


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerOptions:
    """Options of a name server. Java's names stand in parentheses.

    Attributes:
        store: Folder of `kvConfig.json`; without one, the key-value config is lost at the end.
        is_order_message_enabled: Whether a topic's order config is put into its route
            (orderMessageEnable).
        is_acting_master_supported: Whether the slave with the lowest id of a group without a
            master is announced as its master, if the group allows it (supportActingMaster).
        broker_timeout: Seconds without a heartbeat after which a broker is removed, unless its
            registration names another time.
        scan_interval: Seconds between two searches for expired brokers.
        brokers_max: Broker processes that may register; with `topics_max` it bounds the memory
            that registrations can take.
        topics_max: Topics of all registrations together.
        key_value_bytes_max: Size of the whole key-value config.
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
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        if self.store is not None:
            check_text("store", self.store)
        for name in ("is_order_message_enabled", "is_acting_master_supported"):
            check_flag(name, getattr(self, name))
        if self.store == "":
            raise OptionError("store='' is empty; leave it out to keep nothing")
        for name in ("broker_timeout", "scan_interval"):
            check_positive(name, getattr(self, name))
        for name in ("brokers_max", "topics_max", "key_value_bytes_max"):
            check_count(1, name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """Where a process shows its metrics, and the limits of that.

    Attributes:
        address: "host:port" of `/metrics`, `/health` and `/ready`; port 0 picks a free one. The
            pages need no account, so other addresses than loopback are for closed networks.
        connections_max: Connections at a time; further ones get 503.
        header_bytes_max: The largest request.
        timeout: Seconds that a request and its answer may take together.
        series_max: Topics, groups or pairs of both that one metric shows. What is above it is left
            out, and counted in `downrange_metrics_dropped_series`.
    """

    address: str
    connections_max: int = 32
    header_bytes_max: int = 8 * 1024
    timeout: float = 30.0
    series_max: int = 20_000

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        check_text("address", self.address)
        split_listen_address(self.address)
        for name in ("connections_max", "series_max"):
            check_count(1, name, getattr(self, name))
        check_count(256, "header_bytes_max", self.header_bytes_max)
        check_positive("timeout", self.timeout)


def split_listen_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" to listen on; the port may be 0, which picks one.

    Raises:
        OptionError: The text is not such an address.
    """
    if address.endswith(":0"):
        return split_address(f"{address}1")[0], 0
    return split_address(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Options of a broker. Java's names stand in parentheses.

    Attributes:
        name: The broker's name in routes (brokerName).
        cluster: The cluster that it belongs to (brokerClusterName).
        broker_id: 0 for a master. Other ids belong to slaves of a master of the same name
            (brokerId).
        advertised_host: The host in routes, for clients to connect to; the address that the broker
            listens on if not given (brokerIP1).
        name_servers: "host:port" of each name server to register at (namesrvAddr).
        register_interval: Seconds between two registrations (registerNameServerPeriod).
        flush: "sync" acknowledges a send when the message is durable, "async" before
            (flushDiskType).
        flush_interval: Seconds between two flushes of the log with "async"
            (flushIntervalCommitLog).
        flush_bytes: Bytes of new log that are flushed before the interval is over
            (flushCommitLogLeastPages, but in bytes).
        flush_timeout: Seconds that a send waits for its flush before the reply is
            FLUSH_DISK_TIMEOUT (syncFlushTimeout).
        checkpoint_interval: Seconds between two flushes of log and indexes together. Recovery
            after a crash reads the part of the log behind the last one.
        retention_interval: Seconds between two searches for old segments (cleanResourceInterval).
        permission: What clients may do: 6 send and pull, 4 only pull, 2 only send, 0 neither. Other
            requests are refused with NO_PERMISSION, and the broker registers its topics with this
            permission at most (brokerPermission).
        is_vip_port_open: Whether the broker also listens on its port less 2, for clients with
            `vip_channel` (vipChannelEnabled). Off, since Apache's clients do not use it by default
            either. Connections to both ports have the same service and share the limits.
        is_topic_created: Whether a send to a missing topic creates it (autoCreateTopicEnable).
        topics_created_per_minute_max: How many topics sends may create per minute.
        topics_max: How many topics there may be in all.
        is_group_created: Whether a client of a missing group creates it
            (autoCreateSubscriptionGroup).
        groups_max: How many consumer groups there may be.
        default_topic_queues: Queues of TBW102, and so the most that a topic created by a send gets
            (defaultTopicQueueNums).
        message_bytes_max: The largest body (maxMessageSize).
        delay_levels: The delays of the levels, from level 1 on (messageDelayLevel).
        timer_delay_max: Seconds that a timed message may lie ahead (timerMaxDelaySec).
        timer_messages_max: How many timed messages may wait.
        is_recall_enabled: Whether producers may recall timed messages (recallMessageEnable).
        is_transaction_rejected: Whether half messages are refused (rejectTransactionMessage).
        transaction_timeout: Seconds until the producer of a half message is asked for the outcome
            (transactionTimeOut).
        transaction_check_interval: Seconds between two searches for old half messages.
        transaction_checks_max: How often a producer is asked about one (transactionCheckMax).
        is_reset_by_pull: Whether consumers learn of a reset of their group's offsets by their next
            pull, as with 5.x. Otherwise the broker sends them a request, as with 4.9
            (useServerSideResetOffset).
        client_timeout: Seconds without a heartbeat after which a client is removed.
        is_load_balanced: Whether the broker shares queues out among members that ask it to
            (serverLoadBalancerEnable). If not, it gives all queues to each of them.
        default_request_mode: "PULL" or "POP": how members read that let the broker share the
            queues, unless a mode was set for their group and topic (defaultMessageRequestMode).
        default_pop_share_queues: With how many other members one shares queues in the default mode
            "POP"; 0 or less means with all (defaultPopShareQueueNum).
        parked_pulls_max: How many pulls may wait for messages.
        pull_messages_max: Messages per reply (maxTransferCountOnMessageInMemory).
        pull_bytes_max: Bytes per reply (maxTransferBytesOnMessageInMemory).
        bulk_pull_messages_max: Messages per reply to a bulk pull. This is a pull whose
            `maxMsgNums` and `maxMsgBytes` both exceed the two limits above. Apache has no such
            replies, and its clients do not ask for them unless they are configured to.
        bulk_pull_bytes_max: Bytes per reply to a bulk pull, so that it does not delay the other
            clients. If one of the two bulk limits is not larger than its limit above, bulk pulls
            are off.
        is_sql_enabled: Whether consumers may filter by SQL92 expressions over properties
            (enablePropertyFilter). On, while Apache's broker has it off.
        is_retry_topic_v2: Whether popped messages that are delivered again go to
            `%RETRY%<group>+<topic>` instead of `%RETRY%<group>_<topic>` (enableRetryTopicV2). Both
            are read in any case.
        pop_checkpoints_max: How many pops may be open, that is, have a message that is neither
            acknowledged nor visible again. A pop beyond it is answered with 209. A message whose
            invisible time is changed counts as a pop of its own; a change beyond it is refused.
        region: Sent to producers, and stored with each message (regionId).
        zone: The zone of the broker, such as a data centre. Name servers of 5.x return only brokers
            of its zone to a client with `zone_mode` (rocketmq.zone).
        is_trace_on: Sent to producers: whether they should trace (traceOn).
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
    permission: int = 6
    is_vip_port_open: bool = False
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
    is_transaction_rejected: bool = False
    transaction_timeout: float = 6.0
    transaction_check_interval: float = 30.0
    transaction_checks_max: int = 15
    is_reset_by_pull: bool = True
    client_timeout: float = 120.0
    is_load_balanced: bool = True
    default_request_mode: RequestMode = "PULL"
    default_pop_share_queues: int = -1
    parked_pulls_max: int = 100_000
    pull_messages_max: int = 32
    pull_bytes_max: int = 256 * 1024
    bulk_pull_messages_max: int = 8192
    bulk_pull_bytes_max: int = 4 * MIB
    is_sql_enabled: bool = True
    is_retry_topic_v2: bool = False
    pop_checkpoints_max: int = 200_000
    region: str = "DefaultRegion"
    zone: str | None = None
    is_trace_on: bool = True
    is_trace_topic_created: bool = False

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        for name in ("name", "cluster", "region", "delay_levels"):
            check_text(name, getattr(self, name))
        for name in (
            *("is_topic_created", "is_group_created", "is_recall_enabled", "is_trace_on"),
            *("is_trace_topic_created", "is_vip_port_open", "is_transaction_rejected"),
            *("is_sql_enabled", "is_retry_topic_v2", "is_reset_by_pull", "is_load_balanced"),
        ):
            check_flag(name, getattr(self, name))
        for name in ("name", "cluster"):
            if LEGAL_NAME.fullmatch(getattr(self, name)) is None:
                raise OptionError(
                    f"{name}={getattr(self, name)!r} is not legal: use letters, digits, '_', '-', "
                    "'%' and '|'"
                )
        if isinstance(self.name_servers, str):
            raise OptionError(f"name_servers={self.name_servers!r} is a string; give a tuple")
        check_type("name_servers", self.name_servers, tuple, "a tuple of host:port")
        for address in self.name_servers:
            check_text("each of name_servers", address)
        for name in ("advertised_host", "zone"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
                if not getattr(self, name):
                    raise OptionError(f"{name}='' is empty; leave it out")
        if not self.region.isprintable() or len(self.region) > _REGION_LENGTH_MAX:
            raise OptionError(
                f"region={self.region[:300]!r} must be printable and at most "
                f"{_REGION_LENGTH_MAX} characters long"
            )
        check_one_of("flush", self.flush, get_args(FlushMode))
        check_one_of("default_request_mode", self.default_request_mode, get_args(RequestMode))
        check_whole("default_pop_share_queues", self.default_pop_share_queues)
        check_one_of("permission", self.permission, (6, 4, 2, 0))
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
            *("timer_messages_max", "pop_checkpoints_max"),
        ):
            check_count(1, name, getattr(self, name))
        for name in ("broker_id", "topics_created_per_minute_max", "parked_pulls_max"):
            check_count(0, name, getattr(self, name))
        if self.default_topic_queues > QUEUES_MAX:
            queues = self.default_topic_queues
            raise OptionError(f"default_topic_queues={queues} is more than {QUEUES_MAX}")
        if self.bulk_pull_bytes_max > _BULK_BYTES_MAX:
            raise OptionError(
                f"bulk_pull_bytes_max={self.bulk_pull_bytes_max} is more than {_BULK_BYTES_MAX}, "
                "half of the largest frame that clients accept"
            )
        delays_of(self.delay_levels)


def check_vip_port(name: str, port: int) -> None:
    """Refuse a port that has no port for the VIP channel below it; 0 picks one that has.

    Raises:
        OptionError: Names the option and its value.
    """
    if 0 < port <= VIP_DISTANCE:
        raise OptionError(
            f"{name}={port} leaves no port for the VIP channel, which is the port less "
            f"{VIP_DISTANCE}: choose a higher one, or turn the VIP channel off"
        )


def delays_of(levels: str) -> list[int]:
    """Return the delays of the levels in ms, level 1 first.

    Raises:
        OptionError: A word is not a number with one of the units s, m, h, d.
    """
    delays: list[int] = []
    for word in levels.split():
        number, unit = word[:-1], word[-1:]
        if not number.isdecimal() or unit not in _UNIT_MS:
            raise OptionError(
                f"delay_levels: {word!r} is not a delay; write delays such as 10s, 5m, 2h, 1d"
            )
        delays.append(int(number) * _UNIT_MS[unit])
    if not delays:
        raise OptionError("delay_levels='' is empty; name at least one level")
    return delays
