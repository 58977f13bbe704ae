"""Settings: frozen, checked when they are made, and safe to pickle.

A bare duration is in seconds; every other number names its unit. What a limit protects is said
beside it. Environment variables and files are read by the command line, not here.
"""

from downrange.options.clients import (
    TLS,
    AutoBatch,
    ClientOptions,
    Credentials,
    FaultTolerance,
    ProducerOptions,
    Proxy,
    PullOptions,
    Trace,
)
from downrange.options.servers import (
    DELAY_LEVELS,
    BrokerOptions,
    FlushMode,
    ListenerOptions,
    NameServerOptions,
    TlsMode,
    delays_of,
)

__all__ = [
    "DELAY_LEVELS",
    "TLS",
    "AutoBatch",
    "BrokerOptions",
    "ClientOptions",
    "Credentials",
    "FaultTolerance",
    "FlushMode",
    "ListenerOptions",
    "NameServerOptions",
    "ProducerOptions",
    "Proxy",
    "PullOptions",
    "TlsMode",
    "Trace",
    "delays_of",
]
