"""The broker's tables on disk: which file holds which, and when they are written.

Two kinds. Topics and groups are promised to whoever changed them, so the reply waits until they
are saved, and for topics until the name servers know. Progress (offsets of groups, of delay levels,
of timed messages) is saved every few seconds; a crash repeats a little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from downrange.errors import CorruptStore, MalformedBody
from downrange.server.broker.scheduled import (
    delay_levels,
    timed_messages,
    timer_handover,
)
from downrange.server.broker.scheduled.timer_handover import TimerHandover
from downrange.server.broker.tables import group_offsets, group_table, topic_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.server.broker.state import BrokerState
    from downrange.store.files import Files


class Table(Protocol):
    """What can be saved."""

    @property
    def version(self) -> int:
        """How many changes there were."""
        ...

    def dump(self) -> bytes:
        """Write it."""
        ...

    def load(self, data: bytes, /) -> None:
        """Read it."""
        ...


class SavedTables:
    """Some tables of a broker, and what of them is saved.

    Args:
        files: The store's folder.
        tables: By their paths.
    """

    def __init__(self, files: Files, tables: dict[str, Table]) -> None:
        self._files = files
        self._tables = tables
        self._saved = {path: table.version for path, table in tables.items()}

    @property
    def is_changed(self) -> bool:
        """Whether there is something to save."""
        return any(table.version != self._saved[path] for path, table in self._tables.items())

    def load(self) -> None:
        """Read all files that are there, or else their backups.

        Raises:
            CorruptStore: A file and its backup cannot be read.
        """
        for path, table in self._tables.items():
            _load(self._files, path, table)
            self._saved[path] = table.version

    def changes(self) -> dict[str, bytes]:
        """Return the new contents of the files that must be written; they count as saved."""
        contents: dict[str, bytes] = {}
        for path, table in self._tables.items():
            if table.version != self._saved[path]:
                contents[path] = table.dump()
                self._saved[path] = table.version
        return contents

    def everything(self) -> dict[str, bytes]:
        """Return the contents of all files, changed or not; they count as saved."""
        self.forget(self._tables)
        return self.changes()

    def write(self, contents: dict[str, bytes]) -> None:
        """Write what `changes` returned; any thread may."""
        for path, data in contents.items():
            self._files.replace(path, data)

    def forget(self, contents: Iterable[str]) -> None:
        """Count what `changes` returned as not saved: writing it failed."""
        for path in contents:
            self._saved[path] = -1


def promised_tables(files: Files, state: BrokerState) -> SavedTables:
    """Return the tables whose changes are answered when they are saved."""
    return SavedTables(files, {topic_table.PATH: state.topics, group_table.PATH: state.groups})


def progress_tables(files: Files, state: BrokerState) -> SavedTables:
    """Return the tables that are saved now and then."""
    return SavedTables(
        files,
        {
            group_offsets.PATH: state.offsets,
            delay_levels.PATH: state.delays,
            timed_messages.PATH: state.timers,
            timer_handover.PATH: TimerHandover(state.timers),  # after those, whom it is about
        },
    )


_BACKUP: Final = ".bak"


def _load(files: Files, path: str, table: Table) -> None:
    problems: list[MalformedBody] = []
    for candidate in (path, f"{path}{_BACKUP}"):
        data = files.read_all(candidate)
        if not data:
            continue
        try:
            table.load(data)
        except MalformedBody as error:
            problems.append(error)
        else:
            return
    if problems:
        raise CorruptStore(path, 0, str(problems[0])) from problems[0]
