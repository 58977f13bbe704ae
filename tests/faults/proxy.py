"""A proxy that cuts connections, delays replies, or stops forwarding.

A broker that listens on 127.0.0.1 with `advertised_host="127.0.0.2"` directs its clients to the
same port of the other address, where a proxy listens:

    with Cluster(broker=BrokerOptions(advertised_host=OUTSIDE)) as cluster:
        with proxy_before(cluster.brokers[0]) as proxy:
            ...
"""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Self

from downrange.addresses import split_address

if TYPE_CHECKING:
    from collections.abc import Callable

#: The address that brokers advertise; also a loopback address of this machine.
OUTSIDE = "127.0.0.2"


class FaultyProxy:
    """Forwards bytes in both directions, with the faults that a test sets.

    Args:
        target: The address to forward to.
        listen_on: The address to listen on; by default a free port of 127.0.0.1.

    Attributes:
        address: Its own address.
        reply_delay: The delay of each chunk of a reply, in seconds. A change ends those that run.
        accepted: The number of connections so far.
        held: The number of chunks that arrived while it was silent.
    """

    def __init__(self, target: str, listen_on: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = split_address(target)
        self._listener = socket.create_server(listen_on)
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self.accepted = 0
        self.held = 0
        self._reply_delay = 0.0
        self._delays = threading.Condition()
        self._is_over = threading.Event()
        self._flows = threading.Event()
        self._flows.set()
        #: The body of the request whose reply is cut, and after how many bytes.
        self._doomed: tuple[bytes, int] | None = None
        #: Connection to a client -> how many bytes may still be sent to it.
        self._left: dict[socket.socket, int] = {}
        self._open: set[socket.socket] = set()
        self._forgotten: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        """Begin."""
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        """Cut all connections and stop."""
        self._is_over.set()
        self._flows.set()
        self.reply_delay = 0.0
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    # ---- faults ------------------------------------------------------------------------------

    @property
    def reply_delay(self) -> float:
        """See the class."""
        return self._reply_delay

    @reply_delay.setter
    def reply_delay(self, seconds: float) -> None:
        with self._delays:
            self._reply_delay = seconds
            self._delays.notify_all()

    def cut(self) -> None:
        """Close all connections; new ones are served."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut_reply_to(self, body: bytes, *, after: int) -> None:
        """Forward one request with this body and this many bytes of its reply, then cut."""
        self._doomed = (body, after)

    def fall_silent(self) -> None:
        """Stop forwarding; the connections stay open, so neither side notices."""
        self._flows.clear()

    def recover(self) -> None:
        """Forward the held bytes, and all later ones."""
        self._flows.set()

    def forget_connections(self) -> None:
        """Stop forwarding on the existing connections for good; new ones are served.

        This is what a gateway does that dropped them from its tables.
        """
        self._forgotten |= self._open

    # ---- internals ---------------------------------------------------------------------------

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._start(partial(self._serve, client))

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            server = socket.create_connection(self._target, timeout=10)
            with server:
                for one in (client, server):
                    one.settimeout(None)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open |= {client, server}
                requests = threading.Thread(target=self._pass_on, args=(client, server, False))
                requests.start()
                self._pass_on(server, client, True)
                requests.join(10)
                self._open -= {client, server}
                self._forgotten -= {client, server}

    def _delay(self) -> None:
        with self._delays:
            seconds = self._reply_delay
            self._delays.wait_for(lambda: self._reply_delay != seconds, seconds)

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_reply: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if is_reply:
                    self._delay()
                self.held += not self._flows.is_set()
                self._flows.wait()
                if source in self._forgotten:
                    continue
                if not is_reply and self._doomed is not None and self._doomed[0] in data:
                    self._left[source], self._doomed = self._doomed[1], None
                left = self._left.get(sink)
                sink.sendall(data[:left])
                if left is not None:
                    self._left[sink] = left - len(data)
                    if left <= len(data):
                        break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def proxy_before(advertised: str) -> FaultyProxy:
    """Return a proxy in front of a broker that advertises `OUTSIDE`."""
    host, port = split_address(advertised)
    assert host == OUTSIDE
    return FaultyProxy(f"127.0.0.1:{port}", (OUTSIDE, port))
