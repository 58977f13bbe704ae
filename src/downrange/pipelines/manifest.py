"""`_spark_metadata`, the list that Spark's file sink keeps of its files: read and changed.

Spark writes one list per batch, named by the batch's number. Every few batches the list ends in
`.compact` and holds all files so far; a reader takes the newest such list and the plain ones after
it. A file that no list names does not exist for readers: it is left over from an interrupted batch.

Here one such condensed list is replaced in one rename. So a reader sees the files before or after,
never a mixture. Any list that is not as expected is an error, and then nothing is changed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from downrange.errors import RocketMQError
from downrange.pipelines.folders import write_durably

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

FOLDER: Final = "_spark_metadata"
_NAME: Final = re.compile(r"(\d+)(\.compact)?")
_VERSION: Final = "v1"


class ManifestError(RocketMQError):
    """A list of a file sink is not as Spark 4 writes it; nothing was changed."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that a list names.

    Attributes:
        path: The path of the file.
        size: Its size in bytes.
        facts: The line of the list, decoded.
    """

    path: Path
    size: int
    facts: dict[str, Any]

    @property
    def partition(self) -> Path:
        """The folder of the file."""
        return self.path.parent

    def beside(self, name: str, size: int, modified_ms: int) -> ListedFile:
        """Return the entry of another file in the same folder."""
        # Only the name in the URL changes, so that Spark's escaping of the rest stays.
        address = str(self.facts["path"]).rsplit("/", 1)[0] + "/" + name
        facts = self.facts | {"path": address, "size": size, "modificationTime": modified_ms}
        return ListedFile(self.partition / name, size, facts)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The lists that readers use now.

    Attributes:
        condensed: The newest list that ends in `.compact`; None before the first.
        stable: Its files.
        recent: The files of the batches after it.
    """

    condensed: Path | None
    stable: tuple[ListedFile, ...]
    recent: tuple[ListedFile, ...]

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """All files that exist for a reader."""
        return self.stable + self.recent


def lake_files(output: str | Path) -> list[Path]:
    """Return the files of a lake, for readers that do not use Spark's list.

    DuckDB, PyArrow and others see every file in the folders, also those of an interrupted batch.
    Give them this list.

    Raises:
        ManifestError: The folder has no list, or one that cannot be read.
    """
    return [one.path for one in read_manifest(Path(output)).files]


def read_manifest(output: Path) -> Manifest:
    """Read the lists of a sink's output, as Spark's own readers do.

    Raises:
        ManifestError: There is no list, one is missing, or one is not as Spark 4 writes it.
    """
    folder = output / FOLDER
    lists: dict[int, Path] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        # If both kinds exist for a batch, the condensed one counts.
        if match and (match[2] or int(match[1]) not in lists):
            lists[int(match[1])] = path
    if not lists:
        raise ManifestError(
            f"{output} has no {FOLDER}: it is not the output of a lake, or is empty"
        )
    whole = [number for number, path in lists.items() if path.name.endswith(".compact")]
    first = max(whole, default=-1)
    plain = range(first + 1, max(lists) + 1)
    if missing := [number for number in plain if number not in lists]:
        raise ManifestError(f"{folder}: the list of batch {missing[0]} is missing")
    return Manifest(
        condensed=lists[first] if whole else None,
        stable=_read_list(lists[first]) if whole else (),
        recent=tuple(one for number in plain for one in _read_list(lists[number])),
    )


def _read_list(path: Path) -> tuple[ListedFile, ...]:
    version, *lines = path.read_text(encoding="utf-8").splitlines()
    if version != _VERSION:
        raise ManifestError(
            f"{path} has version {version[:20]!r}, but only {_VERSION!r} is supported"
        )
    return tuple(_read_line(path, line) for line in lines if line)


def _read_line(path: Path, line: str) -> ListedFile:
    try:
        facts: dict[str, Any] = json.loads(line)
        address = urlsplit(str(facts["path"]))
        size, action = int(facts["size"]), facts["action"]
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path}: invalid line: {line[:200]!r}") from error
    if action != "add" or address.scheme != "file":
        raise ManifestError(f"{path}: invalid line: {line[:200]!r}")
    return ListedFile(Path(unquote(address.path)), size, facts)


def replace_files(
    manifest: Manifest, gone: Collection[Path], added: Iterable[ListedFile]
) -> Manifest:
    """Replace files in the list, atomically for all readers.

    No other process may write the sink's output at the same time.

    Args:
        manifest: The current lists.
        gone: Files to remove from the condensed list.
        added: Files to add; they must exist already.

    Returns:
        The new manifest.
    """
    assert manifest.condensed is not None
    stable = [one for one in manifest.stable if one.path not in gone]
    assert len(stable) + len(gone) == len(manifest.stable)
    stable += added
    lines = [json.dumps(one.facts, separators=(",", ":"), ensure_ascii=False) for one in stable]
    # Hadoop keeps a checksum file beside a local file. With the old checksum the new list would
    # look damaged; without one nothing is checked. So the checksum is removed first.
    checksum = manifest.condensed.with_name(f".{manifest.condensed.name}.crc")
    checksum.unlink(missing_ok=True)
    write_durably(manifest.condensed, "\n".join([_VERSION, *lines]))
    return Manifest(manifest.condensed, tuple(stable), manifest.recent)
