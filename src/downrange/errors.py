"""The exception tree of Downrange.

Base classes end in `Error`, leaves name the event. An error carries its facts as fields, so that a
program can act on them, and says in its text what was wrong and where.

    RocketMQError
    ├── OptionError (ValueError)       a setting or argument makes no sense
    │   └── InvalidMessage             a message breaks a rule; nothing was sent
    ├── MissingExtra (ImportError)     a feature needs an optional package
    ├── ClientStateError               a client, producer or consumer cannot do it now
    │   ├── NotStarted
    │   ├── ClientClosed
    │   ├── GroupTaken                 the client has a member of that group already
    │   └── ForkedClient               it was made before this process was forked
    ├── NoNameServer                   no address of a name server is known
    ├── CheckFailed                    a look at the network found something; lists all of it
    ├── RouteNotFound                  a topic has no queues to use
    ├── SendFailed                     a message was not stored; lists every attempt
    │   ├── SendTimedOut (TimeoutError)
    │   ├── SendUnreachable (ConnectionError)    no broker could be reached
    │   ├── SendNotPermitted (PermissionError)   topic's permission, or access check
    │   └── BatchFailed                a part of a list was sent; says which
    ├── TooManySends (TimeoutError)    back-pressure: no room came free in time
    ├── SendForbidden                  a hook said no
    ├── RequestTimedOut (TimeoutError)  a request message was sent, no reply came
    ├── ServerError                    a server refused; code, remark, address
    │   ├── ServerFailure              code 1
    │   ├── SystemBusy                 code 2, flow control
    │   ├── NotSupported               code 3
    │   ├── MessageRefused             code 13
    │   ├── ServiceNotAvailable        code 14
    │   ├── NoPermission (PermissionError)  code 16, or an access check that failed
    │   ├── TopicNotFound              code 17
    │   └── NotFound                   codes 22, 208
    ├── LinkError                      a connection cannot take the call
    │   ├── LinkClosed
    │   └── TooManyInFlight
    ├── TransportError                 a peer did not answer
    │   ├── ConnectFailed (ConnectionError)   it cannot be reached; nothing was asked
    │   │   ├── HostNotFound           its name has no address
    │   │   └── TlsFailed              it does not speak TLS as demanded, or is not trusted
    │   ├── ConnectionLost (ConnectionError)  it may have done what was asked, or not
    │   └── CallTimeout (TimeoutError)        the same
    ├── CannotListen                   a server's address cannot be had
    ├── StoreError                     a store folder cannot be used
    │   ├── StoreLocked                another process has it
    │   ├── DiskFull                   nothing more can be written
    │   └── CorruptStore               a file is not what it should be
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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.model import Attempt, BatchReceipt, Message


class RocketMQError(Exception):
    """Base of every error that Downrange raises on purpose.

    Attributes:
        retryable: Whether the same call may well succeed a moment later.
        code: The protocol's number for it; Java's client numbers from 10001 on, or None.
        address: The "host:port" that it is about, or None.
        topic: The topic that it is about, or None.
    """

    retryable: bool = False
    code: int | None = None
    address: str | None = None
    topic: str | None = None

    @property
    def brief(self) -> str:
        """What happened, for a list that names the address already."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take facts and make the text of them, so a copy must not go through them.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[RocketMQError], args: tuple[Any, ...], facts: dict[str, Any]
) -> RocketMQError:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError's __new__ leaves them to __init__
    error.__dict__.update(facts)
    return error


class OptionError(RocketMQError, ValueError):
    """A setting or an argument makes no sense."""


class InvalidMessage(OptionError):
    """A message breaks a rule of the protocol; nothing was sent."""

    code = 13


class MissingExtra(RocketMQError, ImportError):
    """A feature needs packages that only an extra installs."""

    def __init__(self, feature: str, extra: str) -> None:
        """Name the feature that was asked for and the extra that brings it."""
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
        """Name the thing."""
        super().__init__(f"{what} is not started: use it in a with statement, or call start()")


class ClientClosed(ClientStateError):
    """It was closed."""

    def __init__(self, what: str) -> None:
        """Name the thing."""
        super().__init__(f"{what} is closed; make a new one")


class GroupTaken(ClientStateError):
    """The client has a member of this group already."""

    def __init__(self, kind: str, group: str) -> None:
        """Name the kind of member and the group."""
        super().__init__(
            f"this client has a {kind} of group {group!r} already; close that one first, use "
            "another group, or give each its own client"
        )
        self.group = group


class ForkedClient(ClientStateError):
    """It was started before this process was forked; connections and threads do not come along."""

    def __init__(self, what: str) -> None:
        """Name the thing."""
        super().__init__(
            f"{what} was started before this process was forked; make a new one in the child, "
            "for example in a post-fork hook of the web server"
        )


class NoNameServer(RocketMQError):
    """No address of a name server is known."""

    code = 10004


def no_name_server_answered(failures: Sequence[TransportError]) -> TransportError:
    """Return one error that names every name server that was tried.

    Its class is that of all failures when they agree, and `ConnectFailed` otherwise.
    """
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else ConnectFailed
    error = kind.__new__(kind)
    TransportError.__init__(error, failures[0].address or "", failures[0].problem)
    tried = ", ".join(f"{failure.address} ({failure.problem})" for failure in failures)
    address = failures[0].address
    hints: dict[type[TransportError], str] = {
        HostNotFound: "Check the host's name.",
        TlsFailed: "Check the TLS settings, and that the servers speak TLS.",
        ConnectionLost: "Is it a name server, and does it want TLS?",
        CallTimeout: "Is it a name server, and is there a firewall in between?",
    }
    hint = hints.get(kind, "Is the cluster running? Start one here with `downrange serve`.")
    error.args = (
        f"no name server answered: {tried}.\n  {hint} `downrange doctor {address}` tells more.",
    )
    return error


class CheckFailed(RocketMQError):
    """A look at the network found that something is not as it should be.

    Attributes:
        findings: What failed, each a `downrange.client.flows.admin.doctor.Finding`.
    """

    def __init__(self, findings: Sequence[object]) -> None:
        """List the findings."""
        listed = "".join(f"\n  {number}. {finding}" for number, finding in enumerate(findings, 1))
        super().__init__(f"the network is not as it should be:{listed}")
        self.findings = tuple(findings)


class RouteNotFound(RocketMQError):
    """A topic has no queues to use.

    Attributes:
        topic: The topic.
        addresses: The name servers that were asked.
    """

    code = 10005

    def __init__(self, topic: str, addresses: Sequence[str], problem: str) -> None:
        """Name the topic, who was asked, what is wrong and what to do."""
        super().__init__(f"topic {topic!r} has no route at {', '.join(addresses)}{problem}")
        self.topic = topic
        self.addresses = tuple(addresses)


class SendFailed(RocketMQError):
    """A message was not stored, as far as the answers tell.

    After an attempt whose answer was lost it may be stored all the same.

    Attributes:
        topic: Where it should have gone.
        attempts: What was tried, in order: broker, address, queue, error, time.
        elapsed: How long it took in all, in seconds.
    """

    #: What to do about it, as the last line of the text.
    hint: ClassVar[str] = ""

    def __init__(self, topic: str, attempts: Sequence[Attempt], elapsed: float) -> None:
        """List the attempts; code, address and whether to retry are those of the last one."""
        tries = f"{len(attempts)} attempt{'s' if len(attempts) != 1 else ''}"
        listed = "".join(f"\n  {number}. {attempt}" for number, attempt in enumerate(attempts, 1))
        super().__init__(
            f"a message for {topic!r} was not stored after {tries} in {elapsed:.1f} s:{listed}"
            f"{self.hint}"
        )
        self.topic = topic
        self.attempts = tuple(attempts)
        self.elapsed = elapsed
        if attempts:
            error = attempts[-1].error
            self.code = error.code
            self.address = attempts[-1].address
            self.retryable = error.retryable


class SendTimedOut(SendFailed, TimeoutError):
    """The deadline passed before a message was stored, as far as the answers tell."""

    code = 10002
    retryable = True
    hint = "\n  Give it more time with timeout=, or look at the brokers with `downrange doctor`."


class SendUnreachable(SendFailed, ConnectionError):
    """No broker could be reached; nothing is stored."""

    hint = (
        "\n  The name server told these addresses; `downrange doctor` says which are reachable "
        "from here."
    )


class SendNotPermitted(SendFailed, PermissionError):
    """Brokers do not allow it: the topic's permission, or the access check."""

    hint = "\n  Check the access key and its rights, and the topic with `downrange topic show`."


class BatchFailed(SendFailed):
    """A list of messages was sent in part.

    Attributes:
        stored: What was stored before: a receipt per request, and how many messages they carried.
        unsent: The messages of the request that failed; those after it were not looked at.
    """

    def __init__(
        self, error: RocketMQError, *, stored: BatchReceipt, unsent: Sequence[Message]
    ) -> None:
        """Say what was stored, and what stopped the rest."""
        super().__init__(
            error.topic or "", getattr(error, "attempts", ()), getattr(error, "elapsed", 0.0)
        )
        self.args = (
            f"{len(stored)} messages of a list were stored, then a request failed, and the rest "
            f"was not sent: {error}",
        )
        self.code, self.address, self.retryable = error.code, error.address, error.retryable
        self.stored = stored
        self.unsent = tuple(unsent)


class TooManySends(RocketMQError, TimeoutError):
    """As many messages, or bytes of them, as allowed are on their way, and none came back in time.

    Attributes:
        limit: The option that set the limit.
    """

    retryable = True

    def __init__(self, limit: str, value: int, waited: float) -> None:
        """Name the option, its value, and how long was waited."""
        super().__init__(
            f"{limit}={value} is reached, and nothing came back within {waited:.3g} s; slow down, "
            "raise the limit, or give more time"
        )
        self.limit = limit


class SendForbidden(RocketMQError):
    """A hook said that this message must not be sent."""


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


class ServerError(RocketMQError):
    """A server refused a request. Classes of codes worth catching are found by `server_error`.

    Attributes:
        code: The response code.
        remark: What the server says about it.
        address: The server.
    """

    def __init__(
        self, code: int, remark: str | None, address: str, topic: str | None = None
    ) -> None:
        """Carry what the server said."""
        said = f": {remark}" if remark else ""
        super().__init__(f"{address} answered with code {code}{said}{self.hint}")
        self.code = code
        self.remark = remark
        self.address = address
        self.topic = topic

    #: What to do about it, as a part of the text.
    hint: ClassVar[str] = ""

    @property
    def brief(self) -> str:
        """What happened, for a list that names the address already."""
        return f"code {self.code}: {self.remark}" if self.remark else f"code {self.code}"


_SERVER_ERRORS: Final[dict[int, type[ServerError]]] = {}


def _for_codes(*codes: int) -> Callable[[type[ServerError]], type[ServerError]]:
    def declare(kind: type[ServerError]) -> type[ServerError]:
        assert not _SERVER_ERRORS.keys() & set(codes), "two classes for one code"
        _SERVER_ERRORS.update(dict.fromkeys(codes, kind))
        return kind

    return declare


def server_error(
    code: int, remark: str | None, address: str, topic: str | None = None
) -> ServerError:
    """Return the error for a response code; one of no special class is a plain `ServerError`."""
    kind = _SERVER_ERRORS.get(code, ServerError)
    if kind is ServerFailure and remark is not None and "AclException" in remark:
        kind = NoPermission  # 4.9 brokers answer so
    return kind(code, remark, address, topic)


@_for_codes(1)
class ServerFailure(ServerError):
    """The server failed at it, or refuses it without a code of its own (SYSTEM_ERROR)."""

    retryable = True


@_for_codes(2)
class SystemBusy(ServerError):
    """The server has too much to do (SYSTEM_BUSY)."""

    retryable = True
    hint = " (flow control: send more slowly, or to more brokers)"


@_for_codes(3)
class NotSupported(ServerError):
    """The server does not know this request (REQUEST_CODE_NOT_SUPPORTED)."""

    hint = " (an older server, or a name server's address where a broker's should be)"


@_for_codes(13)
class MessageRefused(ServerError):
    """The broker does not take this message (MESSAGE_ILLEGAL)."""


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
    """The topic does not exist there (TOPIC_NOT_EXIST)."""

    retryable = True
    hint = " (create it with `downrange topic create`)"


@_for_codes(22, 208)
class NotFound(ServerError):
    """Nothing was found (QUERY_NOT_FOUND, NO_MESSAGE)."""


class LinkError(RocketMQError):
    """A connection cannot take the call."""


class LinkClosed(LinkError):
    """The connection was closed, or broke, before the call."""


class TooManyInFlight(LinkError):
    """As many requests as the connection allows are waiting for their replies."""

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
        """What happened, for a list that names the address already."""
        return self.problem


class ConnectFailed(TransportError, ConnectionError):
    """A peer cannot be reached; nothing was asked of it."""

    code = 10001


class HostNotFound(ConnectFailed):
    """A host name has no address."""


class TlsFailed(ConnectFailed):
    """A peer does not speak TLS as demanded, or its certificate is not trusted."""


class ConnectionLost(TransportError, ConnectionError):
    """A connection ended before the answer came; what was asked may be done, or not."""


class CallTimeout(TransportError, TimeoutError):
    """An answer did not come in time; what was asked may be done, or not."""

    code = 10002

    def __init__(self, address: str, timeout: float) -> None:
        """Name the peer and how long was waited."""
        super().__init__(address, f"no answer within {timeout:g} s")
        self.timeout = timeout


class CannotListen(RocketMQError):
    """A server cannot listen where it was told to.

    Attributes:
        address: "host:port".
        problem: Why not, and what to do about it.
    """

    def __init__(self, address: str, problem: str) -> None:
        """Name the address and the problem."""
        super().__init__(f"cannot listen on {address}: {problem}")
        self.address = address
        self.problem = problem


class StoreError(RocketMQError):
    """A store folder cannot be used."""


class StoreLocked(StoreError):
    """Somebody else has the store folder: another process, or another store of this one."""

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
    """A file of the store is not what it should be.

    Attributes:
        path: The file, from the store's folder.
        position: Where in the file.
        problem: What is wrong there.
    """

    def __init__(self, path: str, position: int, problem: str) -> None:
        """Name the file, the position in it, and the problem."""
        super().__init__(f"{path} at byte {position}: {problem}")
        self.path = path
        self.position = position
        self.problem = problem


class WireError(RocketMQError):
    """Bytes break the protocol, or a value cannot be turned into bytes.

    Attributes:
        where: The part of the input that is wrong, with its position where there is one.
        problem: What is wrong with it.
    """

    def __init__(self, where: str, problem: str) -> None:
        """Name the place and the problem."""
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class FrameTooLarge(WireError):
    """A frame announces, or would have, more bytes than the limit."""

    def __init__(self, size: int, limit: int) -> None:
        """Name the frame's size with its length word, and the limit."""
        super().__init__("frame length", f"{size} bytes are more than the limit of {limit}")
        self.size = size
        self.limit = limit


class MalformedFrame(WireError):
    """A frame's length or header word cannot be true."""


class MalformedCommand(WireError):
    """A command's header cannot be read."""


class MissingField(MalformedCommand):
    """A header lacks a field that its command needs."""

    def __init__(self, header: str, field: str) -> None:
        """Name the header class and the field as it is called on the wire."""
        super().__init__(header, f"field '{field}' is missing")
        self.field = field


class InvalidField(MalformedCommand):
    """A header field's text cannot be read as its type."""

    def __init__(self, header: str, field: str, problem: str) -> None:
        """Name the header class, the field as it is called on the wire, and the problem."""
        super().__init__(header, f"field '{field}': {problem}")
        self.field = field


class MalformedBody(WireError):
    """A command's or message's body cannot be read."""


class MalformedRecord(WireError):
    """A stored message cannot be read.

    Attributes:
        position: Where the record begins in the bytes that were read; everything before is whole.
    """

    def __init__(self, position: int, problem: str) -> None:
        """Name the record's first byte and the problem."""
        super().__init__(f"record at byte {position}", problem)
        self.position = position


class MalformedId(WireError):
    """A text is no message id."""


class Unencodable(WireError):
    """A value of ours does not fit the protocol."""
