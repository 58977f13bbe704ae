"""The exception tree of Downrange.

Base classes end in `Error`, leaves name the event. An error carries its facts as fields, so that a
program can act on them. Its text says what was wrong, where, and what to do next.

    RocketMQError
    ├── OptionError (ValueError)       a setting or argument is wrong
    │   ├── InvalidMessage             a message breaks a rule; nothing was sent
    │   └── InvalidSql                 an SQL92 filter is wrong; shows the place
    ├── MissingExtra (ImportError)     a feature needs an optional package
    ├── ClientStateError               a client, producer or consumer cannot do it now
    │   ├── NotStarted
    │   ├── ClientClosed
    │   ├── GroupTaken                 the client already has a member of that group
    │   ├── ForkedClient               it was started before this process was forked
    │   └── WrongEventLoop             it was started on another event loop
    ├── NoNameServer                   no address of a name server is known
    ├── CheckFailed                    `doctor` found problems; lists all of them
    ├── RouteNotFound                  a topic has no queues to use
    ├── GroupNotFound                  no broker has the consumer group
    ├── PartlyDone                     some brokers made a change, others did not; names both
    ├── SendFailed                     no broker confirmed a message; lists every attempt
    │   ├── SendTimedOut (TimeoutError)
    │   ├── SendUnreachable (ConnectionError)    no broker could be reached
    │   ├── SendNotPermitted (PermissionError)   topic's permission, or access check
    │   └── BatchFailed                only a part of a list was sent; says which
    ├── TooManySends (TimeoutError)    back-pressure: no room came free in time
    ├── SendForbidden                  a hook refused the message
    ├── RequestTimedOut (TimeoutError)  a request message was sent, no reply came
    ├── SettleError                    a received message cannot be acknowledged or given back
    │   ├── AlreadySettled
    │   ├── ReceiptExpired             too late: the message is delivered again
    │   ├── ReceiptMissing             a copy of a message, which has no receipt
    │   ├── ClosedUnsettled            its consumer was closed before
    │   └── AcksFailed                 some of many were not acknowledged; says which
    ├── ServerError                    a server refused; code, remark, address
    │   ├── ServerFailure              code 1
    │   │   └── SqlNotSupported        the broker has SQL92 filters switched off
    │   ├── SystemBusy                 code 2, flow control
    │   ├── NotSupported               code 3
    │   │   └── PopNotSupported        the broker is older than 5.0, which brought pops
    │   ├── MessageRefused             code 13
    │   ├── ServiceNotAvailable        code 14
    │   ├── NoPermission (PermissionError)  code 16, or an access check that failed
    │   ├── TopicNotFound              code 17
    │   ├── NotFound                   codes 22, 208
    │   └── QueueMoved                 code 501: a static topic's queue is on another broker
    ├── LinkError                      a connection cannot carry the request
    │   ├── LinkClosed
    │   └── TooManyInFlight
    ├── TransportError                 a peer did not answer
    │   ├── ConnectFailed (ConnectionError)   it cannot be reached; nothing was sent
    │   │   ├── HostNotFound           its name has no address
    │   │   ├── BrokerNotFound         the name server has no broker, or not the one needed
    │   │   └── TlsFailed              it does not speak TLS as required, or is not trusted
    │   ├── ConnectionLost (ConnectionError)  outcome unknown
    │   └── CallTimeout (TimeoutError)        outcome unknown
    ├── CannotListen                   a server cannot use its address
    ├── StoreError                     a store folder cannot be used
    │   ├── StoreLocked                another process uses it
    │   ├── DiskFull                   nothing more can be written
    │   ├── CorruptStore               a file is damaged, or not a file of a store
    │   ├── OffsetsInUse               another process keeps offsets of the group in the folder
    │   └── CorruptOffsets             a file of a broadcast consumer's offsets is damaged
    └── WireError                      bytes break the protocol, or a value cannot become bytes
        ├── FrameTooLarge
        ├── MalformedFrame             the length words
        ├── MalformedCommand           a command's header
        │   ├── MissingField
        │   └── InvalidField
        ├── MalformedBody              a JSON, compressed or batch body
        ├── MalformedRecord            a stored message
        ├── MalformedId                a message id
        └── Unencodable                our own value does not fit the protocol

Handlers of consumers raise `Retry`, `RetrySome` and `DeadLetter`. They are no errors of Downrange,
and so not part of the tree.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    # Only for annotations. The types are recursive: an error lists attempts and receipts, and each
    # attempt holds its error.
    from downrange.model import Attempt, BatchReceipt, Message, ReceivedMessage


#: Characters of a wrong SQL expression that are shown, in all and before the mistake.
_SHOWN: Final = 76
_SHOWN_BEFORE: Final = 50
#: Failures that the text of an error lists.
_LISTED_MAX: Final = 10


class RocketMQError(Exception):
    """Base of every error that Downrange raises on purpose.

    Attributes:
        retryable: Whether the same call may succeed a moment later.
        code: The response code, or one of Java's client codes (from 10001 on), or None.
        address: The "host:port" concerned, or None.
        topic: The topic concerned, or None.
    """

    retryable: bool = False
    code: int | None = None
    address: str | None = None
    topic: str | None = None

    @property
    def brief(self) -> str:
        """What happened, without the address: for a list that already names it."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take facts and build the text, so unpickling must not call them.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[RocketMQError], args: tuple[Any, ...], facts: dict[str, Any]
) -> RocketMQError:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError's __new__ leaves them to __init__
    error.__dict__.update(facts)
    return error


class OptionError(RocketMQError, ValueError):
    """A setting or an argument is wrong."""


class InvalidMessage(OptionError):
    """A message breaks a rule of the protocol; nothing was sent."""

    code = 13


class InvalidSql(OptionError):
    """An SQL92 filter expression is wrong."""

    def __init__(
        self, expression: str, position: int, problem: str, remedy: str | None = None
    ) -> None:
        """Show the line of the mistake with a mark under it, and how to write it instead."""
        begin = max(expression.rfind("\n", 0, position) + 1, position - _SHOWN_BEFORE)
        end = expression.find("\n", begin)
        line = expression[begin : len(expression) if end < 0 else end][:_SHOWN]
        shown = "".join([character if character.isprintable() else " " for character in line])
        advice = "" if remedy is None else f": {remedy}"
        super().__init__(f"{problem}{advice}\n  {shown}\n  {' ' * (position - begin)}^")
        self.expression = expression
        self.position = position
        self.problem = problem
        self.remedy = remedy


class MissingExtra(RocketMQError, ImportError):
    """A feature needs packages that only an extra installs."""

    def __init__(self, feature: str, extra: str) -> None:
        """Name the feature and the extra that installs what it needs."""
        super().__init__(
            f"{feature} needs the extra '{extra}': run pip install '.[{extra}]' in the checkout"
        )
        self.feature = feature
        self.extra = extra


class ClientStateError(RocketMQError):
    """A client, producer or consumer cannot do this now."""


class NotStarted(ClientStateError):
    """It was not started."""

    def __init__(self, what: str) -> None:
        """Name the client, producer or consumer."""
        super().__init__(f"{what} is not started: use it in a with statement, or call start()")


class ClientClosed(ClientStateError):
    """It was closed."""

    def __init__(self, what: str) -> None:
        """Name the client, producer or consumer."""
        super().__init__(f"{what} is closed; make a new one")


class GroupTaken(ClientStateError):
    """The client already has a member of this group."""

    def __init__(self, kind: str, group: str) -> None:
        """Name the kind of member and the group."""
        super().__init__(
            f"this client already has a {kind} of group {group!r}; close that one first, use "
            "another group, or give each its own client"
        )
        self.group = group


class ForkedClient(ClientStateError):
    """It was started before this process was forked, which copies no threads or connections."""

    def __init__(self, what: str) -> None:
        """Name the client, producer or consumer."""
        super().__init__(
            f"{what} was started before this process was forked; make a new one in the child, "
            "for example in a post-fork hook of the web server"
        )


class WrongEventLoop(ClientStateError):
    """It was started on another event loop: its connections and timers belong to that loop."""

    def __init__(self, what: str, is_loop_closed: bool, thread: str) -> None:
        """Name the client, producer or consumer, and the thread of its event loop."""
        super().__init__(
            f"{what} was started on an event loop that has ended; start, use and close it in one "
            "asyncio.run()"
            if is_loop_closed
            else f"{what} was started on another event loop, in thread {thread!r}; use it there, "
            "for example with asyncio.run_coroutine_threadsafe(), or make one for each loop"
        )


class NoNameServer(RocketMQError):
    """No address of a name server is known."""

    code = 10004


def no_name_server_answered(failures: Sequence[TransportError]) -> TransportError:
    """Return one error that names every name server that was tried.

    If all failures have the same class, so has the error; otherwise it is a `ConnectFailed`.
    """
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else ConnectFailed
    error = kind.__new__(kind)
    TransportError.__init__(error, failures[0].address or "", failures[0].problem)
    tried = ", ".join(f"{failure.address} ({failure.problem})" for failure in failures)
    address = failures[0].address
    hints: dict[type[TransportError], str] = {
        HostNotFound: "Check the host name.",
        TlsFailed: "Check the TLS settings, and that the servers speak TLS.",
        ConnectionLost: "Is it a name server, and does it require TLS?",
        CallTimeout: "Is it a name server, and is there a firewall in between?",
    }
    hint = hints.get(kind, "Is the cluster running? Start one here with `downrange serve`.")
    error.args = (
        f"no name server answered: {tried}.\n  {hint} `downrange doctor {address}` shows more.",
    )
    return error


class CheckFailed(RocketMQError):
    """`doctor` found problems with the cluster or the way to it.

    Attributes:
        findings: The problems, each a `downrange.client.flows.admin.doctor.Finding`.
    """

    def __init__(self, findings: Sequence[object]) -> None:
        """List the findings."""
        listed = "".join(f"\n  {number}. {finding}" for number, finding in enumerate(findings, 1))
        super().__init__(f"doctor found problems:{listed}")
        self.findings = tuple(findings)


class RouteNotFound(RocketMQError):
    """A topic has no queues to use.

    Attributes:
        topic: The topic.
        addresses: The name servers that were asked.
    """

    code = 10005

    def __init__(self, topic: str, addresses: Sequence[str], problem: str) -> None:
        """Name the topic, the name servers, what is wrong and what to do."""
        super().__init__(f"topic {topic!r} has no route at {', '.join(addresses)}{problem}")
        self.topic = topic
        self.addresses = tuple(addresses)


class GroupNotFound(RocketMQError):
    """No broker has a consumer group.

    Attributes:
        group: The group.
        addresses: The brokers that were asked.
    """

    def __init__(self, group: str, addresses: Sequence[str]) -> None:
        """Take the group and the brokers that do not have it."""
        super().__init__(
            f"group {group!r} does not exist on {', '.join(addresses)}.\n"
            f"  `downrange group list` shows all groups, `downrange group create {group}` makes it."
        )
        self.group = group
        self.addresses = tuple(addresses)
        self.address = ", ".join(addresses)


class PartlyDone(RocketMQError):
    """Some brokers made a change, and others did not. The call can be repeated.

    Attributes:
        what: What was to be done.
        done: The brokers that did it.
        failures: Broker -> its error.
    """

    def __init__(
        self, what: str, done: Sequence[str], failures: Mapping[str, RocketMQError]
    ) -> None:
        """Take what was to be done, who did it, and the errors of the others."""
        lines = [
            f"\n  {broker} {error.address or ''}: {type(error).__name__}, {error.brief}"
            for broker, error in failures.items()
        ]
        super().__init__(
            f"{what}: done on {', '.join(done)}, but not on {', '.join(failures)}:"
            f"{''.join(lines)}\n  Repeat the call when they answer; it does no harm to the others."
        )
        self.what = what
        self.done = tuple(done)
        self.failures = dict(failures)
        self.address = ", ".join(error.address or "" for error in failures.values())
        self.retryable = all(error.retryable for error in failures.values())


class SendFailed(RocketMQError):
    """No broker confirmed that it stored a message.

    Attributes:
        topic: The topic of the message.
        attempts: What was tried, in order: broker, address, queue, error, time.
        elapsed: Seconds from the first attempt to the error.
        message_id: The unique id, which a stored copy has too; for a batch, those of its messages,
            joined by commas; None if no id was made yet.
        may_be_stored: Whether an attempt may have stored it: the reply was lost or late. If False,
            it is certain that the message is not stored.
    """

    #: The next step, as the last line of the text.
    hint: ClassVar[str] = ""

    def __init__(
        self,
        topic: str,
        attempts: Sequence[Attempt],
        elapsed: float,
        message_id: str | None = None,
    ) -> None:
        """List the attempts; code, address and whether to retry are those of the last one."""
        may_be_stored = any(attempt.may_be_stored for attempt in attempts)
        outcome = "may have been stored: not confirmed" if may_be_stored else "was not stored"
        tries = f"{len(attempts)} attempt{'s' if len(attempts) != 1 else ''}"
        listed = "".join(f"\n  {number}. {attempt}" for number, attempt in enumerate(attempts, 1))
        super().__init__(
            f"{message_name(message_id)} for {topic!r} {outcome} after {tries} in {elapsed:.1f} s:"
            f"{listed}{self.hint}"
        )
        self.topic = topic
        self.attempts = tuple(attempts)
        self.elapsed = elapsed
        self.message_id = message_id
        self.may_be_stored = may_be_stored
        if attempts:
            error = attempts[-1].error
            self.code = error.code
            self.address = attempts[-1].address
            self.retryable = error.retryable


def message_name(message_id: str | None) -> str:
    """Return how texts name a message or a batch: by its id, or that of its first message."""
    if message_id is None:
        return "a message"
    first, *others = message_id.split(",")
    return f"a batch of message {first} and {len(others)} more" if others else f"message {first}"


class SendTimedOut(SendFailed, TimeoutError):
    """The deadline passed before a broker confirmed that it stored a message."""

    code = 10002
    retryable = True
    hint = "\n  Give it more time with timeout=, or look at the brokers with `downrange doctor`."


class SendUnreachable(SendFailed, ConnectionError):
    """No broker could be reached; nothing is stored."""

    hint = (
        "\n  These addresses come from the name server; `downrange doctor` shows which of them "
        "are reachable from here."
    )


class SendNotPermitted(SendFailed, PermissionError):
    """Brokers do not allow the send: the topic's permission, or the access check."""

    hint = "\n  Check the access key and its rights, and the topic with `downrange topic show`."


class BatchFailed(SendFailed):
    """Only a part of a list of messages was sent.

    Attributes:
        stored: The part that is stored: a receipt per request, and how many messages each carried.
        unsent: The messages of the request that failed; those after it were not tried.
        may_be_stored: Whether the request that failed may have stored its messages.
    """

    def __init__(
        self, error: RocketMQError, *, stored: BatchReceipt, unsent: Sequence[Message]
    ) -> None:
        """Say what was stored, and what stopped the rest."""
        super().__init__(
            error.topic or "",
            getattr(error, "attempts", ()),
            getattr(error, "elapsed", 0.0),
            getattr(error, "message_id", None),
        )
        self.args = (
            f"{len(stored)} messages of a list were stored, then a request failed; those after it "
            f"were not sent: {error}",
        )
        self.code, self.address, self.retryable = error.code, error.address, error.retryable
        self.stored = stored
        self.unsent = tuple(unsent)


class TooManySends(RocketMQError, TimeoutError):
    """The limit of messages, or of their bytes, in flight is reached, and no reply came in time.

    The message was not sent.

    Attributes:
        limit: The option that sets the limit.
    """

    retryable = True

    def __init__(self, limit: str, value: int, waited: float | None) -> None:
        """Name the option, its value, and how long the send waited; None if it did not wait."""
        super().__init__(
            f"{limit}={value} is reached, and when_full='raise' does not wait; send more slowly, "
            "raise the limit, or use when_full='block'"
            if waited is None
            else f"{limit}={value} is reached, and no reply came within {waited:.3g} s; send more "
            "slowly, raise the limit, or give more time"
        )
        self.limit = limit


class SendForbidden(RocketMQError):
    """A hook refused to have this message sent."""


class RequestTimedOut(RocketMQError, TimeoutError):
    """A request message was stored, but no reply came in time."""

    code = 10006

    def __init__(self, topic: str, timeout: float) -> None:
        """Name the topic and the time."""
        super().__init__(
            f"a request was sent to {topic!r}, but no reply came within {timeout:g} s; is a "
            "consumer of that topic running and does it reply?"
        )
        self.topic = topic
        self.timeout = timeout


class SettleError(RocketMQError):
    """A received message cannot be acknowledged, given back, or kept for longer.

    Attributes:
        message_id: The message.
    """

    def __init__(self, message_id: str, text: str) -> None:
        """Name the message and what is wrong."""
        super().__init__(text)
        self.message_id = message_id


class AlreadySettled(SettleError):
    """The message was acknowledged or given back before; nothing was done now.

    Attributes:
        outcome: What was done with it before.
    """

    def __init__(self, message_id: str, outcome: str) -> None:
        """Name the message and what was done with it."""
        super().__init__(message_id, f"message {message_id} {outcome} already; nothing was done")
        self.outcome = outcome


class ReceiptExpired(SettleError):
    """The time for which the message was invisible is over.

    Attributes:
        expired_at: When that was, as text.
    """

    def __init__(self, message_id: str, expired_at: str) -> None:
        """Name the message and the end of its time."""
        super().__init__(
            message_id,
            f"message {message_id} was invisible to others until {expired_at}, and this is later: "
            "it is delivered again, to any member of the group.\n  Receive with a longer "
            "`invisible`, call extend() in time, or use processing(), which does so.",
        )
        self.expired_at = expired_at


class ReceiptMissing(SettleError):
    """The message is a copy, which has no receipt."""

    def __init__(self, message_id: str) -> None:
        """Name the message."""
        super().__init__(
            message_id,
            f"this is a copy of message {message_id}, made by pickle, copy or replace: settle the "
            "object that receive() returned. Until then, the message is delivered again when its "
            "time is over.",
        )


class ClosedUnsettled(SettleError):
    """The consumer was closed before the message was settled.

    Attributes:
        visible_at: When the message is delivered again, as text.
    """

    def __init__(self, message_id: str, visible_at: str) -> None:
        """Name the message and when it is delivered again."""
        super().__init__(
            message_id,
            f"the consumer was closed before message {message_id} was settled: it is delivered "
            f"again at {visible_at}, to any member of the group",
        )
        self.visible_at = visible_at


class AcksFailed(SettleError):
    """Some messages of a list were not acknowledged.

    Attributes:
        failures: Each of them, with its error. The others were acknowledged.
        message_id: The first of them.
    """

    def __init__(self, failures: Sequence[tuple[ReceivedMessage, RocketMQError]]) -> None:
        """Take the messages and errors."""
        listed = "".join(
            f"\n  {message.message_id}: {error}" for message, error in failures[:_LISTED_MAX]
        )
        more = len(failures) - _LISTED_MAX
        if more > 0:
            listed += f"\n  and {more} more"
        super().__init__(
            failures[0][0].message_id, f"{len(failures)} messages were not acknowledged:{listed}"
        )
        self.failures = tuple(failures)
        self.retryable = any(error.retryable for _, error in failures)


class ServerError(RocketMQError):
    """A server refused a request. Codes worth catching have subclasses; see `server_error`.

    Attributes:
        code: The response code.
        remark: The server's explanation.
        address: The server.
    """

    def __init__(
        self, code: int, remark: str | None, address: str, topic: str | None = None
    ) -> None:
        """Take the facts from the reply."""
        explanation = f": {remark}" if remark else ""
        super().__init__(f"{address} answered with code {code}{explanation}{self.hint}")
        self.code = code
        self.remark = remark
        self.address = address
        self.topic = topic

    #: The next step, as a part of the text.
    hint: ClassVar[str] = ""

    @property
    def brief(self) -> str:
        """Code and remark, without the address."""
        return f"code {self.code}: {self.remark}" if self.remark else f"code {self.code}"


_SERVER_ERRORS: Final[dict[int, type[ServerError]]] = {}
#: Brokers refuse an SQL92 filter with code 1 and this text.
_NO_FILTER: Final = "does not support consumer to filter message by"
#: The code for a consumer group that a broker does not have, and how it names the group.
_NO_GROUP_CODE: Final = 26
_NO_GROUP: Final = re.compile(
    r"group \[(.+)\] does not exist|group not exist, (\S+)|Group (\S+) not exist!"
)
#: How a broker says that a client is not connected to it as a member of a group.
_NO_MEMBER: Final = re.compile(r"The Consumer <(.+)> <.*> not online")


def _for_codes(*codes: int) -> Callable[[type[ServerError]], type[ServerError]]:
    def declare(kind: type[ServerError]) -> type[ServerError]:
        assert not _SERVER_ERRORS.keys() & set(codes), "two classes for one code"
        _SERVER_ERRORS.update(dict.fromkeys(codes, kind))
        return kind

    return declare


def server_error(
    code: int, remark: str | None, address: str, topic: str | None = None
) -> ServerError:
    """Return the error for a response code; codes without a subclass give a `ServerError`."""
    kind = _SERVER_ERRORS.get(code, ServerError)
    if kind is ServerFailure and remark is not None and "AclException" in remark:
        kind = NoPermission  # 4.9 brokers answer a failed access check like this
    elif kind is ServerFailure and remark is not None and _NO_FILTER in remark:
        kind = SqlNotSupported
    error = kind(code, remark, address, topic)
    _add_next_step(error, remark or "")
    return error


def _add_next_step(error: ServerError, remark: str) -> None:
    """Say what to do where only the remark tells what is missing."""
    group = _NO_GROUP.search(remark) if error.code == _NO_GROUP_CODE else None
    if group is not None:
        name = next(filter(None, group.groups()))
        error.args = (
            f"{error.address} does not have group {name!r} (code {error.code}).\n"
            f"  Create it with `downrange group create {name}`.",
        )
    member = _NO_MEMBER.search(remark)
    if member is not None:
        step = f"`downrange group members {member[1]}` shows the connected members."
        error.args = (f"{error}.\n  {step}",)


@_for_codes(1)
class ServerFailure(ServerError):
    """The server failed, or refused for a reason that has no code (SYSTEM_ERROR)."""

    retryable = True


class SqlNotSupported(ServerFailure):
    """The broker has SQL92 filters switched off."""

    retryable = False
    hint = " (set enablePropertyFilter=true in the broker's settings; Apache's default is false)"


@_for_codes(2)
class SystemBusy(ServerError):
    """The server is overloaded (SYSTEM_BUSY)."""

    retryable = True
    hint = " (flow control: send more slowly, or to more brokers)"


@_for_codes(3)
class NotSupported(ServerError):
    """The server does not know this request (REQUEST_CODE_NOT_SUPPORTED)."""

    hint = " (an older server, or a name server's address where a broker's should be)"


class PopNotSupported(NotSupported):
    """The broker does not have pop consumption, which needs RocketMQ 5."""

    hint = (
        "\n  Pop consumption needs RocketMQ 5. With an older broker, use PullConsumer or "
        "PushConsumer."
    )


def not_a_name_server(remark: str | None, address: str) -> NotSupported:
    """Return the error for a server that does not know a request which every name server knows."""
    error = NotSupported(3, remark, address)
    reason = f": {remark.strip()}" if remark else ""
    error.args = (
        f"{address} is not a name server: it answered with code 3{reason}."
        "\n  Give the address of the name server, which usually has port 9876, not that of a "
        f"broker. `downrange doctor {address}` shows more.",
    )
    return error


@_for_codes(13)
class MessageRefused(ServerError):
    """The broker refuses this message (MESSAGE_ILLEGAL)."""


@_for_codes(14)
class ServiceNotAvailable(ServerError):
    """The broker cannot store now: shutting down, a slave, disk full (SERVICE_NOT_AVAILABLE)."""

    retryable = True


@_for_codes(16)
class NoPermission(ServerError, PermissionError):
    """Not allowed: the topic's or broker's permission, or the access check (NO_PERMISSION)."""

    hint = " (check the access key, its rights, and the topic's permission)"


@_for_codes(17)
class TopicNotFound(ServerError):
    """The topic does not exist on the broker (TOPIC_NOT_EXIST)."""

    retryable = True
    hint = " (create it with `downrange topic create`)"


@_for_codes(22, 208)
class NotFound(ServerError):
    """Nothing was found (QUERY_NOT_FOUND, NO_MESSAGE)."""


@_for_codes(501)
class QueueMoved(ServerError):
    """The broker does not serve this queue of a static topic, or no longer (NOT_LEADER_FOR_QUEUE).

    The client refreshes the route and asks again. So this error means that the name server still
    names the old broker.
    """

    retryable = True
    hint = " (a static topic's queue: the name server has no newer broker for it yet)"


class LinkError(RocketMQError):
    """A connection cannot carry the request."""


class LinkClosed(LinkError):
    """The connection was closed or lost before the request."""


class TooManyInFlight(LinkError):
    """The limit of requests that wait for a reply on one connection is reached."""

    def __init__(self, limit: int) -> None:
        """Name the limit that was reached."""
        super().__init__(f"{limit} requests are in flight on this connection, its limit")
        self.limit = limit


class TransportError(RocketMQError):
    """A peer did not answer.

    Attributes:
        address: "host:port".
        problem: What happened.
    """

    retryable = True

    def __init__(self, address: str, problem: str) -> None:
        """Name the peer and what happened."""
        super().__init__(f"{address}: {problem}")
        self.address = address
        self.problem = problem

    @property
    def brief(self) -> str:
        """What happened, without the address."""
        return self.problem


class ConnectFailed(TransportError, ConnectionError):
    """A peer cannot be reached; no request was sent."""

    code = 10001


class HostNotFound(ConnectFailed):
    """A host name has no address."""


class BrokerNotFound(ConnectFailed):
    """The name server has no broker, or not the one that a queue is on; nothing was sent.

    It is retryable: a broker that restarts is missing until it has registered again.

    Attributes:
        address: The name server.
    """

    code = 10003

    def __init__(self, address: str, problem: str, topic: str | None = None) -> None:
        """Name the name server, what is missing there, and the topic."""
        super().__init__(address, problem)
        self.topic = topic


class TlsFailed(ConnectFailed):
    """A peer does not speak TLS as required, or its certificate is not trusted."""


class ConnectionLost(TransportError, ConnectionError):
    """A connection ended before the reply came; the request may have been executed or not."""


class CallTimeout(TransportError, TimeoutError):
    """A reply did not come in time; the request may have been executed or not."""

    code = 10002

    def __init__(self, address: str, timeout: float) -> None:
        """Name the peer and the timeout in seconds."""
        super().__init__(address, f"no answer within {timeout:g} s")
        self.timeout = timeout


class CannotListen(RocketMQError):
    """A server cannot listen on its address.

    Attributes:
        address: "host:port".
        problem: Why not, and what to do.
    """

    def __init__(self, address: str, problem: str) -> None:
        """Name the address and the problem."""
        super().__init__(f"cannot listen on {address}: {problem}")
        self.address = address
        self.problem = problem


class StoreError(RocketMQError):
    """A store folder cannot be used."""


class StoreLocked(StoreError):
    """The store folder is in use by another process, or by another store of this process."""

    def __init__(self, folder: str) -> None:
        """Name the folder."""
        super().__init__(f"store folder {folder} is in use by another process; stop it first")
        self.folder = folder


class DiskFull(StoreError):
    """Nothing more can be written."""

    def __init__(self, path: str) -> None:
        """Name the file that could not be written."""
        super().__init__(f"no space left on the disk for {path}")
        self.path = path


class CorruptStore(StoreError):
    """A file of the store is damaged, or not what its name says.

    Attributes:
        path: The file, relative to the store's folder.
        position: The byte in the file.
        problem: What is wrong there.
    """

    def __init__(self, path: str, position: int, problem: str) -> None:
        """Name the file, the position in it, and the problem."""
        super().__init__(f"{path} at byte {position}: {problem}")
        self.path = path
        self.position = position
        self.problem = problem


class OffsetsInUse(StoreError):
    """Another process, or another object of this one, keeps the offsets of a group in a folder.

    Attributes:
        path: The lock file.
        group: The group.
        owner: The process id of the other one, or "" if it is not known.
    """

    def __init__(self, path: str, group: str, owner: str) -> None:
        """Name the lock file, the group and the process that has the lock."""
        by = f"process {owner}" if owner else "another process"
        super().__init__(
            f"the offsets of group {group!r} are in use by {by} ({path} is locked): close that "
            "consumer, or give each its own folder or instance"
        )
        self.path = path
        self.group = group
        self.owner = owner


class CorruptOffsets(StoreError):
    """A file with the offsets of a broadcast consumer is damaged.

    Attributes:
        path: The file.
        problem: What is wrong with it.
    """

    def __init__(self, path: str, problem: str) -> None:
        """Name the file and the problem."""
        super().__init__(
            f"{path} has no offsets that can be read: {problem}. Restore it from a copy, or remove "
            "it: the group then begins as a new one, at `start`"
        )
        self.path = path
        self.problem = problem


class WireError(RocketMQError):
    """Bytes break the protocol, or a value cannot be encoded.

    Attributes:
        where: The part of the input that is wrong, with its position if there is one.
        problem: What is wrong with it.
    """

    def __init__(self, where: str, problem: str) -> None:
        """Name the place and the problem."""
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class FrameTooLarge(WireError):
    """A frame is larger than the limit: one that a peer announces, or one to be sent."""

    def __init__(self, size: int, limit: int) -> None:
        """Name the frame's size, length word included, and the limit."""
        super().__init__("frame length", f"{size} bytes are more than the limit of {limit}")
        self.size = size
        self.limit = limit


class MalformedFrame(WireError):
    """A frame's length word or header word is impossible."""


class MalformedCommand(WireError):
    """A command's header cannot be read."""


class MissingField(MalformedCommand):
    """A header lacks a field that its command needs."""

    def __init__(self, header: str, field: str) -> None:
        """Name the header class and the field's name on the wire."""
        super().__init__(header, f"field '{field}' is missing")
        self.field = field


class InvalidField(MalformedCommand):
    """The text of a header field does not fit its type."""

    def __init__(self, header: str, field: str, problem: str) -> None:
        """Name the header class, the field's name on the wire, and the problem."""
        super().__init__(header, f"field '{field}': {problem}")
        self.field = field


class MalformedBody(WireError):
    """The body of a command or message cannot be read."""


class MalformedRecord(WireError):
    """A stored message cannot be read.

    Attributes:
        position: Where the record begins in the bytes that were read; all before it is valid.
    """

    def __init__(self, position: int, problem: str) -> None:
        """Name the record's first byte and the problem."""
        super().__init__(f"record at byte {position}", problem)
        self.position = position


class MalformedId(WireError):
    """A text is not a message id."""


class Unencodable(WireError):
    """A value to send does not fit the protocol."""


# ---- raised by handlers of consumers -------------------------------------------------------------


class Retry(Exception):  # not an error: a handler asks for another attempt
    """A handler raises it to have its message delivered again.

    Any other exception has the same effect, and is logged with its traceback.

    Attributes:
        after: Seconds until then; None for the usual time, which grows with each attempt.
    """

    def __init__(self, after: float | None = None) -> None:
        """Set the time.

        Raises:
            OptionError: It is not a number of seconds from 0 on.
        """
        super().__init__(after)
        self.after = _checked_delay(after)

    def __str__(self) -> str:
        return f"deliver the message again {_when(self.after)}"


class DeadLetter(Exception):
    """A handler raises it to make its message a dead letter, without further attempts.

    Attributes:
        reason: Why, for the log.
    """

    def __init__(self, reason: str) -> None:
        """Set the reason.

        Raises:
            OptionError: It is not a str, or blank.
        """
        if not _is_text(reason):
            raise OptionError(f"reason={reason!r} is not a text; say why, for the log")
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the message is to become a dead letter: {self.reason}"


class RetrySome(Exception):
    """A handler of batches raises it to have some messages delivered again; the others are done.

    Attributes:
        messages: Those to deliver again, in order. Without any, all messages are done.
        after: Seconds until then; None for the usual time, which grows with each attempt.
    """

    def __init__(self, messages: Iterable[ReceivedMessage], after: float | None = None) -> None:
        """Choose messages of the batch, and set the time.

        Raises:
            OptionError: It is not a list of messages, or the time is not a number from 0 on.
        """
        try:
            chosen: tuple[Any, ...] = tuple(messages)
        except TypeError:
            chosen = (None,)
        if not all(hasattr(message, "message_id") for message in chosen):
            kind = type(messages).__qualname__
            raise OptionError(
                f"messages must be a list of messages that the handler was given, not a {kind}"
                + (" of other things" if isinstance(messages, list | tuple) else "")
            )
        super().__init__(chosen, after)
        self.messages: tuple[ReceivedMessage, ...] = chosen
        self.after = _checked_delay(after)

    def __str__(self) -> str:
        return f"deliver {len(self.messages)} of the messages again {_when(self.after)}"

    def __repr__(self) -> str:
        """Return a short text for logs: the messages may be many, with large bodies."""
        count = len(self.messages)
        after = "" if self.after is None else f", after={self.after!r}"
        return f"{type(self).__name__}({count} message{'s' * (count != 1)}{after})"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _checked_delay(after: float | None) -> float | None:
    is_number = isinstance(after, int | float) and not isinstance(after, bool)
    if after is None or (is_number and 0 <= after < float("inf")):
        return after
    hint = "; give its total_seconds()" if hasattr(after, "total_seconds") else ""
    raise OptionError(f"after={after!r} is not a number of seconds, 0 or above{hint}")


def _when(after: float | None) -> str:
    return "after the usual time" if after is None else f"after {after:g} s"
