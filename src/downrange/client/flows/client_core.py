"""The state that producers and consumers of one client share, and the requests they make.

Connections are the driver's. Everything else that is shared is here: routes, name servers, broker
health, ids, members, timers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from downrange.client.flows.effects import Call, Clock, Flow, Pause, Randomness
from downrange.client.flows.hooks import run_observers
from downrange.client.flows.routing.health import BrokerHealth, HealthSnapshot, tolerance_of
from downrange.client.flows.routing.name_servers import NameServers
from downrange.client.flows.routing.routes import RouteTable
from downrange.errors import (
    GroupTaken,
    NoNameServer,
    RocketMQError,
    ServerError,
    TransportError,
    no_name_server_answered,
    server_error,
)
from downrange.wire.codes import ResponseCode
from downrange.wire.command import Command
from downrange.wire.signing import sign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.client.flows.hooks import Hooks, Report
    from downrange.options import ClientOptions, Credentials, FaultTolerance
    from downrange.options.clients import FaultStyle
    from downrange.wire.bodies import ConsumerMember
    from downrange.wire.ids import UniqueIdMaker


class ConsumerState(Protocol):
    """What the client needs to know of a consumer."""

    def membership(self) -> ConsumerMember:
        """Return what a heartbeat says of it."""
        ...


class TimerFacts(msgspec.Struct):
    """What a timer has done so far.

    Attributes:
        interval: Seconds between two runs.
        runs: How often it ran.
        failures: How many servers did not answer it, all runs together.
        last_run_ms: When it ran last, milliseconds since 1970.
    """

    interval: float
    runs: int = 0
    failures: int = 0
    last_run_ms: int | None = None


class ClientCore:
    """What the members of one client share.

    Args:
        options: How it behaves.
        client_id: How brokers know it.
        name_servers: Their addresses; empty when they are discovered.
        credentials: What requests are signed with.
        hooks: Functions of the user's around every request.
        clock: The time.
        randomness: Randomness.
        unique_ids: Makes ids of messages.

    Attributes:
        report: Told of the error of a hook around requests: where, and what.
        on_health: Told when a broker begins to be avoided, and when it is used again.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        client_id: str,
        name_servers: Iterable[str],
        credentials: Credentials | None,
        hooks: Hooks,
        clock: Clock,
        randomness: Randomness,
        unique_ids: UniqueIdMaker,
    ) -> None:
        self.options = options
        self.client_id = client_id
        self.credentials = credentials
        self.hooks = hooks
        self.clock = clock
        self.randomness = randomness
        self.unique_ids = unique_ids
        self.report: Report = _ignore
        self.on_health: Callable[[HealthSnapshot], None] | None = None
        self.name_servers = NameServers(name_servers, randomness)
        self.routes = RouteTable()
        #: Group -> its `ProducerCore`; `producers_of` gives them with their type.
        self.producers: dict[str, object] = {}
        self.consumers: dict[str, ConsumerState] = {}
        #: Addresses of brokers whose last heartbeat named all of today's groups.
        self.registered: set[str] = set()
        self.timers: dict[str, TimerFacts] = {}
        #: Request code -> what answers it when a broker sends it.
        self.handlers: dict[int, Callable[[str, Command], Flow[Command | None]]] = {}
        self._health: dict[FaultTolerance, BrokerHealth] = {}
        self._common_fields = _common_fields(options)
        #: Whether requests go out as they are: no signature, no common fields, no hooks.
        self.is_plain = (
            not self._common_fields
            and credentials is None
            and not hooks.before_call
            and not hooks.after_call
        )

    # ---- members -----------------------------------------------------------------------------

    @property
    def has_members(self) -> bool:
        """Whether anyone is there that brokers should know of."""
        return bool(self.producers or self.consumers)

    def add_producer(self, group: str, producer: object) -> None:
        """Take a producer in.

        Raises:
            GroupTaken: There is one of that group.
        """
        if group in self.producers:
            raise GroupTaken("producer", group)
        self.producers[group] = producer
        self.registered.clear()

    def remove_producer(self, group: str) -> None:
        """Let a producer go; harmless when it has gone."""
        self.producers.pop(group, None)

    def add_consumer(self, group: str, consumer: ConsumerState) -> None:
        """Take a consumer in.

        Raises:
            GroupTaken: There is one of that group.
        """
        if group in self.consumers:
            raise GroupTaken("consumer", group)
        self.consumers[group] = consumer
        self.registered.clear()

    def remove_consumer(self, group: str) -> None:
        """Let a consumer go; harmless when it has gone."""
        self.consumers.pop(group, None)

    def health_for(self, option: FaultTolerance | FaultStyle) -> BrokerHealth:
        """Return what is known of the brokers' health; producers of equal settings share it."""
        tolerance = tolerance_of(option)
        if tolerance not in self._health:
            self._health[tolerance] = BrokerHealth(tolerance, self.randomness, self.on_health)
        return self._health[tolerance]

    @property
    def healths(self) -> list[BrokerHealth]:
        """All that is known of the brokers' health."""
        return list(self._health.values())

    # ---- requests ------------------------------------------------------------------------------

    def call(
        self, address: str, command: Command, deadline: float, *, is_oneway: bool = False
    ) -> Flow[Command]:
        """Send a request and return the reply, whatever its code; hooks and signature included.

        Raises:
            RocketMQError: No reply came; see `Call`.
        """
        if self.is_plain:
            reply: Command = yield Call(address, command, deadline, is_oneway)
            return reply
        command.fields.update(self._common_fields)
        yield from run_observers(self.hooks.before_call, (address, command), self.report)
        credentials = self.credentials
        if credentials is not None:
            sign(
                command,
                credentials.access_key,
                credentials.secret_key,
                credentials.security_token,
            )
        reply = yield Call(address, command, deadline, is_oneway)
        yield from run_observers(self.hooks.after_call, (address, command, reply), self.report)
        return reply

    def ask(
        self, address: str, command: Command, deadline: float, topic: str | None = None
    ) -> Flow[Command]:
        """Send a request and return the reply of a server that agreed.

        Raises:
            ServerError: It refused.
            RocketMQError: No reply came.
        """
        reply = yield from self.call(address, command, deadline)
        if reply.code != ResponseCode.SUCCESS:
            raise server_error(reply.code, reply.remark, address, topic)
        return reply

    def call_name_server(self, command: Command, deadline: float) -> Flow[Command]:
        """Send a request to one name server after the other; return the first reply.

        Raises:
            NoNameServer: No address is known.
            TransportError: None of them answered; names all.
        """
        addresses = self.name_servers.addresses
        if not addresses:
            raise NoNameServer(
                "no name server address is known; give one such as '127.0.0.1:9876', or a "
                "discovery_url in the client's options"
            )
        failures: list[TransportError] = []
        for index, address in enumerate(addresses):
            now = self.clock.now()
            # An equal share of the time left for each, so that the last one has time, too.
            share = (deadline - now) / (len(addresses) - index)
            attempt = min(deadline, now + max(share, 0.0))
            try:
                return (yield from self.call(address, command, attempt))
            except TransportError as error:
                failures.append(error)
                self.name_servers.pass_over(address)
        raise no_name_server_answered(failures) from failures[-1]

    def ask_name_server(self, command: Command, deadline: float) -> Flow[Command]:
        """Send a request to one name server after the other; return the first reply, a success.

        Raises:
            ServerError: The name server refused.
            RocketMQError: No reply came.
        """
        reply = yield from self.call_name_server(command, deadline)
        if reply.code != ResponseCode.SUCCESS:
            raise self.refused(reply, self.name_servers.addresses[0])
        return reply

    def refused(self, reply: Command, address: str, topic: str | None = None) -> ServerError:
        """Return the error that a refusing reply stands for."""
        return server_error(reply.code, reply.remark, address, topic)

    def answer(self, address: str, command: Command) -> Flow[Command | None]:
        """Answer a request that a broker sent to us; None when there is nothing to say."""
        handler = self.handlers.get(command.code)
        if handler is not None:
            return (yield from handler(address, command))
        remark = f" request type {command.code} not supported"
        return Command(int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), remark=remark)

    def on_disconnect(self, address: str) -> None:
        """Note that the connection for requests from this server is gone."""
        self.registered.discard(address)

    # ---- timers ----------------------------------------------------------------------------------

    def timer(
        self, name: str, interval: float, first: float, action: Callable[[], Flow[int]]
    ) -> Flow[None]:
        """Run an action again and again, keep count of it, and survive its errors."""
        facts = self.timers[name] = TimerFacts(interval)
        yield Pause(first)
        while True:
            try:
                facts.failures += yield from action()
            except RocketMQError:
                facts.failures += 1
            facts.runs += 1
            facts.last_run_ms = self.clock.wall_ms()
            yield Pause(interval)


def _ignore(where: str, error: Exception) -> None:
    """Nobody wants to know."""


def _common_fields(options: ClientOptions) -> dict[str, str]:
    """Return what every request of the client carries besides its header."""
    fields: dict[str, str] = {}
    if options.namespace_v2 is not None:
        fields |= {"nsd": "true", "ns": options.namespace_v2}
    if options.is_stream_request:
        fields["ReqT"] = "0"
    return fields
