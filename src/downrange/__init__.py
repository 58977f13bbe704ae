"""Downrange: RocketMQ for Python and Spark, on the native TCP protocol.

    import downrange as mq

    with mq.Producer("127.0.0.1:9876", group="shop") as producer:
        producer.send(mq.Message("orders", b"1", tags="new", keys=["o-1"]))

All public names are here. Clients and the embedded cluster are imported when their names are first
used, so a program loads only the parts that it needs: a producer never loads a broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from downrange.errors import (
    AcksFailed,
    AlreadySettled,
    BatchFailed,
    BrokerNotFound,
    CallTimeout,
    CannotListen,
    CheckFailed,
    ClientClosed,
    ClientStateError,
    ClosedUnsettled,
    ConnectFailed,
    ConnectionLost,
    CorruptStore,
    DeadLetter,
    DiskFull,
    ForkedClient,
    FrameTooLarge,
    GroupTaken,
    HostNotFound,
    InvalidField,
    InvalidMessage,
    InvalidSql,
    LinkClosed,
    LinkError,
    MalformedBody,
    MalformedCommand,
    MalformedFrame,
    MalformedId,
    MalformedRecord,
    MessageRefused,
    MissingExtra,
    MissingField,
    NoNameServer,
    NoPermission,
    NotFound,
    NotStarted,
    NotSupported,
    OptionError,
    PopNotSupported,
    QueueMoved,
    ReceiptExpired,
    ReceiptMissing,
    RequestTimedOut,
    Retry,
    RocketMQError,
    RouteNotFound,
    SendFailed,
    SendForbidden,
    SendNotPermitted,
    SendTimedOut,
    SendUnreachable,
    ServerError,
    ServerFailure,
    ServiceNotAvailable,
    SettleError,
    SqlNotSupported,
    StoreError,
    StoreLocked,
    SystemBusy,
    TlsFailed,
    TooManyInFlight,
    TooManySends,
    TopicNotFound,
    TransportError,
    Unencodable,
    WireError,
    WrongEventLoop,
)
from downrange.model import (
    Attempt,
    BatchReceipt,
    CompressedMessage,
    LogOffset,
    Message,
    Outcome,
    QueueId,
    QueueOffset,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
    TransactionReceipt,
)
from downrange.options import (
    TLS,
    AutoBatch,
    BrokerOptions,
    ClientOptions,
    Credentials,
    FaultTolerance,
    ListenerOptions,
    NameServerOptions,
    ProducerOptions,
    Proxy,
    PullOptions,
    SimpleOptions,
    Trace,
    TraceDispatcher,
)

if TYPE_CHECKING:
    from downrange.client._async.admin import AsyncAdmin
    from downrange.client._async.client import AsyncClient
    from downrange.client._async.popped_message import AsyncPoppedMessage, AsyncProcessing
    from downrange.client._async.producer import AsyncProducer
    from downrange.client._async.pull_consumer import AsyncPullConsumer
    from downrange.client._async.simple_consumer import AsyncSimpleConsumer
    from downrange.client._async.template import AsyncMessageTemplate
    from downrange.client._async.transaction_producer import (
        AsyncTransaction,
        AsyncTransactionProducer,
    )
    from downrange.client._sync.admin import Admin
    from downrange.client._sync.client import Client
    from downrange.client._sync.popped_message import PoppedMessage, Processing
    from downrange.client._sync.producer import Producer
    from downrange.client._sync.pull_consumer import PullConsumer
    from downrange.client._sync.simple_consumer import SimpleConsumer
    from downrange.client._sync.template import MessageTemplate
    from downrange.client._sync.transaction_producer import Transaction, TransactionProducer
    from downrange.client.converters import Converter, Converters
    from downrange.client.flows.admin.clusters import ClusterFacts
    from downrange.client.flows.admin.doctor import Finding
    from downrange.client.flows.admin.topics import QueueState, TopicName, TopicSettings
    from downrange.client.flows.consuming.pop_sources import SourceHealth
    from downrange.client.flows.consuming.simple_core import SimpleHealth, SimpleStats
    from downrange.client.flows.hooks import EndTransactionContext, Hooks, MessageType, SendContext
    from downrange.client.flows.producing.trace_records import (
        EndTransactionTrace,
        PubTrace,
        RecallTrace,
        SubAfterTrace,
        SubBeforeTrace,
        UnknownTrace,
        decode_trace,
    )
    from downrange.client.flows.routing.routes import Route
    from downrange.client.flows.routing.selectors import by_hash, by_random, by_room
    from downrange.client.stats import ClientStats, ProducerStats
    from downrange.client.template_base import Envelope
    from downrange.embedded import Cluster
    from downrange.filters.sql import Sql

__all__ = [
    "TLS",
    "AcksFailed",
    "Admin",
    "AlreadySettled",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncMessageTemplate",
    "AsyncPoppedMessage",
    "AsyncProcessing",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncSimpleConsumer",
    "AsyncTransaction",
    "AsyncTransactionProducer",
    "Attempt",
    "AutoBatch",
    "BatchFailed",
    "BatchReceipt",
    "BrokerNotFound",
    "BrokerOptions",
    "CallTimeout",
    "CannotListen",
    "CheckFailed",
    "Client",
    "ClientClosed",
    "ClientOptions",
    "ClientStateError",
    "ClientStats",
    "ClosedUnsettled",
    "Cluster",
    "ClusterFacts",
    "CompressedMessage",
    "ConnectFailed",
    "ConnectionLost",
    "Converter",
    "Converters",
    "CorruptStore",
    "Credentials",
    "DeadLetter",
    "DiskFull",
    "EndTransactionContext",
    "EndTransactionTrace",
    "Envelope",
    "FaultTolerance",
    "Finding",
    "ForkedClient",
    "FrameTooLarge",
    "GroupTaken",
    "Hooks",
    "HostNotFound",
    "InvalidField",
    "InvalidMessage",
    "InvalidSql",
    "LinkClosed",
    "LinkError",
    "ListenerOptions",
    "LogOffset",
    "MalformedBody",
    "MalformedCommand",
    "MalformedFrame",
    "MalformedId",
    "MalformedRecord",
    "Message",
    "MessageRefused",
    "MessageTemplate",
    "MessageType",
    "MissingExtra",
    "MissingField",
    "NameServerOptions",
    "NoNameServer",
    "NoPermission",
    "NotFound",
    "NotStarted",
    "NotSupported",
    "OptionError",
    "Outcome",
    "PopNotSupported",
    "PoppedMessage",
    "Processing",
    "Producer",
    "ProducerOptions",
    "ProducerStats",
    "Proxy",
    "PubTrace",
    "PullConsumer",
    "PullOptions",
    "QueueId",
    "QueueMoved",
    "QueueOffset",
    "QueueState",
    "RecallTrace",
    "ReceiptExpired",
    "ReceiptMissing",
    "ReceivedMessage",
    "RequestTimedOut",
    "Retry",
    "RocketMQError",
    "Route",
    "RouteNotFound",
    "SendContext",
    "SendFailed",
    "SendForbidden",
    "SendNotPermitted",
    "SendReceipt",
    "SendStatus",
    "SendTimedOut",
    "SendUnreachable",
    "ServerError",
    "ServerFailure",
    "ServiceNotAvailable",
    "SettleError",
    "SimpleConsumer",
    "SimpleHealth",
    "SimpleOptions",
    "SimpleStats",
    "SourceHealth",
    "Sql",
    "SqlNotSupported",
    "StoreError",
    "StoreLocked",
    "SubAfterTrace",
    "SubBeforeTrace",
    "SystemBusy",
    "TlsFailed",
    "TooManyInFlight",
    "TooManySends",
    "TopicName",
    "TopicNotFound",
    "TopicSettings",
    "Trace",
    "TraceDispatcher",
    "Transaction",
    "TransactionProducer",
    "TransactionReceipt",
    "TransportError",
    "Unencodable",
    "UnknownTrace",
    "WireError",
    "WrongEventLoop",
    "by_hash",
    "by_random",
    "by_room",
    "decode_trace",
]

#: Name -> the module that defines it; the same as the imports for type checkers above.
_HOMES: Final = {
    "Admin": "downrange.client._sync.admin",
    "AsyncAdmin": "downrange.client._async.admin",
    "AsyncClient": "downrange.client._async.client",
    "Client": "downrange.client._sync.client",
    "ClientStats": "downrange.client.stats",
    "ProducerStats": "downrange.client.stats",
    "AsyncPullConsumer": "downrange.client._async.pull_consumer",
    "PullConsumer": "downrange.client._sync.pull_consumer",
    "AsyncSimpleConsumer": "downrange.client._async.simple_consumer",
    "SimpleConsumer": "downrange.client._sync.simple_consumer",
    "AsyncPoppedMessage": "downrange.client._async.popped_message",
    "PoppedMessage": "downrange.client._sync.popped_message",
    "AsyncProcessing": "downrange.client._async.popped_message",
    "Processing": "downrange.client._sync.popped_message",
    "SimpleHealth": "downrange.client.flows.consuming.simple_core",
    "SimpleStats": "downrange.client.flows.consuming.simple_core",
    "SourceHealth": "downrange.client.flows.consuming.pop_sources",
    "Converter": "downrange.client.converters",
    "Converters": "downrange.client.converters",
    "AsyncProducer": "downrange.client._async.producer",
    "Producer": "downrange.client._sync.producer",
    "AsyncMessageTemplate": "downrange.client._async.template",
    "MessageTemplate": "downrange.client._sync.template",
    "Envelope": "downrange.client.template_base",
    "AsyncTransaction": "downrange.client._async.transaction_producer",
    "AsyncTransactionProducer": "downrange.client._async.transaction_producer",
    "Transaction": "downrange.client._sync.transaction_producer",
    "TransactionProducer": "downrange.client._sync.transaction_producer",
    "Finding": "downrange.client.flows.admin.doctor",
    "ClusterFacts": "downrange.client.flows.admin.clusters",
    "EndTransactionContext": "downrange.client.flows.hooks",
    "Hooks": "downrange.client.flows.hooks",
    "MessageType": "downrange.client.flows.hooks",
    "SendContext": "downrange.client.flows.hooks",
    "Route": "downrange.client.flows.routing.routes",
    "by_hash": "downrange.client.flows.routing.selectors",
    "by_random": "downrange.client.flows.routing.selectors",
    "by_room": "downrange.client.flows.routing.selectors",
    "QueueState": "downrange.client.flows.admin.topics",
    "TopicName": "downrange.client.flows.admin.topics",
    "TopicSettings": "downrange.client.flows.admin.topics",
    "EndTransactionTrace": "downrange.client.flows.producing.trace_records",
    "PubTrace": "downrange.client.flows.producing.trace_records",
    "RecallTrace": "downrange.client.flows.producing.trace_records",
    "SubAfterTrace": "downrange.client.flows.producing.trace_records",
    "SubBeforeTrace": "downrange.client.flows.producing.trace_records",
    "UnknownTrace": "downrange.client.flows.producing.trace_records",
    "decode_trace": "downrange.client.flows.producing.trace_records",
    "Cluster": "downrange.embedded",
    "Sql": "downrange.filters.sql",
}

if not TYPE_CHECKING:  # with this function, a type checker would accept every name

    def __getattr__(name):
        """Import the module that defines a name (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        """List all public names, imported already or not."""
        return sorted({*globals(), *__all__})
