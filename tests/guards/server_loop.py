"""A simulated name server and broker without network, and without code of the package.

They have one topic with four queues, and reply to a request before its write returns. So they add
nothing to the cost of the client, and which replies arrive together does not depend on sockets.
"""

from __future__ import annotations

import asyncio
import re
import socket
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from downrange.client.drivers.dialer import Dialer

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC: Final = "guarded"
NAME_SERVER: Final = "127.0.0.1:9876"

_WORDS: Final = Struct(">ii")
_MEMBERS: Final = re.compile(rb'^\{"code":(\d+).*"flag":(\d+).*"opaque":(\d+)', re.DOTALL)
_QUEUE: Final = re.compile(rb'"e":"(\d+)"')
_ONEWAY: Final = 2
_GET_ROUTE: Final = 105
_ROUTE: Final = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"a","cluster":"c"}],'
    b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"writeQueueNums":4,'
    b'"topicSysFlag":0}]}'
)
_STORED: Final = (
    b'{"msgId":"0A00000200002A9F00000000000004D2","queueId":"%d","queueOffset":"1234",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"}'
)


def answers_to(data: bytes) -> bytes:
    """Return the replies to complete requests, one after the other."""
    replies: list[bytes] = []
    at = 0
    while at < len(data):
        length, header_bytes = _WORDS.unpack_from(data, at)
        header = data[at + 8 : at + 8 + header_bytes]
        at += 4 + length
        found = _MEMBERS.match(header)
        assert found is not None, header
        code, flag, request_id = map(int, found.groups())
        if flag & _ONEWAY:
            continue
        queue = _QUEUE.search(header)
        fields = b"{}" if queue is None else _STORED % int(queue[1])
        replies.append(_reply(request_id, fields, _ROUTE if code == _GET_ROUTE else b""))
    return b"".join(replies)


def _reply(request_id: int, fields: bytes, body: bytes) -> bytes:
    header = (
        b'{"code":0,"extFields":%b,"flag":1,"language":"JAVA","opaque":%d,'
        b'"serializeTypeCurrentRPC":"JSON","version":515}' % (fields, request_id)
    )
    return _WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


class AnsweringSocket(socket.socket):
    """A blocking socket that already holds the replies to what is sent."""

    def __init__(self) -> None:
        near, self._far = socket.socketpair()
        super().__init__(near.family, near.type, near.proto, near.detach())

    def send(self, data: Any, flags: int = 0, /) -> int:
        self._far.sendall(answers_to(bytes(data)))
        return len(data)

    def close(self) -> None:
        self._far.close()
        super().close()


class AnsweringTransport(asyncio.Transport):
    """A transport on which the replies arrive in the next turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self._loop.call_soon(self._protocol.data_received, answers_to(bytes(data)))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)


class AnsweringDialer(Dialer):
    """Connects to the simulated servers."""

    def connect(self, address: str, within: float) -> socket.socket:
        return AnsweringSocket()

    async def open(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Callable[[], asyncio.Protocol],
        address: str,
    ) -> None:
        connection = protocol()
        connection.connection_made(AnsweringTransport(loop, connection))
