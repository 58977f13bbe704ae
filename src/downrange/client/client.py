"""Clients: what producers and consumers share, and its twin for asyncio.

    with Client("127.0.0.1:9876") as client:
        producer = Producer(client, group="shop")

A producer that is given an address makes a client of its own. Nothing starts before `start` or
`with`; nothing is left running after `close`.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import warnings
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypeVar

import msgspec

from downrange.addresses import split_address
from downrange.client.drivers.address_server import fetch_name_servers
from downrange.client.drivers.aio import AioDriver
from downrange.client.drivers.dialer import Dialer
from downrange.client.drivers.fork_guard import Birthplace
from downrange.client.drivers.identity import (
    SystemClock,
    SystemRandomness,
    client_id,
    client_ip,
    unique_ids,
)
from downrange.client.drivers.threads import ThreadDriver
from downrange.client.flows.background import background_flows
from downrange.client.flows.client_core import ClientCore, TimerFacts
from downrange.client.flows.effects import Flow, UserCall
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.names import namespace_of_endpoint
from downrange.client.flows.producing.producer_core import ProducerCore, producers_of
from downrange.client.flows.routing.health import HealthSnapshot
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import ClientClosed, ForkedClient, NoNameServer, NotStarted, RocketMQError
from downrange.options import TLS, ClientOptions, Credentials, Proxy
from downrange.wire.fields import request_command
from downrange.wire.headers import RouteRequest
from downrange.wire.system_names import DEFAULT_TOPIC

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from concurrent.futures import Future
    from types import TracebackType

    from downrange.client.flows.routing.routes import Route

_log = logging.getLogger("downrange.client")
ResultT = TypeVar("ResultT")
State: TypeAlias = Literal["new", "running", "closed"]
Servers: TypeAlias = "str | Iterable[str]"
_counter: Final = itertools.count(1)
CLOSE_TIMEOUT: Final = 5.0


class ProducerStats(msgspec.Struct, frozen=True):
    """What a producer has done, and what it has under way.

    Attributes:
        sent: Messages that a broker took.
        failed: Messages that were given up.
        oneway: Messages that were handed over without an answer.
        retried: Attempts beyond the first.
        late_replies: Replies to requests that nobody waited for any more.
        checked: Questions about transactions that were answered.
        checks_dropped: Questions about transactions that were not; the broker asks again.
        in_flight: Messages that back-pressure counts.
        in_flight_bytes: Bytes of their bodies.
        waiting: Sends that wait for back-pressure.
        gathered_bytes: Bytes that wait to be sent in a batch.
        traces_waiting: Trace records that wait to be sent.
        traces_dropped: Trace records that were dropped.
    """

    sent: int
    failed: int
    oneway: int
    retried: int
    late_replies: int
    checked: int
    checks_dropped: int
    in_flight: int
    in_flight_bytes: int
    waiting: int
    gathered_bytes: int
    traces_waiting: int
    traces_dropped: int


class ClientStats(msgspec.Struct, frozen=True):
    """What a client is doing.

    Attributes:
        client_id: How brokers know it.
        name_servers: Their addresses, the one in use first.
        connections: Address -> how many connections stand.
        late_replies: Replies that nobody waited for any more.
        timers: Name -> what the timer has done.
        topics: Topics whose routes are kept.
        brokers: What is known of the health of brokers, where fault tolerance is on.
        producers: Group -> what the producer has done.
    """

    client_id: str
    name_servers: tuple[str, ...]
    connections: dict[str, int]
    late_replies: int
    timers: dict[str, TimerFacts]
    topics: tuple[str, ...]
    brokers: tuple[HealthSnapshot, ...]
    producers: dict[str, ProducerStats]


def addresses_of(servers: Servers | None) -> list[str]:
    """Return the addresses in "host:port;host:port", or in a list of such.

    Raises:
        OptionError: One is none.
    """
    texts = [servers] if isinstance(servers, str) else list(servers or ())
    addresses = [
        # Old settings write a scheme before the address, and clouds a namespace as a host.
        part.strip().rpartition("/")[2]
        for text in texts
        for part in text.replace(",", ";").split(";")
        if part.strip()
    ]
    for address in addresses:
        split_address(address)
    return addresses


def cannot_pickle(what: object) -> TypeError:
    """Return the error for an attempt to pickle what holds connections."""
    return TypeError(
        f"{what!r} cannot be pickled: it holds connections; pickle its options, and make a new one "
        "where they arrive"
    )


class _ClientBase:
    """What both clients have in common: settings, the core, and what is known of it."""

    def __init__(
        self,
        name_servers: Servers | None = None,
        *,
        options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._state: State = "new"
        self._addresses = addresses_of(name_servers)
        self._options = _with_namespace_of(options or ClientOptions(), self._addresses)
        self._credentials = credentials
        self._tls = tls
        self._proxy = proxy
        self._hooks = hooks or Hooks()
        self._core: ClientCore | None = None

    @classmethod
    def from_env(cls, **settings: Any) -> Self:
        """Make a client with the name servers of the environment variable NAMESRV_ADDR.

        Raises:
            NoNameServer: It is not set.
        """
        servers = os.environ.get("NAMESRV_ADDR")
        if not servers:
            raise NoNameServer("the environment variable NAMESRV_ADDR is not set")
        return cls(servers, **settings)

    @property
    def state(self) -> State:
        """Whether it is new, running or closed."""
        return self._state

    @property
    def options(self) -> ClientOptions:
        """Its settings."""
        return self._options

    @property
    def core(self) -> ClientCore:
        """The state behind it; for producers, consumers and tests.

        Raises:
            NotStarted, ClientClosed: It is not running.
        """
        if self._core is None:
            raise NotStarted("the client")
        return self._core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {';'.join(self._addresses) or 'discovered'} {self._state}>"

    def __getstate__(self) -> object:
        raise cannot_pickle(self)

    # ---- inside ------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if self._state == "closed":
            raise ClientClosed("the client")
        if self._state == "new":
            raise NotStarted("the client")

    def _make_core(self) -> ClientCore:
        options = self._options
        ip = options.client_ip or client_ip()
        core = ClientCore(
            options,
            client_id=client_id(options, next(_counter)),
            name_servers=self._addresses,
            credentials=self._credentials,
            hooks=self._hooks,
            clock=SystemClock(),
            randomness=SystemRandomness(),
            unique_ids=unique_ids(ip),
        )
        core.routes.on_change.append(_log_route)
        core.report = report_hook
        core.on_health = _log_health
        return core

    def _background(self, core: ClientCore) -> list[Flow[None]]:
        flows = background_flows(core)
        if self._is_discovering:
            interval = self._options.discovery_interval
            flows.append(core.timer("discovery", interval, interval, lambda: self._discover(core)))
        return flows

    @property
    def _is_discovering(self) -> bool:
        return not self._addresses

    def _discover(self, core: ClientCore) -> Flow[int]:
        """Fetch the addresses of the name servers."""
        options = self._options
        if options.discovery_url is None:
            raise NoNameServer(
                "no name server address was given: pass one such as '127.0.0.1:9876', or set "
                "discovery_url in ClientOptions"
            )
        addresses: list[str] = yield UserCall(
            fetch_name_servers,
            (options.discovery_url, options.unit, options.call_timeout),
            may_block=True,
        )
        if core.name_servers.replace(addresses):
            _log.info("name servers are now %s", ";".join(addresses))
        return 0

    def _begin(self, core: ClientCore) -> Flow[None]:
        """Find the name servers, and see whether one is there."""
        if self._is_discovering:
            yield from self._discover(core)
        if self._options.check_on_start:
            from downrange.client.flows.admin.doctor import check_network, failed_findings

            failed_findings((yield from check_network(core)))
        elif self._options.connect_on_start:
            # A name server answers for every topic, if only that it has no route.
            command = request_command(RouteRequest(DEFAULT_TOPIC, accept_standard_json_only=True))
            deadline = core.clock.now() + self._options.call_timeout
            yield from core.call_name_server(command, deadline)

    def _stats(self, connections: dict[str, int], late_replies: int) -> ClientStats:
        core = self.core
        now = core.clock.now()
        return ClientStats(
            client_id=core.client_id,
            name_servers=tuple(core.name_servers.addresses),
            connections=connections,
            late_replies=late_replies,
            timers={name: msgspec.structs.replace(facts) for name, facts in core.timers.items()},
            topics=tuple(core.routes.topics()),
            brokers=tuple(state for health in core.healths for state in health.snapshot(now)),
            producers={group: _producer_stats(one) for group, one in producers_of(core).items()},
        )


def _with_namespace_of(options: ClientOptions, addresses: list[str]) -> ClientOptions:
    """Take the namespace out of an address such as MQ_INST_1_2.mq.example.com:80."""
    if options.namespace is None and addresses:
        namespace = namespace_of_endpoint(addresses[0])
        if namespace is not None:
            return dataclasses.replace(options, namespace=namespace)
    return options


def _producer_stats(producer: ProducerCore) -> ProducerStats:
    counts, permits = producer.counts, producer.permits
    gathering, trace = producer.accumulator, producer.trace
    return ProducerStats(
        sent=counts.sent,
        failed=counts.failed,
        oneway=counts.oneway,
        retried=counts.retried,
        late_replies=counts.late_replies,
        checked=counts.checked,
        checks_dropped=counts.checks_dropped,
        in_flight=permits.in_flight,
        in_flight_bytes=permits.in_flight_bytes,
        waiting=permits.waiting,
        gathered_bytes=0 if gathering is None else gathering.held_bytes,
        traces_waiting=0 if trace is None else len(trace),
        traces_dropped=0 if trace is None else trace.dropped_count,
    )


def _log_health(state: HealthSnapshot) -> None:
    if state.is_available and state.is_reachable:
        _log.info("broker %s is used again", state.broker)
    else:
        _log.warning(
            "broker %s is avoided for %.1f s: slow, or it failed", state.broker, state.avoided_for
        )


def report_hook(where: str, error: Exception) -> None:
    """Log the error of a hook, which changes nothing else."""
    _log.warning("%s failed: %r", where, error)


def _log_route(old: Route | None, new: Route) -> None:
    _log.info(
        "route of %s %s: %d queues to write to on %s%s",
        new.topic,
        "found" if old is None else "changed",
        len(new.writable),
        ", ".join(sorted(new.masters)) or "no broker",
        " (borrowed from the default topic)" if new.is_borrowed else "",
    )


class Client(_ClientBase):
    """What producers and consumers share: connections, routes, broker health, timers.

    Args:
        name_servers: "host:port", several separated by ";", or a list of such. Without any, they
            are fetched from `options.discovery_url`.
        options: How it behaves.
        credentials: What requests are signed with.
        tls: How to speak TLS; plain text without.
        proxy: A proxy that all connections go through.
        hooks: Functions called around every request.

    Raises:
        OptionError: An address is none, or a file of `tls` cannot be used.

    Example:
        ```python
        with Client("127.0.0.1:9876") as client, Producer(client, group="shop") as producer:
            producer.send(Message("orders", b"1"))
        ```
    """

    _driver: ThreadDriver | None = None

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it; nothing happens when it is running.

        Raises:
            ConnectFailed: No name server can be reached, unless `connect_on_start` is off.
            ClientClosed: It was closed.
        """
        if self._state == "running":
            self._check_process()
            return self
        if self._state == "closed":
            raise ClientClosed("the client")
        core = self._make_core()
        driver = ThreadDriver(core, Dialer(self._tls, self._proxy, self._options.connect_timeout))
        driver.start()
        try:
            driver.run(self._begin(core))
        except BaseException:
            driver.close()
            raise
        self._core, self._driver, self._state = core, driver, "running"
        for flow in self._background(core):
            driver.spawn(flow)
        return self

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close it and everything it does; harmless the second time. Producers come first.

        Args:
            timeout: How long producers that are still open may take to finish.
        """
        if self._state == "running" and self._driver is not None and self._core is not None:
            self._state = "closed"
            if not self._driver.is_forked:
                deadline = self._core.clock.now() + timeout
                for producer in producers_of(self._core).values():
                    self._finish(producer.exit(deadline))
            self._driver.close()
        self._state = "closed"

    def _finish(self, flow: Flow[None]) -> None:
        assert self._driver is not None
        try:
            self._driver.run_last(flow)
        except RocketMQError as error:
            _log.warning("while closing: %s", error)

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        if self._state == "running" and self._driver is not None:
            is_forked, text = self._driver.is_forked, f"{self!r} was not closed"
            self._state = "closed"
            self._driver.close()
            if not is_forked:  # last: where warnings are errors, nothing comes after
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    # ---- what it knows -----------------------------------------------------------------------

    def stats(self) -> ClientStats:
        """Return what it is doing: connections, timers, routes, producers."""
        driver = self._running_driver()
        self._check_process()
        connections, late = driver.connections(), driver.late_count()
        return driver.step(lambda: self._stats(connections, late))

    def set_name_servers(self, name_servers: Servers) -> None:
        """Use other name servers from now on.

        Raises:
            OptionError: An address is none.
        """
        addresses = addresses_of(name_servers)
        if not addresses:
            raise NoNameServer("no address is left; give at least one")
        self._addresses = addresses
        core = self.core
        self._running_driver().step(lambda: core.name_servers.replace(addresses))

    # ---- for producers and consumers -----------------------------------------------------------

    def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow of the core in this thread."""
        return self._running_driver().run(flow)

    def run_last(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow of the core after all that was submitted has begun."""
        return self._running_driver().run_last(flow)

    def submit(self, flow: Flow[ResultT]) -> Future[ResultT]:
        """Run a flow of the core in the background; return the future of its result."""
        return self._running_driver().submit(flow)

    def spawn(self, flow: Flow[None]) -> None:
        """Run a flow of the core in the background until it ends or the client is closed."""
        self._running_driver().spawn(flow)

    @property
    def round_robin(self) -> RoundRobin:
        """This thread's place in the round robin."""
        return self._running_driver().round_robin

    def _running_driver(self) -> ThreadDriver:
        driver = self._driver
        if self._state != "running" or driver is None:
            self._check_running()
            raise NotStarted("the client")
        return driver

    def _check_process(self) -> None:
        if self._driver is not None and self._driver.is_forked:
            raise ForkedClient("the client")


class AsyncClient(_ClientBase):
    """What producers and consumers share: connections, routes, broker health, timers.

    Args:
        name_servers: "host:port", several separated by ";", or a list of such. Without any, they
            are fetched from `options.discovery_url`.
        options: How it behaves.
        credentials: What requests are signed with.
        tls: How to speak TLS; plain text without.
        proxy: A proxy that all connections go through.
        hooks: Functions called around every request.

    Raises:
        OptionError: An address is none, or a file of `tls` cannot be used.

    Example:
        ```python
        async with AsyncClient("127.0.0.1:9876") as client:
            async with AsyncProducer(client, group="shop") as producer:
                await producer.send(Message("orders", b"1"))
        ```
    """

    _driver: AioDriver | None = None
    _birthplace: Birthplace
    _round_robin: RoundRobin

    # ---- life --------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start it; nothing happens when it is running.

        Raises:
            ConnectFailed: No name server can be reached, unless `connect_on_start` is off.
            ClientClosed: It was closed.
        """
        if self._state == "running":
            self._check_process()
            return self
        if self._state == "closed":
            raise ClientClosed("the client")
        core = self._make_core()
        options = self._options
        dialer = Dialer(self._tls, self._proxy, options.connect_timeout)
        driver = AioDriver(core, dialer, busy_poll=options.busy_poll)
        try:
            await driver.run(self._begin(core))
        except BaseException:
            await driver.close()
            raise
        self._core, self._driver, self._state = core, driver, "running"
        self._birthplace = Birthplace()
        self._round_robin = RoundRobin()
        for flow in self._background(core):
            driver.spawn(flow)
        return self

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close it and everything it does; harmless the second time. Producers come first.

        Args:
            timeout: How long producers that are still open may take to finish.
        """
        if self._state == "running" and self._driver is not None and self._core is not None:
            self._state = "closed"
            if not self._birthplace.is_left:
                deadline = self._core.clock.now() + timeout
                for producer in producers_of(self._core).values():
                    await self._finish(producer.exit(deadline))
                await self._driver.close()
        self._state = "closed"

    async def _finish(self, flow: Flow[None]) -> None:
        assert self._driver is not None
        try:
            await self._driver.run(flow)
        except RocketMQError as error:
            _log.warning("while closing: %s", error)

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    def __del__(self) -> None:
        if self._state == "running" and not self._birthplace.is_left:
            text = f"{self!r} was not closed"
            self._state = "closed"
            if self._driver is not None:
                self._driver.abandon()
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    # ---- what it knows -----------------------------------------------------------------------

    def stats(self) -> ClientStats:
        """Return what it is doing: connections, timers, routes, producers."""
        driver = self._running_driver()
        connections = dict.fromkeys(driver.addresses(), 1)
        return self._stats(connections, driver.late_count())

    def set_name_servers(self, name_servers: Servers) -> None:
        """Use other name servers from now on.

        Raises:
            OptionError: An address is none.
        """
        addresses = addresses_of(name_servers)
        if not addresses:
            raise NoNameServer("no address is left; give at least one")
        self._addresses = addresses
        self.core.name_servers.replace(addresses)

    # ---- for producers and consumers -----------------------------------------------------------

    def run(self, flow: Flow[ResultT]) -> Coroutine[Any, Any, ResultT]:
        """Run a flow of the core on this event loop."""
        return self._running_driver().run(flow)

    def spawn(self, flow: Flow[None]) -> None:
        """Run a flow of the core in the background until it ends or the client is closed."""
        self._running_driver().spawn(flow)

    @property
    def round_robin(self) -> RoundRobin:
        """This client's place in the round robin; all its tasks share one thread."""
        return self._round_robin

    def _running_driver(self) -> AioDriver:
        driver = self._driver
        if self._state != "running" or driver is None:
            self._check_running()
            raise NotStarted("the client")
        if self._birthplace.is_left:
            raise ForkedClient("the client")
        return driver

    def _check_process(self) -> None:
        if self._birthplace.is_left:
            raise ForkedClient("the client")
