"""The audit file: every action that a visitor tried here, as JSON lines.

A record is written and flushed before the visitor gets the answer. An action whose record cannot be
written is still answered, with the problem: the cluster has changed already.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import deque
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.console import limits
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_log: Final = logging.getLogger("downrange.console")
#: Commands and texts are cut to this length; a form may hold a body of megabytes.
_TEXT_MAX: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One action.

    Attributes:
        id: Finds the record again; random.
        at: When it ended, in UTC.
        visitor: Who did it.
        address: From where.
        action: What was done, such as "topic.create".
        target: The topic, group or message.
        command: The equal command line; empty if a field of the form was wrong.
        is_ok: Whether it worked.
        outcome: The result or the problem, as a sentence.
    """

    id: str
    at: datetime
    visitor: str
    address: str
    action: str
    target: str
    command: str
    is_ok: bool
    outcome: str


class AuditLog:
    """Writes and reads the audit file.

    Args:
        path: The file; its folder is created. None keeps records in memory only.

    Raises:
        OptionError: The file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.problem: str | None = None
        self._recent: deque[AuditRecord] = deque(maxlen=limits.AUDIT_ROWS_MAX)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        except OSError as error:
            raise OptionError(
                f"the audit file {path} cannot be written: {error.strerror}"
            ) from error
        self._recent.extend(_read_end(path))

    def add(self, record: AuditRecord) -> AuditRecord:
        """Write a record; return it as written, with long texts cut."""
        record = _cut(record)
        self._recent.append(record)
        if self.path is not None:
            try:
                self._write(self.path, msgspec.json.encode(record) + b"\n")
                self.problem = None
            except OSError as error:
                self.problem = f"{self.path}: {error.strerror}"
                _log.error("the audit file cannot be written: %s", self.problem)
        return record

    def find(self, record_id: str) -> AuditRecord | None:
        """Return a recent record by its id."""
        return next((each for each in reversed(self._recent) if each.id == record_id), None)

    def newest(self) -> Sequence[AuditRecord]:
        """Return the recent records, the newest first."""
        return tuple(reversed(self._recent))

    def _write(self, path: Path, line: bytes) -> None:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size + len(line) > limits.AUDIT_FILE_BYTES:
                path.replace(path.with_name(path.name + ".1"))
                os.close(file)
                file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, line)
            os.fdatasync(file)
        finally:
            os.close(file)


def new_record_id() -> str:
    """Return an id for a record."""
    return secrets.token_hex(8)


def _cut(record: AuditRecord) -> AuditRecord:
    def short(text: str) -> str:
        return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"

    return AuditRecord(
        id=record.id,
        at=record.at,
        visitor=short(record.visitor),
        address=record.address,
        action=record.action,
        target=short(record.target),
        command=short(record.command),
        is_ok=record.is_ok,
        outcome=short(record.outcome),
    )


def _read_end(path: Path) -> list[AuditRecord]:
    """Read the last records; lines that are torn or not ours are skipped."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limits.AUDIT_BYTES_READ))
        lines = file.read().splitlines()
    records: list[AuditRecord] = []
    for line in lines[-limits.AUDIT_ROWS_MAX :]:
        try:
            records.append(msgspec.json.decode(line, type=AuditRecord))
        except msgspec.DecodeError:
            continue
    return records
