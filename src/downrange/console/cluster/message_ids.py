"""Messages by an id that a visitor gave.

The offset id of a message contains the address of its broker, and a client asks that address. An id
that was made up could so lead the console, with its account, to any server that it can reach. So
only brokers of the topic are asked.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from downrange.console.cluster.problems import NotABroker
from downrange.errors import MalformedId
from downrange.wire.ids import parse_offset_id

if TYPE_CHECKING:
    from downrange import AsyncAdmin, ReceivedMessage

_PORT_MAX: Final = 65_535


async def find_message(
    admin: AsyncAdmin, topic: str, message_id: str, *, decode_body: bool = True
) -> ReceivedMessage:
    """Return a message of a topic by either id.

    Raises:
        NotABroker: The id names a server that is not a broker of the topic.
        NotFound: It does not exist.
        RouteNotFound: The topic does not exist.
        RocketMQError: A server did not answer.
    """
    await check_place(admin, topic, message_id)
    return await admin.view_message(topic, message_id, decode_body=decode_body)


async def check_place(admin: AsyncAdmin, topic: str, message_id: str) -> None:
    """Check that the server that an offset id names is a broker of the topic.

    Raises:
        NotABroker: It is not.
        RouteNotFound: The topic does not exist.
    """
    route = await admin.topic_route(topic)
    try:
        place = parse_offset_id(message_id)
    except MalformedId:
        return
    if not 0 < place.port <= _PORT_MAX:
        return  # a unique id, as the client reads it
    for replicas in route.brokers.values():
        for address in replicas.values():
            host, _, port = address.rpartition(":")
            if port == str(place.port) and place.host in await _addresses(host.strip("[]")):
                return
    raise NotABroker(message_id, f"{place.host}:{place.port}", topic)


async def _addresses(host: str) -> set[str]:
    """Return the addresses of a host; a broker may be registered by a name."""
    try:
        return {str(ip_address(host))}
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(address[0]) for *_, address in found}
