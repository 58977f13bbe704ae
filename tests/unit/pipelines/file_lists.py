"""Lists of files as Spark's file sink writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def line(folder: Path, name: str, size: int = 10) -> str:
    """Return the line of a file as Spark writes it."""
    day = folder / "topic=a%25b" / "date=2026-01-02"
    return json.dumps(
        {
            "path": f"file://{day}/{name}".replace("%", "%25"),
            "size": size,
            "isDir": False,
            "modificationTime": 1,
            "blockReplication": 1,
            "blockSize": 33554432,
            "action": "add",
        },
        separators=(",", ":"),
    )


def write_list(folder: Path, name: str, *files: str) -> None:
    """Write a list with its checksum file."""
    lists = folder / "_spark_metadata"
    lists.mkdir(exist_ok=True)
    (lists / name).write_text("\n".join(["v1", *(line(folder, file) for file in files)]))
    (lists / f".{name}.crc").write_bytes(b"crc")
