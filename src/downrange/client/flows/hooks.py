"""Hooks: user functions that observe sends, requests and handlers, or forbid a send.

Around each attempt to send they run in this order: `forbid_send`, `before_send`, `before_call`, the
request, `after_call`, `after_send`. One rule: only `forbid_send` decides. An error in any other
hook is reported, and the send goes on.

Every hook gets one context, except hooks of calls, which get the address, the request and,
afterwards, the reply. Under asyncio a hook may be a coroutine function. Without hooks there is no
cost: callers check that there are some before they make a context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from downrange.client.flows.effects import Flow, UserCall
from downrange.errors import OptionError, SendForbidden

if TYPE_CHECKING:
    from downrange.errors import RocketMQError
    from downrange.model import Message, QueueId, ReceivedMessage, SendReceipt
    from downrange.wire.codes import TransactionFlag
    from downrange.wire.command import Command

#: How the caller of a send waits for the result.
SendMode: TypeAlias = Literal["sync", "async", "oneway"]


class MessageType(IntEnum):
    """The kind of a message, for hooks and traces (Java: `MessageType`)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


# The last three are known to 5.x only; 4.9 calls such a message normal.
_DELAYED_BY: Final = frozenset(
    {"DELAY", "__STARTDELIVERTIME", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"}
)


def message_type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message with these properties; DELAY wins over HALF."""
    if not _DELAYED_BY.isdisjoint(properties):
        return MessageType.DELAY
    if properties.get("TRAN_MSG") == "true":
        return MessageType.HALF
    return MessageType.NORMAL


@dataclass(slots=True, kw_only=True)
class SendContext:
    """One attempt to send; the same object before and after it.

    Attributes:
        group: The producer's group.
        messages: One message, or the messages of a batch.
        queue: The queue that it is sent to.
        address: The broker's "host:port".
        mode: How the caller waits.
        message_type: Normal, half or delayed.
        namespace: The namespace of the client, if it has one.
        receipt: The receipt; None before the attempt, and after one that failed.
        error: Why the attempt failed; None before it, and after one that succeeded.
        notes: Free for hooks, to keep something from `before_send` to `after_send`.
    """

    group: str
    messages: Sequence[Message]
    queue: QueueId
    address: str
    mode: SendMode
    message_type: MessageType = MessageType.NORMAL
    namespace: str | None = None
    receipt: SendReceipt | None = None
    error: RocketMQError | None = None
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def message(self) -> Message:
        """The message, or the first one of a batch."""
        return self.messages[0]


@dataclass(slots=True, kw_only=True)
class EndTransactionContext:
    """The end of a transaction, before it is sent to the broker.

    Attributes:
        group: The producer's group.
        message: The half message: as it was sent, or as the broker sent it back in a check.
        address: The broker's "host:port".
        message_id: The message's unique id.
        transaction_id: The transaction's id.
        outcome: COMMIT, ROLLBACK, or NONE when it is not known yet.
        is_from_check: Whether it answers a check of the broker.
    """

    group: str
    message: Message | ReceivedMessage
    address: str
    message_id: str
    transaction_id: str | None
    outcome: TransactionFlag
    is_from_check: bool = False


@dataclass(slots=True, kw_only=True)
class HandleContext:
    """One call of a consumer's handler; the same object before and after it.

    Attributes:
        group: The consumer's group.
        queue: The queue that the messages were read from.
        messages: The messages that the handler is given.
        namespace: The namespace of the client, if it has one.
        error: What the handler raised; None before the call, and when it returned.
        notes: Free for hooks, to keep something from `before_handle` to `after_handle`.
    """

    group: str
    queue: QueueId
    messages: Sequence[ReceivedMessage]
    namespace: str | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict[str, Any])


SendHook: TypeAlias = Callable[[SendContext], object]
HandleHook: TypeAlias = Callable[[HandleContext], object]
#: Called with a message that was pulled; False keeps it from the handler, and counts as done.
FilterHook: TypeAlias = "Callable[[ReceivedMessage], object]"
EndTransactionHook: TypeAlias = Callable[[EndTransactionContext], object]
#: Called with the address and the request; fields that it adds to the request are signed.
BeforeCallHook: TypeAlias = "Callable[[str, Command], object]"
#: Called with the address, the request and the reply; the reply is None for a one-way request.
AfterCallHook: TypeAlias = "Callable[[str, Command, Command | None], object]"
#: Reports an exception of the user's code: the name of the function, and the error.
Report: TypeAlias = Callable[[str, BaseException], Flow[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The functions to call, each kind in order.

    Attributes:
        forbid_send: Called before each attempt; raise anything to stop the send with a
            `SendForbidden`.
        before_send: Called before each attempt.
        after_send: Called after each attempt, with its receipt or error.
        before_call: Called before each request to a server.
        after_call: Called after each request to a server.
        end_transaction: Called before the end of a transaction is sent to the broker.
        before_handle: Called before each call of a consumer's handler.
        after_handle: Called after each call of a consumer's handler, with its error, if any.
        filter_message: Called with each message that a push consumer has pulled; a message for
            which one returns False is left out, as if it had been handled.
    """

    forbid_send: tuple[SendHook, ...] = ()
    before_send: tuple[SendHook, ...] = ()
    after_send: tuple[SendHook, ...] = ()
    before_call: tuple[BeforeCallHook, ...] = ()
    after_call: tuple[AfterCallHook, ...] = ()
    end_transaction: tuple[EndTransactionHook, ...] = ()
    before_handle: tuple[HandleHook, ...] = ()
    after_handle: tuple[HandleHook, ...] = ()
    filter_message: tuple[FilterHook, ...] = ()

    def __post_init__(self) -> None:
        """Check that every hook can be called.

        Raises:
            OptionError: Names the kind of hook.
        """
        for kind in fields(self):
            hooks: Any = getattr(self, kind.name)
            if not isinstance(hooks, tuple) or not all(map(callable, hooks)):
                raise OptionError(f"{kind.name}={hooks!r} is not a tuple of functions")


def run_observers(
    hooks: Sequence[Callable[..., object]], args: tuple[Any, ...], report: Report
) -> Flow[None]:
    """Call each hook with the arguments; report an error and go on with the next hook."""
    for hook in hooks:
        try:
            yield UserCall(hook, args)
        except Exception as error:  # the user's code may raise anything
            yield from report(f"hook {name_of(hook)}", error)


def run_forbidden(hooks: Sequence[SendHook], context: SendContext) -> Flow[None]:
    """Call each hook that may forbid the send.

    Raises:
        SendForbidden: A hook raised this or any other error.
    """
    for hook in hooks:
        try:
            yield UserCall(hook, (context,))
        except SendForbidden:
            raise
        except Exception as error:  # the user's code may raise anything
            topic = context.queue.topic
            forbidden = SendForbidden(
                f"hook {name_of(hook)} forbids to send to {topic!r}: "
                f"{type(error).__name__}: {error}"
            )
            forbidden.topic = topic
            raise forbidden from error


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a user's function, for logs and errors."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(function)
