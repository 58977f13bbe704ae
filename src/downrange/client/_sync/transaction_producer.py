# Generated from client/_async/transaction_producer.py by scripts/generate_sync.py; do not edit.
"""`TransactionProducer`: messages that consumers see only if local work succeeds.

    with TransactionProducer("127.0.0.1:9876", group="pay", check=look_up) as producer:
        with producer.transaction(Message("payments", b"42")):
            database.commit()

The broker holds the message back until the producer sends the outcome. When no outcome arrives,
the broker sends a check to a producer of the group, which calls its check function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeAlias

from downrange.checks import check_timeout
from downrange.client._sync.producer import Producer
from downrange.client.flows.producing.transactions import (
    begin,
    end,
    send_in_transaction,
    take_checks,
)
from downrange.client.flows.validation import check_is_message
from downrange.client.transaction_base import (
    TransactionBase,
    outcome_of,
    plain_function,
    reason_of,
)
from downrange.errors import RocketMQError
from downrange.model import Message, Outcome, ReceivedMessage, SendReceipt, TransactionReceipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from downrange.client._sync.client import Client
    from downrange.client.client_base import Servers
    from downrange.client.flows.hooks import Hooks
    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.options import TLS, ClientOptions, Credentials, ProducerOptions, Proxy

#: Called with a half message; returns how its transaction ended.
Check: TypeAlias = "Callable[[ReceivedMessage], Outcome | None]"
#: Local work; None means that the outcome is not known yet.
Execute: TypeAlias = "Callable[[Message, SendReceipt], Outcome | None]"


class TransactionProducer(Producer):
    """Sends messages that depend on local work, from any number of threads.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a `Client` to share.
        group: The producer group; brokers send transaction checks to any member of it.
        check: Called with a half message; returns the `Outcome` of its transaction, or None while
            it is not known. Brokers ask about messages of the whole group, including those of
            other processes, so it must look where all of them record their work.
            Called in a pool.
        topics: As for `Producer`: brokers of these topics can send checks from the start.
        options: As for `Producer`; `check_threads` and `checks_waiting_max` limit checks.
        hooks: Functions called around every send, and when a transaction ends.
        client_options: Options of its own client.
        credentials: Keys that its own client signs requests with.
        tls: TLS settings of its own client.
        proxy: Proxy of its own client.

    Raises:
        OptionError: An argument is invalid.

    Example:
        ```python
        with TransactionProducer("127.0.0.1:9876", group="pay", check=look_up) as p:
            with p.transaction(Message("payments", b"42")) as tx:
                database.commit(tx.message_id)
        ```
    """

    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        group: str,
        check: Check,
        topics: Iterable[str] = (),
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
            topics=topics,
            options=options,
            hooks=hooks,
            client_options=client_options,
            credentials=credentials,
            tls=tls,
            proxy=proxy,
        )
        self._check = plain_function("check", check)

    def _make_core(self) -> ProducerCore:
        core = super()._make_core()
        take_checks(core, self._check)
        return core

    def transaction(self, message: Message, *, timeout: float | None = None) -> Transaction:
        """Return a context manager that sends a message, and commits it when its block succeeds.

        An `Exception` rolls the message back and is raised again. Any other `BaseException`, such
        as Ctrl-C, leaves the transaction open: the broker will send a check.

        Args:
            message: The message; it must not be delayed.
            timeout: For sending the message; the producer's option unless given.

        Raises:
            OptionError: It is not a message, or the timeout is not a number above 0.
            InvalidMessage: From `with`: the message breaks a rule.
            SendFailed: From `with`: it was not stored safely; the block does not run.
        """
        core = self._running_core()
        check_is_message(message)
        if timeout is not None:
            check_timeout(timeout)
        return Transaction(core, self._client, message, timeout)

    def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout: float | None = None
    ) -> TransactionReceipt:
        """Send a message, do local work, and send its outcome to the broker.

        Args:
            message: The message; it must not be delayed.
            execute: The local work. It is called with the message and its receipt, and returns an
                `Outcome`, or None while the outcome is not known. An exception means None as well,
                and is part of the result. When the message was not stored safely, `execute` is not
                called and the message is rolled back.
            timeout: For sending the message; the producer's option unless given.

        Returns:
            The receipt, the outcome, and the exception of `execute`, if any.

        Raises:
            InvalidMessage: The message breaks a rule.
            SendFailed: No broker stored the message; `execute` was not called.
        """
        core, client = self._running_core(), self._client
        work = plain_function("execute", execute)
        return client.run(
            send_in_transaction(
                core, message, work, client.round_robin, core.waiting_rules, timeout
            )
        )


class Transaction(TransactionBase):
    """A transaction under way; see `TransactionProducer.transaction`."""

    def __init__(
        self, core: ProducerCore, client: Client, message: Message, timeout: float | None
    ) -> None:
        super().__init__(core, message, timeout)
        self._client = client

    def commit(self) -> None:
        """Commit now: deliver the message to consumers.

        Raises:
            ClientStateError: The transaction has ended already, or not begun.
        """
        self._finish(Outcome.COMMIT)

    def rollback(self) -> None:
        """Roll back now: the message is never delivered.

        Raises:
            ClientStateError: The transaction has ended already, or not begun.
        """
        self._finish(Outcome.ROLLBACK)

    def leave_open(self) -> None:
        """Leave the outcome open: the broker will call the check function.

        Raises:
            ClientStateError: The transaction has ended already, or not begun.
        """
        self._finish(Outcome.UNKNOWN)

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
        """Commit, or roll back after an error, unless the transaction has ended."""
        if self._outcome is None:
            self._finish(outcome_of(error), error)

    def _finish(self, outcome: Outcome, error: BaseException | None = None) -> None:
        half = self._set_outcome(outcome)
        try:
            self._client.run(end(self._core, half, outcome, reason_of(error)))
        except RocketMQError as problem:  # the broker will send a check
            self._log_failure(problem)
