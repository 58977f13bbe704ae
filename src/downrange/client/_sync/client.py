# Generated from client/_async/client.py by scripts/generate_sync.py; do not edit.
"""`Client`: connections, routes and timers, shared by producers and consumers.

    with Client("127.0.0.1:9876") as client:
        producer = Producer(client, group="shop")

A producer that is given an address makes a client of its own. Nothing starts before `start` or
`with`; nothing is left running after `close`.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Self, TypeVar

from downrange.checks import check_wait
from downrange.client.client_base import CLOSE_TIMEOUT, ClientBase, addresses_of
from downrange.client.drivers.dialer import Dialer
from downrange.client.drivers.threads import ThreadDriver
from downrange.client.flows.producing.producer_core import producers_of
from downrange.client.stats import ClientStats, client_stats
from downrange.errors import ClientClosed, ForkedClient, NoNameServer, NotStarted, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType

    from downrange.client.client_base import Servers
    from downrange.client.drivers.workers import ThreadWorkers
    from downrange.client.flows.effects import Flow, Signal
    from downrange.client.flows.producing.gathered_send import GatheredSend
    from downrange.client.flows.producing.plain_send import PlainSend
    from downrange.client.flows.routing.queue_picker import RoundRobin
    from downrange.model import SendReceipt

_log = logging.getLogger("downrange.client")
ResultT = TypeVar("ResultT")


class Client(ClientBase):
    """Connections, routes, broker health and timers, shared by producers and consumers.

    Args:
        name_servers: "host:port", several separated by ";", or a list. Without any, they are
            fetched from `options.discovery_url`.
        options: Timeouts, intervals and limits.
        credentials: Keys to sign requests with.
        tls: TLS settings; plain text without.
        proxy: A proxy for all connections.
        hooks: Functions called around every request.

    Raises:
        OptionError: An address is not host:port, or a file of `tls` cannot be used.

    Example:
        ```python
        with Client("127.0.0.1:9876") as client:
            with Producer(client, group="shop") as producer:
                producer.send(Message("orders", b"1"))
        ```
    """

    _driver: ThreadDriver | None = None

    # ---- life cycle --------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the client; does nothing while it is running.

        Raises:
            ConnectFailed: No name server can be reached, unless `connect_on_start` is off.
            ClientClosed: The client was closed, perhaps meanwhile.
        """
        if self._state == "closed":
            raise ClientClosed("the client")
        if self._state == "running":
            self._check_fork()
            return self
        core = self._make_core()
        driver = ThreadDriver(core, Dialer(self._tls, self._proxy, self._options.connect_timeout))
        driver.start()
        try:
            driver.run(self._connect(core))
            if self.state == "closed":
                raise ClientClosed("the client")
        except BaseException:
            driver.close()
            raise
        self._core, self._driver, self._state = core, driver, "running"
        for flow in self._background(core):
            driver.spawn(flow)
        return self

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close open producers, then all connections and timers; may be called again.

        Args:
            timeout: How long the producers may take to send what they have accepted.
        """
        check_wait("timeout", timeout)
        driver, core = self._driver, self._core
        was_running, self._state = self._state == "running", "closed"
        if was_running and driver is not None and core is not None:
            if not driver.is_forked:
                deadline = core.clock.now() + timeout
                for producer in producers_of(core).values():
                    try:
                        leave = producer.exit(deadline)
                        driver.run_last(leave)
                    except RocketMQError as error:
                        _log.warning("while closing: %s", error)
            driver.close()

    def __enter__(self) -> Self:
        """Start the client."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def __del__(self) -> None:
        driver = self._driver
        if self._state == "running" and driver is not None:
            is_forked, text = driver.is_forked, f"{self!r} was not closed"
            self._state = "closed"
            driver.abandon()
            if not is_forked:  # last: where warnings are errors, nothing after this line runs
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    # ---- state -------------------------------------------------------------------------------

    def stats(self) -> ClientStats:
        """Return a snapshot: connections, timers, routes, counters of the producers."""
        driver, core = self._running_driver(), self.core
        self._check_fork()
        connections, late = driver.connections(), driver.late_count()
        return driver.step(lambda: client_stats(core, connections, late))

    def set_name_servers(self, name_servers: Servers) -> None:
        """Replace the name servers of a running client.

        Raises:
            OptionError: An address is not host:port.
            NoNameServer: The list is empty.
        """
        addresses = addresses_of(name_servers)
        if not addresses:
            raise NoNameServer("no address is left; give at least one")
        self._addresses = addresses
        core = self.core
        self._running_driver().step(lambda: core.name_servers.replace(addresses))

    # ---- for producers, consumers and connectors ---------------------------------------------

    def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow in this thread."""
        return self._running_driver().run(flow)

    def run_send(self, send: PlainSend | GatheredSend) -> SendReceipt:
        """Run a send that usually needs no flow in this thread."""
        return self._running_driver().run_send(send)

    def run_last(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow that begins after all submitted flows have begun."""
        return self._running_driver().run_last(flow)

    @property
    def backlog(self) -> int:
        """How many submitted flows have not started yet, at most."""
        return self._running_driver().backlog

    def submit(self, flow: Flow[ResultT], admitted: Signal | None = None) -> Future[ResultT]:
        """Run a flow in the background; return the future of its result.

        With `admitted`, a signal that the flow fires, it returns not before that.
        """
        return self._running_driver().submit(flow, None, admitted)

    def submit_send(self, send: PlainSend) -> Future[SendReceipt]:
        """Run a plain send in the background; return the future of its receipt."""
        return self._running_driver().submit_send(send)

    def spawn(self, flow: Flow[None]) -> None:
        """Run a flow in the background until it ends or the client is closed."""
        self._running_driver().spawn(flow)

    def start_workers(self, make: Callable[[], Flow[None]], count: int, name: str) -> ThreadWorkers:
        """Run flows in threads of their own, where their functions of the user run, too."""
        return self._running_driver().start_workers(make, count, name)

    def step(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a short function of the core as one step, while no flow takes one."""
        return self._running_driver().step(function)

    @property
    def round_robin(self) -> RoundRobin:
        """The round robin of this thread."""
        driver = self._driver
        if driver is None:
            raise NotStarted("the client")
        return driver.round_robin

    def _running_driver(self) -> ThreadDriver:
        driver = self._driver
        if self._state != "running" or driver is None:
            raise self._not_running()
        return driver

    def _check_fork(self) -> None:
        if self._driver is not None and self._driver.is_forked:
            raise ForkedClient("the client")
