# Generated from client/_async/client_user.py by scripts/generate_sync.py; do not edit.
"""Base of producers, consumers and admins: each uses a client, shared or its own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from downrange.checks import check_timeout, check_wait
from downrange.client._sync.client import Client
from downrange.client.client_base import (
    CLOSE_TIMEOUT,
    ClientBase,
    cannot_pickle,
    check_settings,
    servers_from_env,
)
from downrange.errors import ClientClosed, ClientStateError, NotStarted, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from downrange.client.client_base import Servers, State
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.hooks import Hooks
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

    #: A part of `close`.
    _Part: TypeAlias = Callable[[], None]


class ClientUser:
    """Uses a given client, or one of its own, which it starts and closes.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a `Client` to share.
        client_options: Options of its own client.
        credentials: Keys that its own client signs requests with.
        tls: TLS settings of its own client.
        proxy: Proxy of its own client.
        hooks: Functions that its own client calls around every request.

    Raises:
        OptionError: Settings of a client are given together with a client, or the client is of the
            other kind.
    """

    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        check_settings(
            "client_options",
            client_options,
            credentials=credentials,
            tls=tls,
            proxy=proxy,
            hooks=hooks,
        )
        self._state: State = "new"
        self._owns_client = not isinstance(servers, Client)
        if not isinstance(servers, Client):
            if isinstance(servers, ClientBase):
                raise OptionError(f"{type(self).__name__} needs a Client, not {servers!r}")
            self._client = Client(
                servers,
                options=client_options,
                credentials=credentials,
                tls=tls,
                proxy=proxy,
                hooks=hooks,
            )
            return
        given = {
            "client_options": client_options,
            "credentials": credentials,
            "tls": tls,
            "proxy": proxy,
        }
        if hooks is not None and (hooks.before_call or hooks.after_call):
            raise OptionError("before_call and after_call: give these hooks to the client")
        if named := [name for name, value in given.items() if value is not None]:
            raise OptionError(f"{', '.join(named)}: give it to the client, which has its own")
        self._client = servers

    @classmethod
    def from_env(cls, **settings: Any) -> Self:
        """Make one with the name servers in the environment variable NAMESRV_ADDR.

        Raises:
            NoNameServer: It is not set.
        """
        return cls(servers_from_env(), **settings)

    def start(self) -> Self:
        """Start it, and its own client; does nothing while it is running.

        Raises:
            ConnectFailed: No name server can be reached.
            ClientClosed: It was closed, perhaps meanwhile.
        """
        if self._state == "closed":
            raise ClientClosed(repr(self))
        self._client.start()
        self._check_open()
        self._state = "running"
        return self

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close it, and its own client; may be called again.

        Args:
            timeout: How long its own client may take.
        """
        check_wait("timeout", timeout)
        self._state = "closed"
        if self._owns_client:
            self._client.close(timeout)

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

    @property
    def client(self) -> Client:
        """The client that it uses, shared or its own."""
        return self._client

    @property
    def state(self) -> State:
        """Whether it is new, running or closed."""
        return self._state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state}>"

    def __getstate__(self) -> object:
        raise cannot_pickle(self)

    def _check_open(self) -> None:
        """Check that it was not closed; `start` asks again after each wait.

        Raises:
            ClientClosed: It was.
        """
        if self._state == "closed":
            raise ClientClosed(repr(self))

    def _enter(self, enter: Flow[None], undo: Callable[[], Flow[None]]) -> None:
        """Run the flow that joins a group; leave the group again if nobody will use this object.

        The caller may be cancelled although the flow has ended in the same turn, or `close` may
        have been called meanwhile.

        Raises:
            ClientClosed: It was closed meanwhile.
        """
        try:
            self._client.run(enter)
            self._check_open()
        except GeneratorExit:  # this coroutine cannot wait for anything any more
            raise
        except BaseException:
            with suppress(ClientStateError):  # the client was closed meanwhile
                self._client.run(undo())
            raise

    def _error_of(self, leave: _Part) -> BaseException | None:
        """Return what a part of `close` raises, so that the rest of it is done in any case.

        The end of the coroutine itself is raised: it cannot wait for anything any more.
        """
        try:
            leave()
        except GeneratorExit:
            raise
        except BaseException as error:
            return error
        return None

    def _client_core(self) -> ClientCore:
        """Return the client's core.

        Raises:
            NotStarted, ClientClosed: This object is not running.
        """
        if self._state == "running":
            return self._client.core
        raise ClientClosed(repr(self)) if self._state == "closed" else NotStarted(repr(self))

    def _deadline(self, timeout: float | None) -> tuple[ClientCore, float]:
        """Return the client's core, and the deadline of a call that starts now.

        Raises:
            OptionError: The timeout is not a number of seconds above 0.
        """
        core = self._client_core()
        if timeout is None:
            return core, core.clock.now() + core.options.call_timeout
        check_timeout(timeout)
        return core, core.clock.now() + timeout
