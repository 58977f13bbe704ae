"""Downrange: RocketMQ for Python and Spark, on the native TCP protocol.

    import downrange as mq

    with mq.Producer("127.0.0.1:9876", group="shop") as producer:
        producer.send(mq.Message("orders", b"1", tags="new", keys=["o-1"]))

All public names are here. Clients and the embedded cluster are loaded when their names are first
used, so that a program pays only for what it needs: a producer never loads a broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from downrange.errors import (
    BatchFailed,
    CallTimeout,
    CannotListen,
    CheckFailed,
    ClientClosed,
    ClientStateError,
    ConnectFailed,
    ConnectionLost,
    CorruptStore,
    DiskFull,
    ForkedClient,
    FrameTooLarge,
    GroupTaken,
    HostNotFound,
    InvalidField,
    InvalidMessage,
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
    RequestTimedOut,
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
)
from downrange.model import (
    Attempt,
    BatchReceipt,
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
    Trace,
)

if TYPE_CHECKING:
    from downrange.client.admin import Admin, AsyncAdmin
    from downrange.client.client import AsyncClient, Client, ClientStats, ProducerStats
    from downrange.client.consumer import AsyncPullConsumer, PullConsumer
    from downrange.client.converters import Converter, Converters
    from downrange.client.producer import AsyncProducer, Producer
    from downrange.client.template import AsyncMessageTemplate, MessageTemplate
    from downrange.client.transaction import (
        AsyncTransaction,
        AsyncTransactionProducer,
        Transaction,
        TransactionProducer,
    )
    from downrange.core.checking import Finding
    from downrange.core.clusters import ClusterFacts
    from downrange.core.hooks import EndTransactionContext, Hooks, MessageType, SendContext
    from downrange.core.routes import Route
    from downrange.core.selectors import by_hash, by_random, by_room
    from downrange.core.topics import QueueState, TopicName, TopicSettings
    from downrange.embedded import Cluster

__all__ = [
    "TLS",
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncMessageTemplate",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncTransaction",
    "AsyncTransactionProducer",
    "Attempt",
    "AutoBatch",
    "BatchFailed",
    "BatchReceipt",
    "BrokerOptions",
    "CallTimeout",
    "CannotListen",
    "CheckFailed",
    "Client",
    "ClientClosed",
    "ClientOptions",
    "ClientStateError",
    "ClientStats",
    "Cluster",
    "ClusterFacts",
    "ConnectFailed",
    "ConnectionLost",
    "Converter",
    "Converters",
    "CorruptStore",
    "Credentials",
    "DiskFull",
    "EndTransactionContext",
    "FaultTolerance",
    "Finding",
    "ForkedClient",
    "FrameTooLarge",
    "GroupTaken",
    "Hooks",
    "HostNotFound",
    "InvalidField",
    "InvalidMessage",
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
    "Producer",
    "ProducerOptions",
    "ProducerStats",
    "Proxy",
    "PullConsumer",
    "PullOptions",
    "QueueId",
    "QueueOffset",
    "QueueState",
    "ReceivedMessage",
    "RequestTimedOut",
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
    "StoreError",
    "StoreLocked",
    "SystemBusy",
    "TlsFailed",
    "TooManyInFlight",
    "TooManySends",
    "TopicName",
    "TopicNotFound",
    "TopicSettings",
    "Trace",
    "Transaction",
    "TransactionProducer",
    "TransactionReceipt",
    "TransportError",
    "Unencodable",
    "WireError",
    "by_hash",
    "by_random",
    "by_room",
]

#: Name -> the module that is loaded for it; the same as what type checkers see above.
_HOMES: Final = {
    "Admin": "downrange.client.admin",
    "AsyncAdmin": "downrange.client.admin",
    "AsyncClient": "downrange.client.client",
    "Client": "downrange.client.client",
    "ClientStats": "downrange.client.client",
    "ProducerStats": "downrange.client.client",
    "AsyncPullConsumer": "downrange.client.consumer",
    "PullConsumer": "downrange.client.consumer",
    "Converter": "downrange.client.converters",
    "Converters": "downrange.client.converters",
    "AsyncProducer": "downrange.client.producer",
    "Producer": "downrange.client.producer",
    "AsyncMessageTemplate": "downrange.client.template",
    "MessageTemplate": "downrange.client.template",
    "AsyncTransaction": "downrange.client.transaction",
    "AsyncTransactionProducer": "downrange.client.transaction",
    "Transaction": "downrange.client.transaction",
    "TransactionProducer": "downrange.client.transaction",
    "Finding": "downrange.core.checking",
    "ClusterFacts": "downrange.core.clusters",
    "EndTransactionContext": "downrange.core.hooks",
    "Hooks": "downrange.core.hooks",
    "MessageType": "downrange.core.hooks",
    "SendContext": "downrange.core.hooks",
    "Route": "downrange.core.routes",
    "by_hash": "downrange.core.selectors",
    "by_random": "downrange.core.selectors",
    "by_room": "downrange.core.selectors",
    "QueueState": "downrange.core.topics",
    "TopicName": "downrange.core.topics",
    "TopicSettings": "downrange.core.topics",
    "Cluster": "downrange.embedded",
}

if not TYPE_CHECKING:  # a checker would believe that every name is there

    def __getattr__(name):
        """Load what a name stands for (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        """Name what is here, loaded or not."""
        return sorted({*globals(), *__all__})
