"""Static files, read once at the start, under an address that has a hash of their contents.

A request is looked up by name in a dict, so no path of a request ever reaches the file system.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

_FOLDER: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    kind: str
    tag: str


@cache
def shared_files() -> StaticFiles:
    """Return the static files of this process; they are read once."""
    return StaticFiles()


class StaticFiles:
    """All static files of the console."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        whole = hashlib.sha256()
        for path in sorted(_FOLDER.rglob("*")):
            if path.suffix in _KINDS:
                content = path.read_bytes()
                name = path.relative_to(_FOLDER).as_posix()
                whole.update(name.encode() + b"\0" + content)
                tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
                self._files[name] = _File(content, _KINDS[path.suffix], tag)
        self.version = whole.hexdigest()[:12]

    def address(self, name: str) -> str:
        """Return the address of a file; a `KeyError` means that there is none."""
        self._files[name]
        return f"/static/{self.version}/{name}"

    async def serve(self, request: Request) -> Response:
        """Answer a request for `/static/{version}/{name}`."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            return Response("There is no such file.\n", 404, media_type="text/plain")
        is_current = request.path_params["version"] == self.version
        headers = {"etag": file.tag, "cache-control": _FOR_EVER if is_current else "no-cache"}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers={**headers, "content-type": file.kind})
