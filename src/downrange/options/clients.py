"""Options of clients, producers and pull consumers. Java's names stand in parentheses."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from downrange.addresses import split_address
from downrange.checks import (
    check_at_least,
    check_between,
    check_count,
    check_flag,
    check_one_of,
    check_positive,
    check_text,
    check_timeout,
    check_type,
    check_wait,
    check_whole,
    iterated,
    wrong_type,
)
from downrange.errors import OptionError
from downrange.wire.limits import BODY_BYTES_MAX, IN_FLIGHT_MAX, MIB, UNPACKED_BODY_BYTES_MAX
from downrange.wire.system_names import DEFAULT_TOPIC, LEGAL_NAME, TRACE_TOPIC

if TYPE_CHECKING:
    import os
    import ssl
    from concurrent.futures import Executor

    from downrange.allocation import AllocateForGroup, Strategy

#: How bodies are compressed.
CompressionName: TypeAlias = Literal["zlib", "lz4", "zstd"]
#: How a missing topic is created: not at all; by the first broker that gets a message for it
#: (Apache's way); or by the producer, on every master, before the first message.
AutoCreate: TypeAlias = Literal["off", "first-broker", "balanced"]
#: What a send does when `in_flight_max` or `in_flight_bytes_max` is reached.
WhenFull: TypeAlias = Literal["block", "raise", "queue"]
#: How brokers that were slow or failed are avoided.
FaultStyle: TypeAlias = Literal["off", "4.x", "5.x"]
#: Where a client connects to: servers of one's own, or those of a cloud provider.
AccessChannel: TypeAlias = Literal["local", "cloud"]
#: Where a group begins in queues in which it has no offset.
GroupStart: TypeAlias = Literal["earliest", "latest"] | datetime


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account for access control. Its secrets never appear in a repr, log or error.

    Attributes:
        access_key: The account's name.
        secret_key: Signs the requests.
        security_token: Belongs to a temporary account.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: A part is empty, or not text.
        """
        check_text("access_key", self.access_key)
        _check_secret("secret_key", self.secret_key)
        if self.security_token is not None:
            _check_secret("security_token", self.security_token)
        if not self.access_key or not self.secret_key:
            raise OptionError("credentials need an access key and a secret key")


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """TLS settings of the connections to name servers and brokers.

    Attributes:
        ca: PEM file of the authorities to trust; those of the system if not given.
        certificate: PEM file of the client's certificate, for servers that ask for one.
        key: PEM file of its key, unless the certificate's file holds it.
        key_password: The password of the key.
        check_host: Whether a server's certificate must be for the host in its address.
        verify: Whether a server's certificate is checked at all; False is for tests.
        context: A ready context instead of all other settings. Options with one do not pickle.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    key_password: str | None = field(default=None, repr=False)
    check_host: bool = True
    verify: bool = True
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the options that contradict each other, or that have a wrong type.
        """
        for name in ("ca", "certificate", "key"):
            path: object = getattr(self, name)
            if not (path is None or isinstance(path, str) or hasattr(path, "__fspath__")):
                raise wrong_type(name, path, "the path of a PEM file")
        if self.key_password is not None:
            _check_secret("key_password", self.key_password)
        check_flag("check_host", self.check_host)
        check_flag("verify", self.verify)
        # Without importing ssl, which takes longer than the rest of this package.
        if self.context is not None and not hasattr(self.context, "wrap_bio"):
            raise wrong_type("context", self.context, "an ssl.SSLContext")
        if self.key is not None and self.certificate is None:
            raise OptionError("key needs certificate: give the file of the certificate, too")
        if self.context is not None and (self.ca, self.certificate, self.key) != (None,) * 3:
            raise OptionError("context replaces ca, certificate and key; give one or the other")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A SOCKS5 proxy for all connections (socksProxyConfig).

    Attributes:
        address: "host:port".
        username: Needed if the proxy asks for one.
        password: See `username`.
    """

    address: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: The address is not host:port, or a part is not text.
        """
        check_text("address", self.address)
        split_address(self.address)
        if self.username is not None:
            check_text("username", self.username)
        if self.password is not None:
            _check_secret("password", self.password)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTolerance:
    """Which brokers a producer avoids, and for how long.

    Attributes:
        style: "4.x" sorts brokers by latency and uses the better half if all are bad; "5.x"
            prefers available, then reachable brokers.
        latency_ms: Classes of latency, rising; those of the style if not given (latencyMax).
        avoid_ms: How long a broker of each class is avoided (notAvailableDuration).
        detect: Whether unreachable brokers are probed in the background; 5.x only
            (startDetectorEnable).
        detect_interval: Seconds between two probes of a broker (detectInterval).
        detect_timeout: Seconds that a probe may take (detectTimeout).
    """

    style: FaultStyle = "5.x"
    latency_ms: tuple[int, ...] | None = None
    avoid_ms: tuple[int, ...] | None = None
    detect: bool = True
    detect_interval: float = 2.0
    detect_timeout: float = 0.2

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        check_one_of("style", self.style, get_args(FaultStyle))
        for name in ("latency_ms", "avoid_ms"):
            if getattr(self, name) is not None:
                check_type(name, getattr(self, name), tuple, "a tuple of int")
                for span in getattr(self, name):
                    check_count(0, f"each of {name}", span)
        if (self.latency_ms is None) != (self.avoid_ms is None):
            raise OptionError("latency_ms and avoid_ms belong together; give both or neither")
        if self.latency_ms is not None and self.avoid_ms is not None:
            if len(self.latency_ms) != len(self.avoid_ms) or not self.latency_ms:
                raise OptionError(
                    f"latency_ms={self.latency_ms} and avoid_ms={self.avoid_ms} differ in length"
                )
            if list(self.latency_ms) != sorted(set(self.latency_ms)):
                raise OptionError(f"latency_ms={self.latency_ms} does not rise")
        check_flag("detect", self.detect)
        check_positive("detect_interval", self.detect_interval)
        check_positive("detect_timeout", self.detect_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoBatch:
    """How small messages are collected into batches (autoBatch, 5.x).

    Attributes:
        hold_ms: How long the first message of a batch waits for others (batchMaxDelayMs).
        hold_bytes: A batch of more bytes is sent at once (batchMaxBytes).
        total_bytes_max: While all waiting batches together have more bytes, further messages are
            sent one by one (totalBatchMaxBytes).
    """

    hold_ms: int = 10
    hold_bytes: int = 32_768
    total_bytes_max: int = 32 * MIB

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        check_between(1, 30_000, "hold_ms", self.hold_ms)
        check_between(1, 2 * MIB, "hold_bytes", self.hold_bytes)
        check_count(1, "total_bytes_max", self.total_bytes_max)


class TraceDispatcher(Protocol):
    """Takes the trace records of one producer, in place of the trace topic (TraceDispatcher).

    The methods are called in the background, one at a time, never while a message waits for them.
    With asyncio they may be coroutine functions. An exception is reported and counted, and has no
    other effect.
    """

    # Any: the records are classes of the client, which options do not import.
    def append(self, record: Any, /) -> object:
        """Take a record, such as a `PubTrace`, without blocking; False means that it was dropped.

        It is called on the client's event loop, so it only keeps the record for `flush`.
        """
        ...

    def flush(self) -> object:
        """Write the records that were taken: after `flush_interval`, and before `close`."""
        ...

    def close(self) -> object:
        """Release everything: the producer is being closed, and waits for this."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Message tracing: a record of each send, stored in a topic of its own (enableTrace).

    Attributes:
        topic: The topic of the records (traceTopic). With the access channel "cloud" the topic is
            `rmq_sys_TRACE_DATA_` and the broker's region instead.
        batch_count: Records that are sent together (traceMsgBatchNum).
        flush_interval: Seconds that a record waits for others, or for `flush` of the dispatcher.
        queue_max: Records that wait to be sent; more are dropped and counted.
        dispatcher: Takes the records instead of the topic; one object per producer, which closes
            it. Options with one pickle only if it does.
    """

    topic: str = TRACE_TOPIC
    batch_count: int = 10
    flush_interval: float = 5.0
    queue_max: int = 2048
    dispatcher: TraceDispatcher | None = None

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        _check_topic("topic", self.topic)
        check_between(1, 20, "batch_count", self.batch_count)
        check_positive("flush_interval", self.flush_interval)
        check_count(1, "queue_max", self.queue_max)
        for name in ("append", "flush", "close"):
            if self.dispatcher is not None and not callable(getattr(self.dispatcher, name, None)):
                raise OptionError(f"dispatcher={self.dispatcher!r} has no method {name}()")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What the producers and consumers of one client share.

    Attributes:
        connect_on_start: Whether `start` fails if no name server can be reached. With False, it
            returns at once, and the first call fails instead.
        check_on_start: Whether `start` first runs the checks of `downrange doctor`, and fails with
            a list of all problems.
        connect_timeout: Seconds until a connection must be established, TLS included.
        call_timeout: Seconds for a request to a name server and for an administrative call
            (mqClientApiTimeout).
        route_refresh_interval: Seconds between two refreshes of the routes in use
            (pollNameServerInterval).
        heartbeat_interval: Seconds between two heartbeats to brokers (heartbeatBrokerInterval).
        discovery_url: HTTP address that lists the name servers; used if none were given.
        discovery_interval: Seconds between two requests to `discovery_url`.
        client_ip: The IP address in the client id and in message ids; detected if not given
            (clientIP).
        instance: The middle part of the client id; process id, a number and a random part if not
            given (instanceName).
        unit: The unit's name, a part of the client id (unitName).
        is_unit_mode: Sent with each message (unitMode).
        namespace: Added before topics and groups in requests, removed in replies (namespace).
        namespace_v2: Sent with each request instead; 5.x (namespaceV2).
        is_stream_request: Sent with each request (enableStreamRequestType).
        zone: The zone of this machine, such as a data centre; sent with each request
            (rocketmq.zone).
        zone_mode: Whether name servers of 5.x return only the brokers of `zone`, and those without
            a master. Older ones return all brokers (rocketmq.zone.mode).
        access_channel: "cloud" sends traces to a topic per region, as cloud providers expect them
            (accessChannel).
        vip_channel: Whether to send to a broker's second port, its number less 2
            (vipChannelEnabled).
        header_codec: The encoding of request headers; every server reads both.
        in_flight_max: Requests that wait for replies on one connection.
        sync_connections_max: Connections per server that calling threads use directly. More
            threads than this share the connection of the background thread.
        callback_threads: Threads that run callbacks of futures and checks of transactions
            (clientCallbackExecutorThreads).
        callback_executor: An executor of your own that runs them instead, such as a
            `ThreadPoolExecutor` that your program shares; with asyncio, it runs checks that are
            plain functions (callbackExecutor). The client does not shut it down. Options with one
            do not pickle.
        callbacks_waiting_max: Callbacks that wait for such a thread; further ones run in the
            thread that completes the future.
        idle_timeout: Seconds after which an unused connection is closed.
        busy_poll: Seconds to poll for a reply before sleeping. Polling takes a whole core, so it
            is for a process that sends one message after the other and has a core to itself;
            0.0005 is a good value. 0 turns it off.
        body_bytes_max: The largest body after decompression that is read.
    """

    connect_on_start: bool = True
    check_on_start: bool = False
    connect_timeout: float = 3.0
    call_timeout: float = 3.0
    route_refresh_interval: float = 30.0
    heartbeat_interval: float = 30.0
    discovery_url: str | None = None
    discovery_interval: float = 120.0
    client_ip: str | None = None
    instance: str | None = None
    unit: str | None = None
    is_unit_mode: bool = False
    namespace: str | None = None
    namespace_v2: str | None = None
    is_stream_request: bool = False
    zone: str | None = None
    zone_mode: bool = False
    access_channel: AccessChannel = "local"
    vip_channel: bool = False
    header_codec: Literal["json", "binary"] = "json"
    in_flight_max: int = IN_FLIGHT_MAX
    sync_connections_max: int = 8
    callback_threads: int = 4
    callback_executor: Executor | None = None
    callbacks_waiting_max: int = 10_000
    idle_timeout: float = 120.0
    busy_poll: float = 0.0
    body_bytes_max: int = UNPACKED_BODY_BYTES_MAX

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        for name in (
            *("route_refresh_interval", "heartbeat_interval", "discovery_interval", "idle_timeout"),
        ):
            check_positive(name, getattr(self, name))
        check_timeout(self.connect_timeout, "connect_timeout")
        check_timeout(self.call_timeout, "call_timeout")
        check_at_least(0, "busy_poll", self.busy_poll)
        for name in ("in_flight_max", "callback_threads", "body_bytes_max"):
            check_count(1, name, getattr(self, name))
        for name in ("sync_connections_max", "callbacks_waiting_max"):
            check_count(0, name, getattr(self, name))
        for name in (
            *("connect_on_start", "check_on_start", "is_unit_mode", "is_stream_request"),
            *("vip_channel", "zone_mode"),
        ):
            check_flag(name, getattr(self, name))
        check_one_of("header_codec", self.header_codec, ("json", "binary"))
        for name in (
            *("discovery_url", "instance", "unit", "namespace", "namespace_v2", "client_ip"),
            "zone",
        ):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
                if not getattr(self, name):
                    raise OptionError(f"{name}='' is empty; leave it out")
        executor = self.callback_executor
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise OptionError(
                f"callback_executor={executor!r} has no method submit; give an executor, such as "
                "concurrent.futures.ThreadPoolExecutor(4)"
            )
        if self.discovery_url is not None and not self.discovery_url.startswith("http"):
            raise OptionError(f"discovery_url={self.discovery_url!r} must begin with http")
        check_one_of("access_channel", self.access_channel, get_args(AccessChannel))
        if self.zone_mode and self.zone is None:
            raise OptionError("zone_mode=True needs the name of the zone: give zone, too")
        if self.namespace is not None and LEGAL_NAME.fullmatch(self.namespace) is None:
            raise OptionError(
                f"namespace={self.namespace!r} has characters that a topic's name cannot have"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer sends.

    Attributes:
        timeout: Seconds for a whole call, all attempts together (sendMsgTimeout).
        attempt_timeout: Seconds for one attempt if another can follow; the whole time that is left
            if not given (sendMsgMaxTimeoutPerRequest).
        retries: Further attempts after the first one of a `send` (retryTimesWhenSendFailed).
        submit_retries: Further attempts after the first one of a `submit`
            (retryTimesWhenSendAsyncFailed). For `send` of an `AsyncProducer`, `retries` counts.
        retry_backoff: Seconds to wait before a retry, doubled each time; the first retry on another
            broker is made at once. A pause takes at most half of the time left. Java has none:
            when brokers refuse connections, all its attempts are over within milliseconds. 0 gives
            that behaviour.
        retry_when_not_stored: Whether to try another broker if one stored a message, but did not
            flush it or copy it to its slave in time (retryAnotherBrokerWhenNotStoreOK).
        retry_codes: Response codes after which another attempt is made (retryResponseCodes).
        compress_over_bytes: Bodies of this size or more are compressed
            (compressMsgBodyOverHowmuch).
        compression: The algorithm (compressType).
        compression_level: From 0 to 9; without effect on lz4 (compressLevel).
        body_bytes_max: The largest body, before compression (maxMessageSize).
        default_topic: The topic whose route is used for a missing topic (createTopicKey).
        default_topic_queues: Queues of a topic that is created (defaultTopicQueueNums).
        auto_create: How a missing topic is created. "first-broker" is Apache's way: the topic
            exists on one broker then, which gets all messages. "balanced" creates it on every
            master first. "off" raises an error.
        auto_batch: Collect small messages into batches; None sends each by itself.
        in_flight_max: Messages of `submit` and of an `AsyncProducer` that wait for their replies.
            Java has no limit by default, and its memory use grows while a broker is slow
            (backPressureForAsyncSendNum).
        in_flight_bytes_max: The same for the bytes of their bodies
            (backPressureForAsyncSendSize).
        when_full: What a further `submit` does. "block": it waits for room, up to the timeout of
            the send, then it raises `TooManySends`; so a slow broker slows down the program that
            sends. "raise": it raises `TooManySends` at once. "queue": it returns at once, and the
            message waits in memory, any number of them. Under asyncio, where `send` is awaited,
            "block" and "queue" are the same: the task waits.
        fault_tolerance: Avoid slow and failed brokers: a style, or all settings
            (sendLatencyFaultEnable).
        trace: Record each send in the trace topic.
        header_version: 2 writes send headers with short field names, 1 with long ones.
        check_threads: Threads that answer the broker's checks of transactions
            (checkThreadPoolMaxSize).
        checks_waiting_max: Checks that wait for such a thread. Further ones are dropped; the
            broker checks again later (checkRequestHoldMax).
    """

    timeout: float = 3.0
    attempt_timeout: float | None = None
    retries: int = 2
    submit_retries: int = 2
    retry_backoff: float = 0.1
    retry_when_not_stored: bool = False
    retry_codes: frozenset[int] = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})
    compress_over_bytes: int = 4096
    compression: CompressionName = "zlib"
    compression_level: int = 5
    body_bytes_max: int = BODY_BYTES_MAX
    default_topic: str = DEFAULT_TOPIC
    default_topic_queues: int = 4
    auto_create: AutoCreate = "first-broker"
    auto_batch: AutoBatch | None = None
    in_flight_max: int = 10_000
    in_flight_bytes_max: int = 100 * MIB
    when_full: WhenFull = "block"
    fault_tolerance: FaultTolerance | FaultStyle = "off"
    trace: Trace | bool = False
    header_version: Literal[1, 2] = 2
    check_threads: int = 1
    checks_waiting_max: int = 2000

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        check_timeout(self.timeout)
        if self.attempt_timeout is not None:
            check_timeout(self.attempt_timeout, "attempt_timeout")
        for name in (
            *("compress_over_bytes", "body_bytes_max", "default_topic_queues"),
            *("check_threads", "checks_waiting_max"),
        ):
            check_count(1, name, getattr(self, name))
        check_count(0, "retries", self.retries)
        check_count(0, "submit_retries", self.submit_retries)
        check_wait("retry_backoff", self.retry_backoff)
        # Java's smallest values. With less, a producer could hardly send anything.
        check_count(10, "in_flight_max", self.in_flight_max)
        check_count(MIB, "in_flight_bytes_max", self.in_flight_bytes_max)
        check_flag("retry_when_not_stored", self.retry_when_not_stored)
        # A set or a list will do; the option is a frozenset, so that options have a hash.
        object.__setattr__(self, "retry_codes", _codes("retry_codes", self.retry_codes))
        check_one_of("compression", self.compression, get_args(CompressionName))
        check_between(0, 9, "compression_level", self.compression_level)
        check_one_of("when_full", self.when_full, get_args(WhenFull))
        check_one_of("auto_create", self.auto_create, get_args(AutoCreate))
        check_one_of("header_version", self.header_version, (1, 2))
        if not isinstance(self.fault_tolerance, FaultTolerance):
            check_type(
                "fault_tolerance", self.fault_tolerance, str, "a FaultTolerance or its style"
            )
            check_one_of("fault_tolerance", self.fault_tolerance, get_args(FaultStyle))
        if self.auto_batch is not None:
            check_type("auto_batch", self.auto_batch, AutoBatch, "an AutoBatch or None")
        check_type("trace", self.trace, (Trace, bool), "a Trace, True or False")
        _check_topic("default_topic", self.default_topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """How a pull consumer reads.

    Attributes:
        batch_count: Messages per request (pullBatchSize). Brokers return at most 32 unless they
            are configured otherwise.
        suspend: Seconds that a broker holds a request while there is no message
            (brokerSuspendMaxTimeMillis).
        answer_margin: Seconds that the reply may take in addition.
        buffered_max: Messages that a consumer has fetched and not yet returned
            (pullThresholdForAll).
        decode_body: Whether bodies are decompressed. With False they stay as they are stored, and
            `compression` of a message names how; for a program that only forwards messages, as
            `CompressedMessage` or to another system (decodeDecompressBody).
        retry_backoff: Seconds until a failed pull is repeated; doubled after each further failure
            (pullTimeDelayMillsWhenException, which stays the same).
        retry_backoff_max: The longest of these pauses, in seconds.
        start: For `subscribe`: where the group begins in queues in which it has no offset yet:
            "latest", "earliest" or a time (consumeFromWhere).
        strategy: For `subscribe`: how the members divide the queues; `Average` if not given
            (allocateMessageQueueStrategy).
        auto_commit: For `subscribe`: seconds between two commits of what was returned before the
            last poll; None commits only by `commit` (autoCommitIntervalMillis).
    """

    batch_count: int = 32
    suspend: float = 15.0
    answer_margin: float = 15.0
    buffered_max: int = 10_000
    decode_body: bool = True
    retry_backoff: float = 0.1
    retry_backoff_max: float = 3.0
    start: GroupStart = "latest"
    strategy: Strategy | AllocateForGroup | None = None
    auto_commit: float | None = None

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        check_group_start(self.start)
        if self.strategy is not None:
            from downrange.allocation import strategy_of  # few programs need it

            object.__setattr__(self, "strategy", strategy_of(self.strategy))
        if self.auto_commit is not None:
            check_positive("auto_commit", self.auto_commit)
        check_count(1, "batch_count", self.batch_count)
        check_count(1, "buffered_max", self.buffered_max)
        check_timeout(self.suspend, "suspend")
        check_timeout(self.answer_margin, "answer_margin")
        _check_backoff(self.retry_backoff, self.retry_backoff_max)
        check_flag("decode_body", self.decode_body)


def check_group_start(start: GroupStart) -> None:
    """Refuse what is not a place for a new group to begin.

    Raises:
        OptionError: It is not one of the two words, nor a time with a time zone.
    """
    if isinstance(start, datetime):
        if start.utcoffset() is None:
            raise OptionError(f"start={start!r} needs a time zone")
    elif start not in ("earliest", "latest"):
        raise OptionError(
            f"start={start!r} is not 'earliest', 'latest' or a datetime; it counts for queues in "
            "which the group has no offset, others continue where the group is"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleOptions:
    """How a simple consumer receives, and what becomes of messages that it does not acknowledge.

    Attributes:
        start: Where a group starts in a queue that it has never read: "earliest", or "latest",
            which is committed by the first subscription to the topic.
        retries: How often a message is delivered again; then `retry` and a `processing` block that
            fails make it a dead letter (maxReconsumeTimes).
        handle_timeout: Seconds after which a `processing` block does not renew the receipt any
            more, so that the message of a block that hangs is delivered again (consumeTimeout).
        decode_body: Whether bodies are decompressed; see `PullOptions`.
        retry_backoff: Seconds until a broker that failed is asked again; doubled after each
            further failure.
        retry_backoff_max: The longest of these pauses, in seconds.
    """

    start: Literal["earliest", "latest"] = "earliest"
    retries: int = 16
    handle_timeout: float = 900.0
    decode_body: bool = True
    retry_backoff: float = 0.1
    retry_backoff_max: float = 3.0

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        check_one_of("start", self.start, ("earliest", "latest"))
        check_count(0, "retries", self.retries)
        check_timeout(self.handle_timeout, "handle_timeout")
        check_flag("decode_body", self.decode_body)
        _check_backoff(self.retry_backoff, self.retry_backoff_max)


def _check_backoff(first: float, longest: float) -> None:
    check_positive("retry_backoff", first)
    check_positive("retry_backoff_max", longest)
    if longest < first:
        raise OptionError(f"retry_backoff_max={longest} is less than retry_backoff={first}")


def _check_secret(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a str, not an object of type {type(value).__name__}")


def _check_topic(name: str, topic: str) -> None:
    check_text(name, topic)
    if LEGAL_NAME.fullmatch(topic) is None:
        raise OptionError(f"{name}={topic!r} is not a legal topic name")


def _codes(name: str, codes: object) -> frozenset[int]:
    found = list(iterated(name, codes, "a set of int"))
    for code in found:
        check_whole(f"each of {name}", code)
    return frozenset(found)
