"""Metrics of what clients and consumers count themselves: `stats()` of each that is running.

A reader of the SDK asks for them when it collects, so they cost nothing in between. The names are
those of the fields, after `downrange.producer.`, `downrange.consumer.` and `downrange.client.`.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from opentelemetry.metrics import Observation

from downrange.client._async.client import AsyncClient
from downrange.client._async.pull_consumer import AsyncPullConsumer
from downrange.client._async.push_consumer import AsyncPushConsumer
from downrange.client._async.simple_consumer import AsyncSimpleConsumer
from downrange.client._sync.client import Client
from downrange.client._sync.pull_consumer import PullConsumer
from downrange.client._sync.push_consumer import PushConsumer
from downrange.client._sync.simple_consumer import SimpleConsumer
from downrange.client.consumer_stats import ConsumerStats
from downrange.client.flows.consuming.simple_core import SimpleStats
from downrange.client.stats import ProducerStats
from downrange.errors import RocketMQError
from downrange.otel import names
from downrange.otel.telemetry import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions, Meter

    from downrange.client.stats import ClientStats
    from downrange.otel.calls import Replacements
    from downrange.otel.telemetry import Telemetry

#: The fields that go up and down; all the others only go up.
_LEVELS: Final = frozenset(
    {
        *("in_flight", "in_flight_bytes", "waiting", "gathered_bytes", "traces_waiting"),
        *("running", "buffered_bytes", "queues", "processing"),
    }
)
_GROUP: Final = "downrange.group"


class _Started:
    """Objects that were started, as long as they exist; for any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._objects: WeakSet[Any] = WeakSet()

    def add(self, started: object) -> None:
        """Add an object."""
        with self._lock:
            self._objects.add(started)

    def all(self) -> list[Any]:
        """Return those that exist."""
        with self._lock:
            return list(self._objects)


class _Start(Operation):
    """A call of `start`: afterwards the object is running."""

    __slots__ = ("_running", "_started")

    def __init__(self, telemetry: Telemetry, started: object, running: _Started) -> None:
        super().__init__(telemetry)
        self._started = started
        self._running = running

    def finish(self, result: Any) -> None:
        self._running.add(self._started)


class ClientMetrics:
    """Observes the clients and consumers that were started."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._clients = _Started()
        self._consumers = _Started()
        meter = telemetry.meter
        for name in ProducerStats.__struct_fields__:
            _observe(meter, "producer", name, self._of_producers(name))
        for name in dict.fromkeys(ConsumerStats.__struct_fields__ + SimpleStats.__struct_fields__):
            _observe(meter, "consumer", name, self._of_consumers(name))
        meter.create_observable_gauge(
            "downrange.client.connections", [self._connections], description="Open connections."
        )
        meter.create_observable_counter(
            "downrange.client.late_replies",
            [self._late_replies],
            description="Replies that arrived after the timeout of their requests.",
        )

    def install(self, methods: Replacements) -> None:
        """Replace the methods."""
        for client in (Client, AsyncClient):
            methods.wrap(client, "start", self._started(self._clients), None)
        for consumer in (
            *(PushConsumer, AsyncPushConsumer, PullConsumer, AsyncPullConsumer),
            *(SimpleConsumer, AsyncSimpleConsumer),
        ):
            methods.wrap(consumer, "start", self._started(self._consumers), None)

    def _started(self, running: _Started) -> Any:
        def begin(started: Any, _: Any, __: dict[str, Any]) -> Operation:
            return _Start(self._telemetry, started, running)

        return begin

    def _stats(self) -> Iterator[ClientStats]:
        for client in self._clients.all():
            if (stats := _stats_of(client)) is not None:
                yield stats

    def _of_producers(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for stats in self._stats():
                for group, producer in stats.producers.items():
                    yield Observation(
                        getattr(producer, name), {names.CLIENT_ID: stats.client_id, _GROUP: group}
                    )

        return observe

    def _of_consumers(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for consumer in self._consumers.all():
                stats = _stats_of(consumer)
                value = getattr(stats, name, None)
                if value is not None:
                    client_id = consumer.client.core.client_id
                    yield Observation(value, {names.CLIENT_ID: client_id, _GROUP: consumer.group})

        return observe

    def _connections(self, options: CallbackOptions) -> Iterable[Observation]:
        for stats in self._stats():
            for address, count in stats.connections.items():
                host, _, port = address.rpartition(":")
                yield Observation(
                    count,
                    {
                        names.CLIENT_ID: stats.client_id,
                        names.SERVER_ADDRESS: host,
                        names.SERVER_PORT: int(port),
                    },
                )

    def _late_replies(self, _: CallbackOptions) -> Iterable[Observation]:
        for stats in self._stats():
            yield Observation(stats.late_replies, {names.CLIENT_ID: stats.client_id})


def _observe(
    meter: Meter,
    kind: str,
    name: str,
    callback: Callable[[CallbackOptions], Iterable[Observation]],
) -> None:
    create = (
        meter.create_observable_up_down_counter
        if name in _LEVELS
        else meter.create_observable_counter
    )
    unit = "By" if name.endswith("_bytes") else "{message}"
    create(
        f"downrange.{kind}.{name}",
        [callback],
        unit=unit,
        description=f"The field {name} of the {kind}'s stats().",
    )


def _stats_of(running: Any) -> Any:
    """Return the stats of a client or consumer.

    None if it was closed, or forked, meanwhile; or of a pull consumer that is no member of a group.
    """
    try:
        return running.stats() if running.state == "running" else None
    except RocketMQError:
        return None
