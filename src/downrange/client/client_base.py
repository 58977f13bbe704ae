"""The part of `Client` and `AsyncClient` that never waits: settings, the core, log lines.

One rule: nothing here belongs to a driver, so that both twins can use it.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from downrange.addresses import split_address
from downrange.checks import check_texts, check_type, iterated, wrong_type
from downrange.client.drivers.address_server import fetch_name_servers
from downrange.client.drivers.identity import (
    SystemClock,
    SystemRandomness,
    client_id,
    client_ip,
    thread_stacks,
    unique_ids,
)
from downrange.client.flows.background import background_flows
from downrange.client.flows.client_core import ClientCore
from downrange.client.flows.effects import Flow, UserCall
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.names import namespace_in_use
from downrange.client.flows.validation import check_topic
from downrange.client.notice_log import NoticeLog
from downrange.errors import ClientClosed, NoNameServer, NotStarted
from downrange.options import TLS, ClientOptions, Credentials, Proxy
from downrange.wire.fields import request_command
from downrange.wire.headers import RouteRequest
from downrange.wire.system_names import DEFAULT_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.errors import RocketMQError

_log = logging.getLogger("downrange.client")
State: TypeAlias = Literal["new", "running", "closed"]
Servers: TypeAlias = "str | Iterable[str]"
CLOSE_TIMEOUT: Final = 5.0
_ADDRESSES: Final = "a str of the form host:port, or a list of such"
_counter: Final = itertools.count(1)


def addresses_of(servers: Servers | None) -> list[str]:
    """Return the addresses in "host:port;host:port", or in a list of such texts.

    Raises:
        OptionError: An address is not host:port.
    """
    texts: list[Any] = [servers or ""]
    if servers is not None and not isinstance(servers, str | bytes):
        texts = list(iterated("name servers", servers, _ADDRESSES))
    for text in texts:
        check_type("name servers", text, str, _ADDRESSES, "write '127.0.0.1:9876'")
    addresses = [
        # Old settings have a scheme before the address; cloud endpoints are URLs.
        part.strip().rpartition("/")[2]
        for text in texts
        for part in text.replace(",", ";").split(";")
        if part.strip()
    ]
    for address in addresses:
        split_address(address)
    return addresses


def check_settings(
    options_name: str,
    options: object,
    *,
    credentials: object,
    tls: object,
    proxy: object,
    hooks: object,
) -> None:
    """Check the types of a client's settings; each may be None.

    Args:
        options_name: What the caller's argument is called: `options` or `client_options`.
        options: Its value.
        credentials: As for a client.
        tls: As for a client.
        proxy: As for a client.
        hooks: As for a client.

    Raises:
        OptionError: Names the setting and the type that it must have.
    """
    for name, value, kind in (
        (options_name, options, ClientOptions),
        ("credentials", credentials, Credentials),
        ("tls", tls, TLS),
        ("proxy", proxy, Proxy),
        ("hooks", hooks, Hooks),
    ):
        check_setting(name, value, kind)


def check_setting(name: str, value: object, kind: type) -> None:
    """Check that a setting is None or of its type.

    Raises:
        OptionError: Names the setting and the type that it must have.
    """
    if value is not None and not isinstance(value, kind):
        raise wrong_type(name, value, f"of type {kind.__name__}", f"write {kind.__name__}(…)")


def servers_from_env() -> str:
    """Return the name servers in the environment variable NAMESRV_ADDR.

    Raises:
        NoNameServer: It is not set.
    """
    servers = os.environ.get("NAMESRV_ADDR")
    if not servers:
        raise NoNameServer("the environment variable NAMESRV_ADDR is not set")
    return servers


def cannot_pickle(what: object) -> TypeError:
    """Return the error for an attempt to pickle an object with connections."""
    return TypeError(
        f"{what!r} cannot be pickled: it holds connections; pickle its options, and make a new one "
        "where they arrive"
    )


def topic_list(topics: Iterable[str]) -> tuple[str, ...]:
    """Check the topics whose routes a producer loads at its start.

    Raises:
        OptionError: One is not a legal name, or they are one string.
    """
    names = check_texts("topics", topics)
    for name in names:
        check_topic(name)
    return names


def log_missing_routes(failures: Mapping[str, RocketMQError]) -> None:
    """Log the topics whose routes could not be loaded at the start; the first send tries again."""
    for error in failures.values():
        _log.warning("no route at the start, the first send will look it up again: %s", error)


class ClientBase:
    """Settings and core of a client; the twins add a driver and the methods that wait."""

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
        self._state: State = "new"  # first: `__del__` reads it, also when a check fails
        check_settings(
            "options", options, credentials=credentials, tls=tls, proxy=proxy, hooks=hooks
        )
        self._addresses = addresses_of(name_servers)
        self._options = _with_namespace_of(options or ClientOptions(), self._addresses)
        self._credentials = credentials
        self._tls = tls
        self._proxy = proxy
        self._hooks = hooks or Hooks()
        self._core: ClientCore | None = None

    @classmethod
    def from_env(cls, **settings: Any) -> Self:
        """Make a client of the name servers in the environment variable NAMESRV_ADDR.

        Raises:
            NoNameServer: It is not set.
        """
        return cls(servers_from_env(), **settings)

    @property
    def state(self) -> State:
        """Whether the client is new, running or closed."""
        return self._state

    @property
    def options(self) -> ClientOptions:
        """The client's options."""
        return self._options

    @property
    def core(self) -> ClientCore:
        """The state behind the client, for producers, consumers and connectors.

        Raises:
            NotStarted: The client was never started.
        """
        if self._core is None:
            raise NotStarted("the client")
        return self._core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {';'.join(self._addresses) or 'discovered'} {self._state}>"

    def __getstate__(self) -> object:
        raise cannot_pickle(self)

    # ---- inside ------------------------------------------------------------------------------

    def _not_running(self) -> ClientClosed | NotStarted:
        return ClientClosed("the client") if self._state == "closed" else NotStarted("the client")

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
        core.observe = NoticeLog(core.clock).observe
        core.read_stacks = thread_stacks
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
        """Fetch the addresses of the name servers; return the number of failures, always 0."""
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

    def _connect(self, core: ClientCore) -> Flow[None]:
        """Find the name servers, and make sure that one of them answers, as options say."""
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


def _with_namespace_of(options: ClientOptions, addresses: list[str]) -> ClientOptions:
    """Take the namespace out of an address such as MQ_INST_1_2.mq.example.com:80."""
    namespace = namespace_in_use(options.namespace, addresses)
    if namespace == options.namespace:
        return options
    return dataclasses.replace(options, namespace=namespace)
