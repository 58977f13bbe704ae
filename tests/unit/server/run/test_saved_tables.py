from __future__ import annotations

import pytest

from downrange.errors import CorruptStore, DiskFull, MalformedBody
from downrange.server.broker.scheduled import timed_messages
from downrange.server.broker.tables import group_offsets, topic_table
from downrange.server.run.saved_tables import SavedTables, confirmed_tables, progress_tables
from downrange.store.files import MemoryFiles
from downrange.wire.bodies import RequestModeBody
from tests.unit.server.broker.broker_stage import NOW_MS, a_state


class Word:
    """A table that holds one word."""

    def __init__(self, word: str = "") -> None:
        self.word = word
        self.version = 0

    def change(self, word: str) -> None:
        self.word = word
        self.version += 1

    def dump(self) -> bytes:
        return self.word.encode()

    def load(self, data: bytes) -> None:
        if data.startswith(b"?"):
            raise MalformedBody("a word", "it cannot be read")
        self.word = data.decode()


def save(tables: SavedTables) -> None:
    tables.write(tables.changes())


def test_only_what_changed_is_written() -> None:
    files, one, two = MemoryFiles(), Word(), Word()
    tables = SavedTables(files, {"one": one, "two": two})
    assert not tables.is_changed
    one.change("1")
    assert tables.is_changed
    assert tables.changes() == {"one": b"1"}
    assert not tables.is_changed
    assert tables.changes() == {}


def test_written_tables_are_loaded_again() -> None:
    files, word = MemoryFiles(), Word()
    tables = SavedTables(files, {"config/word": word})
    word.change("kept")
    save(tables)
    again = Word()
    loaded = SavedTables(files, {"config/word": again})
    loaded.load()
    assert again.word == "kept"
    assert not loaded.is_changed


def test_tables_that_could_not_be_written_are_written_later() -> None:
    files, word = MemoryFiles(capacity=0), Word()
    tables = SavedTables(files, {"word": word})
    word.change("kept")
    contents = tables.changes()
    with pytest.raises(DiskFull):
        tables.write(contents)
    tables.mark_unsaved(contents)
    assert tables.changes() == {"word": b"kept"}


def test_everything_returns_all_tables_even_if_nothing_changed() -> None:
    tables = SavedTables(MemoryFiles(), {"one": Word("1"), "two": Word("2")})
    assert tables.everything() == {"one": b"1", "two": b"2"}
    assert not tables.is_changed


def test_a_missing_file_leaves_the_table_as_it_is() -> None:
    word = Word("default")
    SavedTables(MemoryFiles(), {"word": word}).load()
    assert word.word == "default"


@pytest.mark.parametrize("damaged", [b"?", b""])
def test_a_file_that_cannot_be_read_is_replaced_by_its_backup(damaged: bytes) -> None:
    files, word = MemoryFiles(), Word()
    files.replace("word", b"older")
    files.replace("word", damaged)
    SavedTables(files, {"word": word}).load()
    assert word.word == "older"


def test_a_file_that_cannot_be_read_nor_its_backup_is_an_error_that_names_it() -> None:
    files = MemoryFiles()
    files.replace("config/word", b"?")
    files.replace("config/word", b"?")
    with pytest.raises(CorruptStore, match="config/word") as caught:
        SavedTables(files, {"config/word": Word()}).load()
    assert isinstance(caught.value.__cause__, MalformedBody)


def test_a_brokers_tables_survive() -> None:
    files, state = MemoryFiles(), a_state()
    state.topics.ensure("T", 3, 6, NOW_MS)
    state.groups.get_or_create("G", state.options, NOW_MS)
    state.offsets.commit("G", "T", 1, 42)
    state.request_modes.put(RequestModeBody(topic="T", consumer_group="G", mode="POP"))
    for tables in (confirmed_tables(files, state), progress_tables(files, state)):
        tables.write(tables.everything())
    assert topic_table.PATH in files.names("config") or files.read_all(topic_table.PATH)
    again = a_state()
    for tables in (confirmed_tables(files, again), progress_tables(files, again)):
        tables.load()
    assert list(again.topics) == list(state.topics)
    assert again.groups.get("G") == state.groups.get("G")
    assert again.offsets.get("G", "T", 1) == 42
    assert again.request_modes.get("T", "G") == state.request_modes.get("T", "G") is not None


def test_offsets_are_written_before_the_timers_progress() -> None:
    """Otherwise a crash between the two would pop acknowledged messages again."""
    state = a_state()
    written = list(progress_tables(MemoryFiles(), state).everything())
    assert written.index(group_offsets.PATH) < written.index(timed_messages.PATH)
