"""Transaction producers: a message that consumers see only when local work has succeeded.

    with TransactionProducer("127.0.0.1:9876", group="pay", check=look_up) as producer:
        with producer.transaction(Message("payments", b"42")) as tx:
            database.commit()

The broker keeps the message back until it hears how the work ended. When it does not hear, it asks
a producer of the group, which calls its check function.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias

from downrange.client.client import AsyncClient, Client
from downrange.client.flows.producing.transactions import (
    Half,
    begin,
    end,
    send_in_transaction,
    take_checks,
)
from downrange.client.producer import AsyncProducer, Producer
from downrange.client.sharing import ClientT
from downrange.errors import ClientStateError, OptionError, RocketMQError
from downrange.model import Message, Outcome, ReceivedMessage, SendReceipt, TransactionReceipt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from downrange.client.client import Servers
    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.options import TLS, ClientOptions, Credentials, ProducerOptions, Proxy

_log = logging.getLogger("downrange.client")
#: What became of this half message?
Check: TypeAlias = "Callable[[ReceivedMessage], Outcome | None]"
AsyncCheck: TypeAlias = "Callable[[ReceivedMessage], Outcome | Awaitable[Outcome | None] | None]"
#: Local work; None means that the outcome is not known yet.
Execute: TypeAlias = "Callable[[Message, SendReceipt], Outcome | None]"
AsyncExecute: TypeAlias = (
    "Callable[[Message, SendReceipt], Outcome | Awaitable[Outcome | None] | None]"
)


class TransactionProducer(Producer):
    """Sends messages that depend on local work, from any number of threads.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a client to share.
        group: The producer's group; brokers ask any member of it about transactions.
        check: Told a half message, returns how its transaction ended: an `Outcome`, or None when
            that is not known yet. It is asked about messages of the whole group, also those of
            other processes, so it must look where all of them look. Called in a pool.
        options: How it sends; `check_threads` and `checks_waiting_max` limit the checks.
        hooks: Functions called around every send, and when a transaction ends.
        client_options: How its own client behaves.
        credentials: What its own client signs with.
        tls: How its own client speaks TLS.
        proxy: What its own client connects through.

    Raises:
        OptionError: An argument makes no sense.

    Example:
        ```python
        with TransactionProducer("127.0.0.1:9876", group="pay", check=look_up) as producer:
            with producer.transaction(Message("payments", b"42")) as tx:
                database.commit(tx.message_id)
        ```
    """

    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        group: str,
        check: Check,
        options: ProducerOptions | None = None,
        hooks: Hooks | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        super().__init__(
            servers,
            group=group,
            options=options,
            hooks=hooks,
            client_options=client_options,
            credentials=credentials,
            tls=tls,
            proxy=proxy,
        )
        self._check = _plain("check", check)

    def _make_core(self) -> ProducerCore:
        core = super()._make_core()
        take_checks(core, self._check)
        return core

    def transaction(self, message: Message, *, timeout: float | None = None) -> Transaction:
        """Return a context that sends a message, and commits it when its block succeeds.

        An exception rolls it back and goes on. What is no `Exception`, such as Ctrl-C or a
        cancelled task, leaves it open: the broker will ask.

        Args:
            message: The message; it cannot be delayed.
            timeout: For sending it; the options' unless given.

        Raises:
            InvalidMessage: From `with`: the message breaks a rule.
            SendFailed: From `with`: it was not stored safely, and the block does not run.
        """
        return Transaction(self._running_core(), self._client, message, timeout)

    def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout: float | None = None
    ) -> TransactionReceipt:
        """Send a message, do local work, and tell the broker how that ended.

        Args:
            message: The message; it cannot be delayed.
            execute: The local work. It is given the message and its receipt, and returns an
                `Outcome`, or None when the outcome is not known yet. What it raises means the
                same, and is in the result. It does not run when the message was stored, but not
                safely: then it is rolled back.
            timeout: For sending the message; the options' unless given.

        Returns:
            The receipt, the outcome, and what `execute` raised.

        Raises:
            InvalidMessage: The message breaks a rule.
            SendFailed: No broker took it; the work was not begun.
        """
        core, client = self._running_core(), self._client
        work = _plain("execute", execute)
        return client.run(
            send_in_transaction(
                core, message, work, client.round_robin, core.waiting_rules, timeout
            )
        )


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages that depend on local work, from any number of tasks of one event loop.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a client to share.
        group: The producer's group; brokers ask any member of it about transactions.
        check: Told a half message, returns how its transaction ended: an `Outcome`, or None when
            that is not known yet. It is asked about messages of the whole group, also those of
            other processes, so it must look where all of them look. A coroutine function, or a
            plain one, which is called in a pool.
        options: How it sends; `check_threads` and `checks_waiting_max` limit the checks.
        hooks: Functions called around every send, and when a transaction ends.
        client_options: How its own client behaves.
        credentials: What its own client signs with.
        tls: How its own client speaks TLS.
        proxy: What its own client connects through.

    Raises:
        OptionError: An argument makes no sense.

    Example:
        ```python
        async with AsyncTransactionProducer("127.0.0.1:9876", group="pay", check=look_up) as p:
            async with p.transaction(Message("payments", b"42")) as tx:
                await database.commit(tx.message_id)
        ```
    """

    def __init__(
        self,
        servers: AsyncClient | Servers | None = None,
        *,
        group: str,
        check: AsyncCheck,
        options: ProducerOptions | None = None,
        hooks: Hooks | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        super().__init__(
            servers,
            group=group,
            options=options,
            hooks=hooks,
            client_options=client_options,
            credentials=credentials,
            tls=tls,
            proxy=proxy,
        )
        self._check = _callable("check", check)

    def _make_core(self) -> ProducerCore:
        core = super()._make_core()
        take_checks(core, self._check)
        return core

    def transaction(self, message: Message, *, timeout: float | None = None) -> AsyncTransaction:
        """Return a context that sends a message, and commits it when its block succeeds.

        An exception rolls it back and goes on. What is no `Exception`, such as Ctrl-C or a
        cancelled task, leaves it open: the broker will ask.

        Args:
            message: The message; it cannot be delayed.
            timeout: For sending it; the options' unless given.

        Raises:
            InvalidMessage: From `with`: the message breaks a rule.
            SendFailed: From `with`: it was not stored safely, and the block does not run.
        """
        return AsyncTransaction(self._running_core(), self._client, message, timeout)

    async def send_in_transaction(
        self, message: Message, execute: AsyncExecute, *, timeout: float | None = None
    ) -> TransactionReceipt:
        """Send a message, do local work, and tell the broker how that ended.

        Args:
            message: The message; it cannot be delayed.
            execute: The local work. It is given the message and its receipt, and returns an
                `Outcome`, or None when the outcome is not known yet. What it raises means the
                same, and is in the result. It does not run when the message was stored, but not
                safely: then it is rolled back.
            timeout: For sending the message; the options' unless given.

        Returns:
            The receipt, the outcome, and what `execute` raised.

        Raises:
            InvalidMessage: The message breaks a rule.
            SendFailed: No broker took it; the work was not begun.
        """
        core, client = self._running_core(), self._client
        work = _callable("execute", execute)
        return await client.run(
            send_in_transaction(core, message, work, client.round_robin, core.async_rules, timeout)
        )


# ---- the context ---------------------------------------------------------------------------------


class _TransactionBase(Generic[ClientT]):
    """What both contexts have in common: what was sent, and whether it has ended."""

    def __init__(
        self, core: ProducerCore, client: ClientT, message: Message, timeout: float | None
    ) -> None:
        self._core = core
        self._client: ClientT = client
        self._timeout = timeout
        self._begun: tuple[SendReceipt, Half] | None = None
        self._message = message
        self._outcome: Outcome | None = None

    @property
    def message(self) -> Message:
        """What is sent."""
        return self._message

    @property
    def receipt(self) -> SendReceipt:
        """What the broker says about the half message."""
        return self._state()[0]

    @property
    def message_id(self) -> str:
        """The message's id; a good name for the transaction in your own tables."""
        return self.receipt.message_id

    @property
    def outcome(self) -> Outcome | None:
        """What the broker was told; None as long as it was not."""
        return self._outcome

    def __repr__(self) -> str:
        state = "new" if self._begun is None else "open" if self._outcome is None else "ended"
        return f"<{type(self).__name__} of {self._message!r} {state}>"

    def _state(self) -> tuple[SendReceipt, Half]:
        if self._begun is None:
            raise ClientStateError("the transaction has not begun: use it in a with statement")
        return self._begun

    def _check_new(self) -> None:
        if self._begun is not None:
            raise ClientStateError("the transaction has begun already; make a new one")

    def _end(self, outcome: Outcome) -> Half:
        """Take the outcome down, once."""
        half = self._state()[1]
        if self._outcome is not None:
            raise ClientStateError(f"the transaction has ended already, with {self._outcome.name}")
        self._outcome = outcome
        return half

    def _not_told(self, error: RocketMQError) -> None:
        _log.warning("the end of transaction %s was not told: %s", self.message_id, error)


class Transaction(_TransactionBase[Client]):
    """A transaction under way; see `TransactionProducer.transaction`."""

    def commit(self) -> None:
        """Let consumers have the message, now.

        Raises:
            ClientStateError: It has ended already, or not begun.
        """
        self._tell(Outcome.COMMIT)

    def rollback(self) -> None:
        """Let nobody have the message.

        Raises:
            ClientStateError: It has ended already, or not begun.
        """
        self._tell(Outcome.ROLLBACK)

    def leave_open(self) -> None:
        """Leave it to the check function; the broker will ask.

        Raises:
            ClientStateError: It has ended already, or not begun.
        """
        self._tell(Outcome.UNKNOWN)

    def __enter__(self) -> Self:
        """Send the half message."""
        self._check_new()
        core, client = self._core, self._client
        self._begun = client.run(
            begin(core, self._message, client.round_robin, core.waiting_rules, self._timeout)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or roll back, unless it has ended."""
        if self._outcome is None:
            self._tell(_outcome_of(error), error)

    def _tell(self, outcome: Outcome, error: BaseException | None = None) -> None:
        half = self._end(outcome)
        try:
            self._client.run(end(self._core, half, outcome, _told(error)))
        except RocketMQError as problem:  # the broker will ask
            self._not_told(problem)


class AsyncTransaction(_TransactionBase[AsyncClient]):
    """A transaction under way; see `AsyncTransactionProducer.transaction`."""

    async def commit(self) -> None:
        """Let consumers have the message, now.

        Raises:
            ClientStateError: It has ended already, or not begun.
        """
        await self._tell(Outcome.COMMIT)

    async def rollback(self) -> None:
        """Let nobody have the message.

        Raises:
            ClientStateError: It has ended already, or not begun.
        """
        await self._tell(Outcome.ROLLBACK)

    async def leave_open(self) -> None:
        """Leave it to the check function; the broker will ask.

        Raises:
            ClientStateError: It has ended already, or not begun.
        """
        await self._tell(Outcome.UNKNOWN)

    async def __aenter__(self) -> Self:
        """Send the half message."""
        self._check_new()
        core, client = self._core, self._client
        self._begun = await client.run(
            begin(core, self._message, client.round_robin, core.async_rules, self._timeout)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or roll back, unless it has ended."""
        if self._outcome is None:
            await self._tell(_outcome_of(error), error)

    async def _tell(self, outcome: Outcome, error: BaseException | None = None) -> None:
        half = self._end(outcome)
        try:
            await self._client.run(end(self._core, half, outcome, _told(error)))
        except RocketMQError as problem:  # the broker will ask
            self._not_told(problem)


def _outcome_of(error: BaseException | None) -> Outcome:
    if error is None:
        return Outcome.COMMIT
    return Outcome.ROLLBACK if isinstance(error, Exception) else Outcome.UNKNOWN


def _told(error: BaseException | None) -> Exception | None:
    return error if isinstance(error, Exception) else None


def _callable(name: str, function: Any) -> Callable[..., Any]:
    if not callable(function):
        raise OptionError(f"{name}={function!r} cannot be called; give a function")
    return function  # type: ignore[no-any-return]


def _plain(name: str, function: Any) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        raise OptionError(f"{name} is a coroutine function; AsyncTransactionProducer takes those")
    return _callable(name, function)
