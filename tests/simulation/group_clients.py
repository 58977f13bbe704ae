"""Real clients in a simulated world: its clock, its network, and a name server that has routes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from downrange.client._async.client import AsyncClient
from downrange.client.drivers.aio import AioDriver
from downrange.client.flows.client_core import ClientCore
from downrange.client.flows.hooks import Hooks
from downrange.errors import ConnectFailed
from downrange.options import ClientOptions
from downrange.wire.bodies import BrokerQueues, BrokerReplicas, RouteBody
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.ids import UniqueIdMaker
from downrange.wire.link import Link, RequestArrived
from tests.simulation.machine import IDENTITY
from tests.simulation.network import Lost

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from downrange.client.drivers.dialer import Dialer
    from downrange.client.flows.notices import Notice
    from tests.simulation.clock import Threads, VirtualLoop
    from tests.simulation.machine import Machine

NAME_SERVER = "10.0.0.1:9876"


class NameServer:
    """Answers with the routes of the broker's topics; it keeps them while the broker is down."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._queues: dict[str, int] = {}

    def answer(self, request: Command) -> Command:
        """Return the reply to a request."""
        state = self._machine.running_state
        if state is not None:
            self._queues |= {each.topic_name: each.read_queue_nums for each in state.topics}
        assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC, request.code
        count = self._queues.get(request.fields["topic"])
        if count is None:
            return Command(int(ResponseCode.TOPIC_NOT_EXIST), remark="no route")
        name, address = IDENTITY.name, IDENTITY.address
        route = RouteBody(
            queue_datas=[BrokerQueues(name, count, count, perm=6)],
            broker_datas=[BrokerReplicas(name, {0: address}, cluster=IDENTITY.cluster)],
        )
        return Command(0, body=route.encode())


class _NameServerEnd(asyncio.Transport):
    """A client's connection to the name server."""

    def __init__(
        self, loop: VirtualLoop, server: NameServer, protocol: asyncio.Protocol, lag: float
    ) -> None:
        super().__init__()
        self._loop = loop
        self._server = server
        self._protocol = protocol
        self._lag = lag
        self._link: Link[None] = Link()
        self._is_closed = False

    def write(self, data: Any) -> None:
        for event in self._link.receive(bytes(data)):
            assert isinstance(event, RequestArrived)
            reply = self._link.reply(event.command, self._server.answer(event.command))
            self._loop.call_later(self._lag, self._arrive, reply)

    def _arrive(self, data: bytes) -> None:
        if not self._is_closed:
            self._protocol.data_received(data)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closed


class SimulatedDialer:
    """Opens connections to the broker and the name server of the world."""

    timeout = 3.0

    def __init__(self, machine: Machine, server: NameServer, random: Random) -> None:
        self._machine = machine
        self._server = server
        self._random = random

    async def open(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Callable[[], asyncio.Protocol],
        address: str,
    ) -> None:
        """Connect a protocol."""
        await asyncio.sleep(self._random.uniform(0.0005, 0.005))
        made = protocol()
        if address == NAME_SERVER:
            lag = self._random.uniform(0.0005, 0.003)
            end = _NameServerEnd(cast("VirtualLoop", loop), self._server, made, lag)
            made.connection_made(end)
            return
        try:
            self._machine.network.connect_protocol(made)
        except Lost as error:
            raise ConnectFailed(address, str(error)) from None


class _Clock:
    def __init__(self, loop: VirtualLoop) -> None:
        self.now = loop.time
        self.wall_ms = loop.wall_clock_ms


class _Randomness:
    def __init__(self, random: Random) -> None:
        self._random = random

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def uuid(self) -> str:
        return f"{self._random.getrandbits(128):032x}"


class SimulatedClient(AsyncClient):
    """A client whose sockets, threads and clock are those of the world.

    Args:
        loop: The clock.
        random: The source of random numbers.
        dialer: Opens connections.
        threads: Runs functions that may block.
        name: A part of its client id.
        observe: Called with each notice.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        dialer: SimulatedDialer,
        threads: Threads,
        *,
        name: str,
        observe: Callable[[Notice], None],
    ) -> None:
        super().__init__(NAME_SERVER, options=ClientOptions())
        self._loop = loop
        self._random = random
        self._dialer = dialer
        self._threads = threads
        self._name = name
        self._observe = observe

    async def start(self) -> SimulatedClient:
        """Start the client."""
        if self._state == "running":
            return self
        core = self._make_core()
        driver = AioDriver(core, cast("Dialer", self._dialer), pool=cast("Any", self._threads))
        await driver.start()
        self._core, self._driver, self._state = core, driver, "running"
        for flow in self._background(core):
            driver.spawn(flow)
        return self

    def _make_core(self) -> ClientCore:
        core = ClientCore(
            self._options,
            client_id=f"10.0.0.9@{self._name}",
            name_servers=[NAME_SERVER],
            credentials=None,
            hooks=Hooks(),
            clock=_Clock(self._loop),
            randomness=_Randomness(self._random),
            unique_ids=UniqueIdMaker(b"\x0a\x00\x00\x09", 1, 1, lambda _: (0, 1 << 60)),
        )
        core.observe = self._observe
        return core

    @property
    def flow_count(self) -> int:
        """How many flows run in the background."""
        assert self._driver is not None
        return len(self._driver._background)

    def __del__(self) -> None:
        """Do nothing: the clients of a run that failed are not closed."""

    async def kill(self) -> None:
        """End the process: connections end, and nothing is done any more."""
        assert self._driver is not None
        self._state = "closed"
        await self._driver.close()
