"""The first and last code of every request: Host header, method, size, and the response's headers.

The Host header is checked against DNS rebinding: a hostile site may point its own name at this
address, but then its name is in the header. An IP address or `localhost` cannot be such a name.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from downrange.console import limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_METHODS: Final = ("GET", "HEAD", "POST")
_LENGTH_DIGITS_MAX: Final = 20


class Guard:
    """ASGI middleware around the whole console.

    Args:
        app: The console.
        hosts: Names that the Host header may have, besides `localhost` and IP addresses.
        is_https: Whether browsers may be told to use HTTPS only.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = (), *, is_https: bool = False) -> None:
        self._app = app
        self._hosts = {"localhost", *(name.lower().rstrip(".") for name in hosts)}
        self._headers = {name.encode(): value.encode() for name, value in _HEADERS.items()}
        if is_https:
            self._headers[b"strict-transport-security"] = b"max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # uvicorn answers a web socket that is not accepted with 403

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in self._headers.items() if name not in given),
                ]
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        await self._app(scope, _limited(receive), send_guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self._is_allowed(hosts[0].decode("latin-1")):
            return PlainTextResponse(
                "The Host header names another site. If the console is reached by this name, "
                "start it with --allow-host NAME.\n",
                400,
            )
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > limits.HEADER_BYTES_MAX:
            text = f"Address and headers are larger than {limits.HEADER_BYTES_MAX:,} bytes.\n"
            return PlainTextResponse(text, 431, {"connection": "close"})
        if scope["method"] not in _METHODS:
            return PlainTextResponse(
                "Only GET, HEAD and POST.\n", 405, {"allow": "GET, HEAD, POST"}
            )
        length = headers.get(b"content-length", [b"0"])[0]
        # int() refuses some thousand digits with an error of its own.
        is_number = length.isdigit() and len(length) <= _LENGTH_DIGITS_MAX
        if not is_number or int(length) > limits.FORM_BYTES_MAX:
            return too_large()
        return None

    def _is_allowed(self, host: str) -> bool:
        name = host_name(host)
        return name is not None and (name in self._hosts or _is_address(name))


def host_name(host: str) -> str | None:
    """Return the name of a Host header without port and brackets; None if it is malformed."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or not _is_address(name):
            return None
        port = port.removeprefix(":")
    else:
        name, _, port = host.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return None
    return name.lower().rstrip(".") or None


def _is_address(name: str) -> bool:
    if "%" in name:
        return False  # a zone, which browsers do not send, may be any text
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _limited(receive: Receive) -> Receive:
    """Return a `receive` that refuses a body which grows beyond the limit."""
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limits.FORM_BYTES_MAX:
            raise HTTPException(413)
        return message

    return limited


def too_large() -> PlainTextResponse:
    """Return the answer to a form that is too large."""
    text = f"The form is larger than {limits.FORM_BYTES_MAX:,} bytes.\n"
    return PlainTextResponse(text, 413, {"connection": "close"})
