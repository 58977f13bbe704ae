"""The exception tree of Downrange.

Base classes end in `Error`, leaves name the event. An error carries its facts as fields, so that a
program can act on them, and says in its text what was wrong and where.

    RocketMQError
    ├── OptionError (ValueError)       a setting or argument makes no sense
    ├── MissingExtra (ImportError)     a feature needs an optional package
    ├── LinkError                      a connection cannot take the call
    │   ├── LinkClosed
    │   └── TooManyInFlight
    ├── TransportError                 a peer did not answer
    │   ├── ConnectFailed              it cannot be reached; nothing was asked
    │   ├── ConnectionLost             it may have done what was asked, or not
    │   └── CallTimeout (TimeoutError)  the same
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

from typing import Any


class RocketMQError(Exception):
    """Base of every error that Downrange raises on purpose."""

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


class MissingExtra(RocketMQError, ImportError):
    """A feature needs packages that only an extra installs."""

    def __init__(self, feature: str, extra: str) -> None:
        """Name the feature that was asked for and the extra that brings it."""
        super().__init__(f"{feature} needs the '{extra}' extra: pip install 'downrange[{extra}]'")
        self.feature = feature
        self.extra = extra


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

    def __init__(self, address: str, problem: str) -> None:
        """Name the peer and what happened."""
        super().__init__(f"{address}: {problem}")
        self.address = address
        self.problem = problem


class ConnectFailed(TransportError):
    """A peer cannot be reached; nothing was asked of it."""


class ConnectionLost(TransportError):
    """A connection ended before the answer came; what was asked may be done, or not."""


class CallTimeout(TransportError, TimeoutError):
    """An answer did not come in time; what was asked may be done, or not."""

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
