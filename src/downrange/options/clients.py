"""Settings of clients, producers and pull consumers. Java's names stand in parentheses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from downrange.errors import OptionError
from downrange.options.checks import check_at_least, check_one_of, check_positive
from downrange.wire.limits import BODY_BYTES_MAX, MIB, UNPACKED_BODY_BYTES_MAX
from downrange.wire.system_names import DEFAULT_TOPIC, LEGAL_NAME, TRACE_TOPIC

if TYPE_CHECKING:
    import os
    import ssl

#: How bodies are compressed.
CompressionName: TypeAlias = Literal["zlib", "lz4", "zstd"]
#: Who creates a topic that does not exist: nobody; the broker that a message happens to go to
#: (Apache's way); or we, on every master, before the first message.
AutoCreate: TypeAlias = Literal["off", "first-broker", "balanced"]
#: How brokers that were slow or failed are avoided.
FaultStyle: TypeAlias = Literal["off", "4.x", "5.x"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account for access control; the secrets never show in texts.

    Attributes:
        access_key: The account's name.
        secret_key: What requests are signed with.
        security_token: Of a temporary account.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: A part is empty.
        """
        if not self.access_key or not self.secret_key:
            raise OptionError("credentials need an access key and a secret key")


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """How to speak TLS to name servers and brokers alike.

    Attributes:
        ca: File of the certificates to trust; the system's without one.
        certificate: File of our own certificate, when the servers want to know who we are.
        key: File of its key, unless that is in the same file.
        key_password: Of the key.
        check_host: Whether a server's certificate must name the host that was connected to.
        verify: Whether a server's certificate is checked at all; False is for tests.
        context: An own context instead of all the others; options that hold one do not pickle.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    key_password: str | None = field(default=None, repr=False)
    check_host: bool = True
    verify: bool = True
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the options that contradict each other.
        """
        if self.key is not None and self.certificate is None:
            raise OptionError("key without certificate: name the file of the certificate, too")
        if self.context is not None and (self.ca, self.certificate, self.key) != (None,) * 3:
            raise OptionError("context takes the place of ca, certificate and key; give either")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A SOCKS5 proxy that all connections go through (socksProxyConfig).

    Attributes:
        address: "host:port".
        username: Where it wants one.
        password: See `username`.
    """

    address: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTolerance:
    """Which brokers a producer avoids, and for how long.

    Attributes:
        style: "4.x" sorts brokers by latency and takes the better half when all are bad; "5.x"
            prefers available, then reachable brokers.
        latency_ms: Classes of latency, rising; None takes the style's own (latencyMax).
        avoid_ms: How long a broker of each class is avoided (notAvailableDuration).
        detect: Whether unreachable brokers are probed in the background; 5.x only
            (startDetectorEnable).
        detect_interval: How often each of them (detectInterval).
        detect_timeout: How long a probe may take (detectTimeout).
    """

    style: FaultStyle = "5.x"
    latency_ms: tuple[int, ...] | None = None
    avoid_ms: tuple[int, ...] | None = None
    detect: bool = True
    detect_interval: float = 2.0
    detect_timeout: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        check_one_of("style", self.style, get_args(FaultStyle))
        if (self.latency_ms is None) != (self.avoid_ms is None):
            raise OptionError("latency_ms and avoid_ms belong together; give both or neither")
        if self.latency_ms is not None and self.avoid_ms is not None:
            if len(self.latency_ms) != len(self.avoid_ms) or not self.latency_ms:
                raise OptionError(
                    f"latency_ms={self.latency_ms} and avoid_ms={self.avoid_ms} differ in length"
                )
            if list(self.latency_ms) != sorted(set(self.latency_ms)):
                raise OptionError(f"latency_ms={self.latency_ms} does not rise")
        check_positive("detect_interval", self.detect_interval)
        check_positive("detect_timeout", self.detect_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoBatch:
    """How small messages are gathered into batches (autoBatch, 5.x).

    Attributes:
        hold_ms: How long the first message of a batch waits for others (batchMaxDelayMs).
        hold_bytes: A batch with more bytes than this is sent at once (batchMaxBytes).
        total_bytes_max: With more than this held back in all, messages are sent directly
            (totalBatchMaxBytes).
    """

    hold_ms: int = 10
    hold_bytes: int = 32_768
    total_bytes_max: int = 32 * MIB

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        if not 1 <= self.hold_ms <= 30_000:
            raise OptionError(f"hold_ms={self.hold_ms} is not between 1 and 30000")
        if not 1 <= self.hold_bytes <= 2 * MIB:
            raise OptionError(f"hold_bytes={self.hold_bytes} is not between 1 and {2 * MIB}")
        check_at_least(1, "total_bytes_max", self.total_bytes_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """How what happened to messages is recorded in a topic of its own (enableTrace).

    Attributes:
        topic: Where the records go (traceTopic).
        batch_count: So many are sent together (traceMsgBatchNum).
        flush_interval: So long one waits for others.
        queue_max: So many wait at most; more are dropped and counted.
    """

    topic: str = TRACE_TOPIC
    batch_count: int = 10
    flush_interval: float = 5.0
    queue_max: int = 2048

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        if LEGAL_NAME.fullmatch(self.topic) is None:
            raise OptionError(f"topic={self.topic!r} is no topic name")
        if not 1 <= self.batch_count <= 20:
            raise OptionError(f"batch_count={self.batch_count} is not between 1 and 20")
        check_positive("flush_interval", self.flush_interval)
        check_at_least(1, "queue_max", self.queue_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What producers and consumers of one client share.

    Attributes:
        connect_on_start: Whether `start` fails when no name server can be reached. With False it
            returns at once and the first call fails instead.
        check_on_start: Whether `start` looks at the network first, as `downrange doctor` does, and
            fails naming every finding.
        connect_timeout: How long a connection may take to stand, TLS included.
        call_timeout: How long a name server or an administrative call may take
            (mqClientApiTimeout).
        route_refresh_interval: How often the routes of used topics are asked for
            (pollNameServerInterval).
        heartbeat_interval: How often brokers hear of us (heartbeatBrokerInterval).
        discovery_url: Where name server addresses are fetched from when none were given.
        discovery_interval: How often.
        client_ip: What the client id and message ids say; found by itself unless given (clientIP).
        instance: The middle of the client id; process id and a number unless given (instanceName).
        unit: The unit's name, a part of the client id (unitName).
        is_unit_mode: Sent with each message (unitMode).
        namespace: Put before topics and groups, and taken off again (namespace).
        namespace_v2: Sent with each request instead; 5.x (namespaceV2).
        is_stream_request: Sent with each request (enableStreamRequestType).
        vip_channel: Send to the broker's second port, two below (vipChannelEnabled).
        header_codec: How request headers are written; every server reads both.
        in_flight_max: Requests that wait for replies on one connection.
        sync_connections_max: Connections per server that threads use directly; more threads than
            this share the one of the background thread.
        callback_threads: Threads that run callbacks of futures and checks of transactions
            (clientCallbackExecutorThreads).
        callbacks_waiting_max: Callbacks that wait for such a thread; more run where they are.
        idle_timeout: A connection that was not used for so long is closed.
        busy_poll: Replies that come within so many seconds are waited for without sleeping, which
            takes a core: for a process that sends one message after the other and has a core to
            itself; 0.0005 is a good value. 0 sleeps at once.
        body_bytes_max: The largest body to unpack when reading.
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
    vip_channel: bool = False
    header_codec: Literal["json", "binary"] = "json"
    in_flight_max: int = 65_535
    sync_connections_max: int = 8
    callback_threads: int = 4
    callbacks_waiting_max: int = 10_000
    idle_timeout: float = 120.0
    busy_poll: float = 0.0
    body_bytes_max: int = UNPACKED_BODY_BYTES_MAX

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        for name in (
            *("connect_timeout", "call_timeout", "route_refresh_interval", "heartbeat_interval"),
            *("discovery_interval", "idle_timeout"),
        ):
            check_positive(name, getattr(self, name))
        check_at_least(0, "busy_poll", self.busy_poll)
        for name in ("in_flight_max", "callback_threads", "body_bytes_max"):
            check_at_least(1, name, getattr(self, name))
        for name in ("sync_connections_max", "callbacks_waiting_max"):
            check_at_least(0, name, getattr(self, name))
        check_one_of("header_codec", self.header_codec, ("json", "binary"))
        if self.discovery_url is not None and not self.discovery_url.startswith("http"):
            raise OptionError(f"discovery_url={self.discovery_url!r} is no http address")
        for name in ("instance", "unit", "namespace", "namespace_v2", "client_ip"):
            if getattr(self, name) == "":
                raise OptionError(f"{name}='' says nothing; leave it out")
        if self.namespace is not None and LEGAL_NAME.fullmatch(self.namespace) is None:
            raise OptionError(f"namespace={self.namespace!r} cannot be a part of a topic's name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer sends.

    Attributes:
        timeout: For a whole call, all attempts together (sendMsgTimeout).
        attempt_timeout: For one attempt, when another is possible
            (sendMsgMaxTimeoutPerRequest).
        retries: More attempts of a `send` that waits (retryTimesWhenSendFailed).
        submit_retries: More attempts of a `submit` (retryTimesWhenSendAsyncFailed). An
            `AsyncProducer` waits in `send`, so `retries` holds for that.
        retry_when_not_stored: Try another broker when one was not in time with disk or slave
            (retryAnotherBrokerWhenNotStoreOK).
        retry_codes: Response codes after which another attempt is made (retryResponseCodes).
        compress_over_bytes: Bodies of so many bytes or more are compressed
            (compressMsgBodyOverHowmuch).
        compression: How (compressType).
        compression_level: How hard; lz4 has none (compressLevel).
        body_bytes_max: Largest body, before compression (maxMessageSize).
        default_topic: The topic whose route a missing topic borrows (createTopicKey).
        default_topic_queues: Queues that a missing topic gets (defaultTopicQueueNums).
        auto_create: Who creates a missing topic; "first-broker" is Apache's way, after which all
            messages go to one broker, "balanced" creates it on every master first.
        auto_batch: Gather small messages; None sends each by itself.
        in_flight_max: Messages of `submit` and of an `AsyncProducer` on their way; one more waits.
            Java has no limit by default; without one, memory grows when a broker is slow
            (backPressureForAsyncSendNum).
        in_flight_bytes_max: Bytes of their bodies (backPressureForAsyncSendSize).
        fault_tolerance: Avoid slow and failed brokers; a style or all of its settings
            (sendLatencyFaultEnable).
        trace: Record what happened to each message in the trace topic.
        header_version: 2 writes send headers with short names, 1 with long ones.
        check_threads: Threads that answer the broker's questions about transactions
            (checkThreadPoolMaxSize).
        checks_waiting_max: Questions that wait for such a thread; more are dropped, the broker
            asks again (checkRequestHoldMax).
    """

    timeout: float = 3.0
    attempt_timeout: float | None = None
    retries: int = 2
    submit_retries: int = 2
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
    fault_tolerance: FaultTolerance | FaultStyle = "off"
    trace: Trace | bool = False
    header_version: Literal[1, 2] = 2
    check_threads: int = 1
    checks_waiting_max: int = 2000

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        check_positive("timeout", self.timeout)
        if self.attempt_timeout is not None:
            check_positive("attempt_timeout", self.attempt_timeout)
        for name in (
            *("compress_over_bytes", "body_bytes_max", "default_topic_queues"),
            *("check_threads", "checks_waiting_max"),
        ):
            check_at_least(1, name, getattr(self, name))
        check_at_least(0, "retries", self.retries)
        check_at_least(0, "submit_retries", self.submit_retries)
        # Java's smallest values, below which a producer would stand still.
        check_at_least(10, "in_flight_max", self.in_flight_max)
        check_at_least(MIB, "in_flight_bytes_max", self.in_flight_bytes_max)
        check_one_of("compression", self.compression, get_args(CompressionName))
        if not 0 <= self.compression_level <= 9:
            raise OptionError(f"compression_level={self.compression_level} is not from 0 to 9")
        check_one_of("auto_create", self.auto_create, get_args(AutoCreate))
        check_one_of("header_version", self.header_version, (1, 2))
        if not isinstance(self.fault_tolerance, FaultTolerance):
            check_one_of("fault_tolerance", self.fault_tolerance, get_args(FaultStyle))
        if LEGAL_NAME.fullmatch(self.default_topic) is None:
            raise OptionError(f"default_topic={self.default_topic!r} is no topic name")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """How a pull consumer reads.

    Attributes:
        batch_count: Messages per request; brokers give 32 at most unless told otherwise
            (pullBatchSize).
        suspend: How long a broker holds a request back until there is a message
            (brokerSuspendMaxTimeMillis).
        answer_margin: How much longer than that the answer may take.
        buffered_max: Messages that were fetched and not yet asked for, per consumer
            (pullThresholdForAll).
    """

    batch_count: int = 32
    suspend: float = 15.0
    answer_margin: float = 15.0
    buffered_max: int = 10_000

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        check_at_least(1, "batch_count", self.batch_count)
        check_at_least(1, "buffered_max", self.buffered_max)
        check_positive("suspend", self.suspend)
        check_positive("answer_margin", self.answer_margin)
