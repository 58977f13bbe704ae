"""The broker's tables on disk: which file holds which table, and when they are written.

There are two kinds:

- Confirmed tables: topics, groups, request modes, changed settings, batches popped in order, and
  offsets of popping groups that were set back.
  The reply to a change waits until the table is saved, and for topics until the name servers are
  informed.
- Progress tables: offsets of groups, of delay levels and of timed messages, and SQL92 filters. They
  are saved every few seconds; after a crash a little of this progress is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from downrange.errors import CorruptStore, MalformedBody
from downrange.server.broker import settings
from downrange.server.broker.pop import orders, rewinds
from downrange.server.broker.pop.rewinds import RewindProgress
from downrange.server.broker.scheduled import (
    delay_levels,
    timed_messages,
    timer_handover,
)
from downrange.server.broker.scheduled.timer_handover import TimerHandover
from downrange.server.broker.tables import (
    filter_table,
    group_offsets,
    group_table,
    request_modes,
    topic_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.server.broker.state import BrokerState
    from downrange.store.files import Files


class Table(Protocol):
    """A table that can be saved."""

    @property
    def version(self) -> int:
        """The number of changes so far."""
        ...

    def dump(self) -> bytes:
        """Return the contents of its file."""
        ...

    def load(self, data: bytes, /) -> None:
        """Read the contents of its file."""
        ...


class SavedTables:
    """Some tables of a broker, with the version of each that is saved.

    Args:
        files: The store's folder.
        tables: By path.
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
        """Read all files that exist; the backup of a file is used when the file is damaged.

        Raises:
            CorruptStore: Both a file and its backup are damaged.
        """
        for path, table in self._tables.items():
            _load(self._files, path, table)
            self._saved[path] = table.version

    def changes(self) -> dict[str, bytes]:
        """Return the contents of all files that changed; from now on they count as saved."""
        contents: dict[str, bytes] = {}
        for path, table in self._tables.items():
            if table.version != self._saved[path]:
                contents[path] = table.dump()
                self._saved[path] = table.version
        return contents

    def everything(self) -> dict[str, bytes]:
        """Return the contents of all files; from now on they count as saved."""
        self.mark_unsaved(self._tables)
        return self.changes()

    def write(self, contents: dict[str, bytes]) -> None:
        """Write what `changes` returned; callable from any thread."""
        for path, data in contents.items():
            self._files.replace(path, data)

    def mark_unsaved(self, contents: Iterable[str]) -> None:
        """Count these paths as not saved, because writing them failed."""
        for path in contents:
            self._saved[path] = -1


def confirmed_tables(files: Files, state: BrokerState) -> SavedTables:
    """Return the tables whose changes are confirmed only after they are saved."""
    return SavedTables(
        files,
        {
            topic_table.PATH: state.topics,
            group_table.PATH: state.groups,
            settings.PATH: state.settings,
            orders.PATH: state.orders,
            rewinds.PATH: state.rewinds,
            request_modes.PATH: state.request_modes,
        },
    )


def progress_tables(files: Files, state: BrokerState) -> SavedTables:
    """Return the tables that are saved with every checkpoint."""
    return SavedTables(
        files,
        {
            # Before the timer's progress: a start reads acknowledgements from there on, so messages
            # that were acknowledged before are known only by the offsets.
            group_offsets.PATH: state.offsets,
            rewinds.PROGRESS_PATH: RewindProgress(state.rewinds),  # after the offsets
            filter_table.PATH: state.filters,
            delay_levels.PATH: state.delays,
            timed_messages.PATH: state.timers,
            timer_handover.PATH: TimerHandover(state.timers),  # after the tables it describes
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
