"""Options: frozen dataclasses, checked when they are made, and safe to pickle.

A bare duration is in seconds; every other number names its unit. Defaults stand with the fields,
reasons in the docstring of the class. Only the command line reads environment variables and config
files; the one exception is DOWNRANGE_PURE (`downrange/native.py`).
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
    SimpleOptions,
    Trace,
    TraceDispatcher,
)
from downrange.options.servers import (
    DELAY_LEVELS,
    BrokerOptions,
    FlushMode,
    ListenerOptions,
    MetricsOptions,
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
    "MetricsOptions",
    "NameServerOptions",
    "ProducerOptions",
    "Proxy",
    "PullOptions",
    "SimpleOptions",
    "TlsMode",
    "Trace",
    "TraceDispatcher",
    "delays_of",
]
