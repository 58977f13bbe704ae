"""Connections of the calling thread: write a request, read until its reply has arrived.

To wake another thread costs more than this whole exchange, so a thread that waits for a reply reads
it itself. A connection serves one call at a time. When none is free, many threads send at once;
their calls then go through the engine thread, where requests share one connection.

A connection on which a call failed is closed: its late reply is of no use.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.busy_poll import BusyWait
from downrange.errors import CallTimeout, ClientClosed, ConnectionLost
from downrange.wire.codes import HeaderCodec
from downrange.wire.link import Link, LinkBroken, ReplyArrived

if TYPE_CHECKING:
    from downrange.client.drivers.dialer import Dialer
    from downrange.client.flows.effects import Call, Clock
    from downrange.options import ClientOptions
    from downrange.wire.command import Command
    from downrange.wire.send_answers import StoredAnswer

_log = logging.getLogger("downrange.drivers")
_READ_BYTES: Final = 65_536
#: After a thread has found no free connection, all threads use the engine for so many seconds:
#: mixing threads that read with threads that are woken causes GIL contention.
_CROWDED: Final = 0.05


class BlockingConnection:
    """One connection, for one call at a time.

    The socket is non-blocking: with a timeout, Python makes two system calls per operation.
    """

    __slots__ = (
        *("_busy_wait", "_clock", "_link", "_poll", "_reads_answers", "_socket"),
        *("address", "used_at"),
    )

    def __init__(
        self,
        address: str,
        connected: socket.socket,
        clock: Clock,
        codec: HeaderCodec,
        busy_poll: float = 0.0,
        reads_answers: bool = False,
    ) -> None:
        self.address = address
        self.used_at = clock.now()
        self._clock = clock
        self._socket = connected
        self._reads_answers = reads_answers
        self._busy_wait = BusyWait(busy_poll) if busy_poll > 0 else None
        self._link: Link[None] = Link(codec=codec)
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        connected.settimeout(0)

    def is_usable(self) -> bool:
        """Return whether the connection is open and has no unread data."""
        return not self._poll.poll(0)

    def call(self, call: Call) -> Command | StoredAnswer | None:
        """Send a request and return its reply; None for a one-way request.

        Raises:
            ConnectionLost: The connection ended before the reply.
            CallTimeout: The reply did not arrive before the deadline.
            WireError: The command cannot be encoded.
        """
        link, deadline = self._link, call.deadline
        started = self.used_at = self._clock.now()
        data = link.oneway(call.command) if call.is_oneway else link.request(call.command, None)
        try:
            self._write(data, deadline)
            if call.is_oneway:
                return None
            while True:
                received = self._read(deadline)
                if not received:
                    raise ConnectionLost(self.address, "the server closed the connection")
                if self._reads_answers:
                    for _, answer in link.receive_answers(received):
                        return answer
                    received = b""
                for event in link.receive(received):
                    if type(event) is ReplyArrived:
                        return event.command
                    if type(event) is LinkBroken:
                        raise ConnectionLost(self.address, str(event.error))
        except TimeoutError as error:
            waited = round(self._clock.now() - started, 3)
            raise CallTimeout(self.address, waited) from error
        except ConnectionLost:
            raise
        except OSError as error:
            raise ConnectionLost(self.address, error.strerror or str(error)) from error

    def _write(self, data: bytes, deadline: float) -> None:
        """Send all bytes.

        Raises:
            TimeoutError: The peer did not read them before the deadline.
        """
        left: bytes | memoryview[int] = data
        while True:
            try:
                sent = self._socket.send(left)
            except BlockingIOError:
                sent = 0
            if sent == len(left):
                return
            left = memoryview(left)[sent:]
            self._poll.modify(self._socket, select.POLLOUT)
            try:
                self._wait(deadline)
            finally:
                self._poll.modify(self._socket, select.POLLIN)

    def _read(self, deadline: float) -> bytes:
        """Return the next bytes; none at the end of the stream.

        Raises:
            TimeoutError: Nothing arrived before the deadline.
        """
        if self._busy_wait is None or not self._busy_wait.poll(
            partial(self._poll.poll, 0), deadline - self._clock.now()
        ):
            self._wait(deadline)
        return self._socket.recv(_READ_BYTES)

    def _wait(self, deadline: float) -> None:
        left = deadline - self._clock.now()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise TimeoutError

    def abort(self) -> None:
        """Fail the call that another thread makes on it."""
        with contextlib.suppress(OSError):
            # `SSLSocket.shutdown` would remove the SSL object that the other thread reads with.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self._link.close()
        self._socket.close()


class TlsConnection(BlockingConnection):
    """One connection with TLS. Its socket has a timeout, as `poll` does not see decrypted bytes.

    It does not busy-poll.
    """

    __slots__ = ()

    def is_usable(self) -> bool:
        """Return whether the connection is open and has no unread data."""
        if super().is_usable():
            return True
        self._socket.settimeout(0)
        try:  # the unread data may be just a TLS session ticket
            self._socket.recv(1)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            pass
        return False

    def _write(self, data: bytes, deadline: float) -> None:
        self._limit(deadline)
        self._socket.sendall(data)

    def _read(self, deadline: float) -> bytes:
        self._limit(deadline)
        return self._socket.recv(_READ_BYTES)

    def _limit(self, deadline: float) -> None:
        left = deadline - self._clock.now()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


class BlockingConnections:
    """The connections of all threads: which are free, and how many there are to each server.

    Args:
        dialer: Opens connections.
        options: Limits and timeouts.
        clock: The time.
        reads_answers: Whether replies to sends may have their short form.
    """

    def __init__(
        self,
        dialer: Dialer,
        options: ClientOptions,
        clock: Clock,
        *,
        reads_answers: bool = False,
    ) -> None:
        self._dialer = dialer
        self._clock = clock
        self._per_address_max = options.sync_connections_max
        self._idle_timeout = options.idle_timeout
        self._codec = HeaderCodec.BINARY if options.header_codec == "binary" else HeaderCodec.JSON
        self._busy_poll = options.busy_poll
        self._reads_answers = reads_answers
        self._lock = threading.Lock()
        self._free: dict[str, list[BlockingConnection]] = {}
        self._used: set[BlockingConnection] = set()
        self._counts: dict[str, int] = {}
        #: Address -> until when threads use the engine instead.
        self._crowded_until: dict[str, float] = {}
        self._is_closed = False

    def call(self, call: Call, *, is_limited: bool = True) -> Command | StoredAnswer | None:
        """Make a call on a free connection, or on a new one.

        Args:
            call: The call.
            is_limited: Whether the limit of connections applies.

        Raises:
            NoneFree: As many connections as allowed are in use, or were a moment ago.
            TransportError: The call failed, or was late.
        """
        connection = self._lease(call, is_limited)
        try:
            reply = connection.call(call)
        except BaseException:
            self._drop(connection)
            raise
        with self._lock:
            self._used.discard(connection)
            if not self._is_closed:
                self._free[call.address].append(connection)
                return reply
        connection.close()
        return reply

    def counts(self) -> dict[str, int]:
        """Return the number of connections to each server."""
        with self._lock:
            return {address: count for address, count in self._counts.items() if count}

    def forget_threads(self) -> None:
        """Reset the lock and the connections in use in a forked child.

        The threads that held them exist only in the parent. To shut a connection down here would
        end it there.
        """
        self._lock = threading.Lock()
        self._used.clear()

    def close(self) -> None:
        """End all connections; calls in progress fail."""
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, {}
            for connection in self._used:
                connection.abort()
        for connections in free.values():
            for connection in connections:
                connection.close()

    def tidy(self) -> None:
        """Close idle connections."""
        oldest = self._clock.now() - self._idle_timeout
        with self._lock:
            old = [one for free in self._free.values() for one in free if one.used_at < oldest]
            for one in old:
                self._free[one.address].remove(one)
                self._counts[one.address] -= 1
        for one in old:
            one.close()

    def _lease(self, call: Call, is_limited: bool) -> BlockingConnection:
        address = call.address
        while True:
            with self._lock:
                if self._is_closed:
                    raise ClientClosed("the client")
                free = self._free.setdefault(address, [])
                if is_limited:
                    self._check_crowd(address, has_free=bool(free))
                if not free:
                    self._counts[address] = self._counts.get(address, 0) + 1
                    break
                connection = free.pop()
                self._used.add(connection)
            if connection.is_usable():
                return connection
            self._drop(connection)
        try:
            connected = self._dialer.connect(address, call.deadline - self._clock.now())
        except BaseException as error:
            with self._lock:
                self._counts[address] -= 1
            _log.debug("no connection to %s", error)
            raise
        _log.debug("connected to %s", address)
        kind = TlsConnection if isinstance(connected, ssl.SSLSocket) else BlockingConnection
        connection = kind(
            address, connected, self._clock, self._codec, self._busy_poll, self._reads_answers
        )
        with self._lock:
            self._used.add(connection)
            if self._is_closed:
                connection.abort()
        return connection

    def _check_crowd(self, address: str, *, has_free: bool) -> None:
        now = self._clock.now()
        if now < self._crowded_until.get(address, 0.0):
            raise NoneFree
        if not has_free and self._counts.get(address, 0) >= self._per_address_max:
            self._crowded_until[address] = now + _CROWDED
            raise NoneFree

    def _drop(self, connection: BlockingConnection) -> None:
        connection.close()
        with self._lock:
            self._used.discard(connection)
            self._counts[connection.address] -= 1


class NoneFree(Exception):
    """All connections that threads may use are in use; internal."""
