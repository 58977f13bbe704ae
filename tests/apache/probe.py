"""A minimal client: one JSON request and its reply, over a new connection.

It keeps the test bed independent of the code under test. Signing follows the first generation of
RocketMQ access control, which both releases accept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

GET_ROUTE = 105
TOPIC_NOT_EXIST = 17

# Seconds for each step; a busy machine may pause a server for some of them.
_TIMEOUT = 30.0

# From this version on, a name server encodes routes as standard JSON.
_VERSION = 401


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer: response code, remark, header fields and body."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes


def call(
    address: str,
    code: int,
    fields: Mapping[str, str],
    *,
    body: bytes = b"",
    tls: ssl.SSLContext | None = None,
    access_key: str | None = None,
    secret_key: str = "",
    timeout: float = _TIMEOUT,
) -> Answer:
    """Send one request and return its answer.

    Args:
        address: "host:port" of a name server or broker.
        code: Request code.
        fields: Header fields.
        body: Request body.
        tls: Use TLS with this context.
        access_key: Sign the request for this account.
        secret_key: The account's secret.
        timeout: Seconds for each step.

    Raises:
        OSError: The server cannot be reached, closed the connection or was too slow.
    """
    sent = dict(fields)
    if access_key is not None:
        sent["AccessKey"] = access_key
        sent["Signature"] = sign(sent, body, secret_key)
    header = json.dumps(
        {"code": code, "extFields": sent, "flag": 0, "language": "OTHER", "opaque": 1}
        | {"serializeTypeCurrentRPC": "JSON", "version": _VERSION}
    ).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout) as plain:
        connection = tls.wrap_socket(plain) if tls else plain
        with connection:
            connection.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)))
            connection.sendall(header + body)
            (length,) = struct.unpack(">i", _read(connection, 4))
            return _parse(_read(connection, length))


def sign(fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """Return the signature of a request: values in the order of their keys, then the body."""
    content = "".join(fields[key] for key in sorted(fields) if key != "Signature").encode() + body
    return base64.b64encode(hmac.digest(secret_key.encode(), content, hashlib.sha1)).decode()


def route(
    name_server: str, topic: str, *, tls: ssl.SSLContext | None = None, timeout: float = _TIMEOUT
) -> dict[str, list[str]]:
    """Return the broker addresses by broker name that serve a topic; empty when there is none."""
    answer = call(name_server, GET_ROUTE, {"topic": topic}, tls=tls, timeout=timeout)
    if answer.code != 0:
        return {}
    found: Any = json.loads(answer.body)
    return {
        broker["brokerName"]: list(broker["brokerAddrs"].values())
        for broker in found["brokerDatas"]
    }


def _parse(frame: bytes) -> Answer:
    header_length = struct.unpack_from(">i", frame)[0] & 0xFFFFFF
    header: Any = json.loads(frame[4 : 4 + header_length])
    return Answer(
        code=header["code"],
        remark=header.get("remark") or "",
        fields=header.get("extFields") or {},
        body=frame[4 + header_length :],
    )


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError(f"the server closed the connection after {len(data)} bytes")
        data += chunk
    return bytes(data)
