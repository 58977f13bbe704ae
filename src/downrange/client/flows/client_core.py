"""The state that the producers and consumers of one client share, and the requests they make.

Connections belong to the driver. Everything else that is shared is here: routes, name servers,
broker health, ids, members, timers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from downrange.client.flows.effects import (
    Call,
    Clock,
    Flow,
    Pause,
    Randomness,
    Signal,
    UserCall,
)
from downrange.client.flows.hooks import run_observers
from downrange.client.flows.notices import NOTICES_MAX, RouteChanged, UserCodeFailed
from downrange.client.flows.routing.health import BrokerHealth, tolerance_of
from downrange.client.flows.routing.name_servers import NameServers
from downrange.client.flows.routing.routes import RouteTable
from downrange.errors import (
    GroupTaken,
    NoNameServer,
    NotSupported,
    RocketMQError,
    ServerError,
    TransportError,
    no_name_server_answered,
    not_a_name_server,
    server_error,
)
from downrange.wire.codes import ResponseCode
from downrange.wire.command import Command
from downrange.wire.signatures import sign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.notices import Notice
    from downrange.client.flows.routing.routes import Route
    from downrange.options import ClientOptions, Credentials, FaultTolerance
    from downrange.options.clients import FaultStyle
    from downrange.wire.bodies import ConsumerMember
    from downrange.wire.ids import UniqueIdMaker


class RegisteredConsumer(Protocol):
    """A consumer that heartbeats register at the brokers."""

    def membership(self) -> ConsumerMember:
        """Return its entry in the heartbeat."""
        ...


class TimerFacts(msgspec.Struct):
    """What a timer has done so far.

    Attributes:
        interval: Seconds between two runs.
        runs: How often it ran.
        failures: How many requests failed, in all runs together.
        last_run_ms: When it ran last, in milliseconds since 1970.
    """

    interval: float
    runs: int = 0
    failures: int = 0
    last_run_ms: int | None = None


class ClientCore:
    """The state that the producers and consumers of one client share.

    Args:
        options: The settings of the client.
        client_id: The id that brokers see.
        name_servers: Addresses of name servers; empty when they are discovered.
        credentials: Keys to sign requests with.
        hooks: User functions to call around every request.
        clock: The time.
        randomness: The source of random numbers.
        unique_ids: Makes the unique ids of messages.

    Attributes:
        user_errors: Exceptions of the user's hooks, selectors, checks and callbacks so far.
        notices: What happened and was not published yet.
        observe: Called with each notice by `publish`, outside of the atomic step.
        read_stacks: Returns what all threads of the program do now, for tools that ask.
        on_lost: Called with the address when a connection to a server has ended.
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
        self.user_errors = 0
        self.notices: deque[Notice] = deque(maxlen=NOTICES_MAX)
        self.observe: Callable[[Notice], None] | None = None
        self.read_stacks: Callable[[], str] = str
        self.on_lost: list[Callable[[str], None]] = []
        self.name_servers = NameServers(name_servers, randomness)
        self.routes = RouteTable()
        self.routes.on_change.append(self._note_route)
        #: Group -> its `ProducerCore`; `producers_of` gives them with their type.
        self.producers: dict[str, object] = {}
        self.consumers: dict[str, RegisteredConsumer] = {}
        #: Addresses of brokers whose last heartbeat named all of today's groups.
        self.registered: set[str] = set()
        #: Broker, group and topic -> fires when the first commit of an offset has its answer.
        self.first_commits: dict[tuple[str, str, str], Signal] = {}
        self.timers: dict[str, TimerFacts] = {}
        #: Request code -> the flow that answers it when a broker sends it.
        self.handlers: dict[int, Callable[[str, Command], Flow[Command | None]]] = {}
        self._health: dict[FaultTolerance, BrokerHealth] = {}
        self._common_fields = _common_fields(options)
        #: Whether requests are sent as they are: no signature, no common fields, no hooks.
        self.is_plain = (
            not self._common_fields
            and credentials is None
            and not hooks.before_call
            and not hooks.after_call
        )

    # ---- members -----------------------------------------------------------------------------

    @property
    def has_members(self) -> bool:
        """Whether there is a group for heartbeats to register."""
        return bool(self.producers or self.consumers)

    def add_producer(self, group: str, producer: object) -> None:
        """Add a producer.

        Raises:
            GroupTaken: The client has a producer of this group.
        """
        if group in self.producers:
            raise GroupTaken("producer", group)
        self.producers[group] = producer
        self.registered.clear()

    def remove_producer(self, group: str) -> None:
        """Remove a producer, if it is there."""
        self.producers.pop(group, None)

    def add_consumer(self, group: str, consumer: RegisteredConsumer) -> None:
        """Add a consumer.

        Raises:
            GroupTaken: The client has a consumer of this group.
        """
        if group in self.consumers:
            raise GroupTaken("consumer", group)
        self.consumers[group] = consumer
        self.registered.clear()

    def remove_consumer(self, group: str) -> None:
        """Remove a consumer, if it is there."""
        self.consumers.pop(group, None)

    def health_for(self, option: FaultTolerance | FaultStyle) -> BrokerHealth:
        """Return the health of the brokers; producers with equal settings share it."""
        tolerance = tolerance_of(option)
        if tolerance not in self._health:
            self._health[tolerance] = BrokerHealth(tolerance, self.randomness, self.notices.append)
        return self._health[tolerance]

    @property
    def healths(self) -> list[BrokerHealth]:
        """The health of the brokers, one entry per fault tolerance in use."""
        return list(self._health.values())

    # ---- notices -----------------------------------------------------------------------------

    def publish(self) -> Flow[None]:
        """Hand all notices to the observer; without one, drop them."""
        observe = self.observe
        if observe is None:
            self.notices.clear()
            return
        while self.notices:
            yield UserCall(observe, (self.notices.popleft(),))

    def report(self, where: str, error: BaseException) -> Flow[None]:
        """Count an exception of the user's code, and publish it."""
        self.user_errors += 1
        self.notices.append(UserCodeFailed(where, error))
        yield from self.publish()

    def _note_route(self, old: Route | None, new: Route) -> None:
        self.notices.append(RouteChanged(old, new))

    # ---- requests ------------------------------------------------------------------------------

    def call(
        self, address: str, command: Command, deadline: float, *, is_oneway: bool = False
    ) -> Flow[Command]:
        """Sign a request, send it with hooks around it, and return the reply with any code.

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
        """Send a request and return the reply, a success.

        Raises:
            ServerError: The server refused.
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
            NotSupported: One of them is not a name server, and no other one answered.
            TransportError: None of them answered; names all.
        """
        addresses = self.name_servers.addresses
        if not addresses:
            raise NoNameServer(
                "no name server address is known; give one such as '127.0.0.1:9876', or a "
                "discovery_url in the client's options"
            )
        failures: list[TransportError] = []
        stranger: NotSupported | None = None
        for index, address in enumerate(addresses):
            now = self.clock.now()
            # An equal share of the time left for each, so that the last one has time, too.
            share = (deadline - now) / (len(addresses) - index)
            attempt = min(deadline, now + max(share, 0.0))
            try:
                reply = yield from self.call(address, command, attempt)
                if reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return reply
                stranger = not_a_name_server(reply.remark, address)
            except TransportError as error:
                failures.append(error)
            self.name_servers.pass_over(address)
        if stranger is not None:
            raise stranger
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
        """Return the error for a reply with an error code."""
        return server_error(reply.code, reply.remark, address, topic)

    def answer(self, address: str, command: Command) -> Flow[Command | None]:
        """Return the answer to a request from a broker; None when it needs none."""
        handler = self.handlers.get(command.code)
        if handler is not None:
            return (yield from handler(address, command))
        remark = f" request type {command.code} not supported"
        return Command(int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), remark=remark)

    def on_disconnect(self, address: str) -> None:
        """Note that the connection on which a broker sends its requests has ended."""
        self.registered.discard(address)
        for function in list(self.on_lost):
            function(address)

    # ---- timers ----------------------------------------------------------------------------------

    def timer(
        self, name: str, interval: float, first: float, action: Callable[[], Flow[int]]
    ) -> Flow[None]:
        """Run an action again and again; count its runs and failures, and go on after errors."""
        facts = self.timers[name] = TimerFacts(interval)
        yield Pause(first)
        while True:
            try:
                facts.failures += yield from action()
            except RocketMQError:
                facts.failures += 1
            facts.runs += 1
            facts.last_run_ms = self.clock.wall_ms()
            yield from self.publish()
            yield Pause(interval)


def _common_fields(options: ClientOptions) -> dict[str, str]:
    """Return the fields that every request of the client carries besides its header."""
    fields: dict[str, str] = {}
    if options.namespace_v2 is not None:
        fields |= {"nsd": "true", "ns": options.namespace_v2}
    if options.is_stream_request:
        fields["ReqT"] = "0"
    # Java adds these two after signing, so servers with access control refuse its requests.
    if options.zone is not None:
        fields["__ZONE_NAME"] = options.zone
    if options.zone_mode:
        fields["__ZONE_MODE"] = "true"
    return fields
