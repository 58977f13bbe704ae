"""Where broadcast consumers keep their offsets."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import downrange as mq
from downrange.client import offset_stores

if TYPE_CHECKING:
    from pathlib import Path

QUEUE = mq.QueueId("orders", "broker-a", 0)
OTHER = mq.QueueId("orders", "broker-b", 10)
PRICES = mq.QueueId("ns%prices", "bröker", 3)


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return (
        mq.FolderOffsets(tmp_path / "new" / "folder")
        if request.param == "folder"
        else (mq.MemoryOffsets())
    )


# ---- both stores ---------------------------------------------------------------------------------


def test_offsets_are_kept_by_group_and_those_of_other_queues_stay(store: mq.OffsetStore) -> None:
    assert store.load("prices") == {}
    store.save("prices", {QUEUE: 5, PRICES: 2**62})
    store.save("prices", {QUEUE: 7, OTHER: 0})
    store.save("ns%other", {QUEUE: 1})
    assert store.load("prices") == {QUEUE: 7, OTHER: 0, PRICES: 2**62}
    assert store.load("ns%other") == {QUEUE: 1}
    assert store.load("third") == {}


def test_what_is_returned_belongs_to_the_caller(store: mq.OffsetStore) -> None:
    mine = {QUEUE: 5}
    store.save("g", mine)
    mine[QUEUE] = 6
    store.load("g")[QUEUE] = 7
    assert store.load("g") == {QUEUE: 5}


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        (None, "offsets must be a dict of QueueId and int, not None"),
        ({"q": 1}, "each key of offsets must be a QueueId, not 'q'"),
        ({QUEUE: -1}, "the offset of QueueId.* is less than 0"),
        ({QUEUE: 1.5}, "the offset of QueueId.* must be an int"),
    ],
)
def test_wrong_offsets_are_named(store: Any, offsets: Any, text: str) -> None:
    with pytest.raises(mq.OptionError, match=text):
        store.save("g", offsets)
    with pytest.raises(mq.OptionError, match="group='' is blank"):
        store.save("", {})
    with pytest.raises(mq.OptionError, match="group must be a str"):
        store.load(None)
    assert store.load("g") == {}


def test_a_pickled_store_can_be_used_elsewhere(store: Any) -> None:
    store.save("g", {QUEUE: 5})
    data = pickle.dumps(store)
    offset_stores.release(store, "g")
    assert pickle.loads(data).load("g") == {QUEUE: 5}


def test_memory_shows_its_groups() -> None:
    store = mq.MemoryOffsets()
    store.save("g", {QUEUE: 5, OTHER: 6})
    assert repr(store) == "<MemoryOffsets {'g': 2}>"


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_per_group_can_be_read_by_people_and_by_the_next_process(tmp_path: Path) -> None:
    with mq.FolderOffsets(tmp_path) as store:
        store.save("prices", {QUEUE: 5, OTHER: 6, PRICES: 7})
        store.save("../up", {QUEUE: 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "..%2Fup.json",
        "..%2Fup.lock",
        "prices.json",
        "prices.lock",
    ]
    text = (tmp_path / "prices.json").read_text(encoding="utf-8")
    assert json.loads(text) == {
        "group": "prices",
        "offsets": {
            "orders": {"broker-a": {"0": 5}, "broker-b": {"10": 6}},
            "ns%prices": {"bröker": {"3": 7}},
        },
        "form": 1,
    }
    assert len(text.splitlines()) > 10
    with mq.FolderOffsets(str(tmp_path)) as store:
        assert store.load("prices") == {QUEUE: 5, OTHER: 6, PRICES: 7}


def test_instances_of_one_group_have_their_own_files(tmp_path: Path) -> None:
    first, second = (mq.FolderOffsets(tmp_path, instance=name) for name in ("a", "b@"))
    with first, second, mq.FolderOffsets(tmp_path) as third:
        for number, store in enumerate((first, second, third)):
            store.save("g", {QUEUE: number})
        assert [store.load("g")[QUEUE] for store in (first, second, third)] == [0, 1, 2]
    assert repr(first) == f"FolderOffsets({str(tmp_path)!r}, instance='a')"
    assert repr(third) == f"FolderOffsets({str(tmp_path)!r})"


def test_a_save_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    with mq.FolderOffsets(tmp_path) as store:
        store.save("g", {QUEUE: 5})
        before = (tmp_path / "g.json").stat()
        store.save("g", {QUEUE: 5})
        assert (tmp_path / "g.json").stat().st_ino == before.st_ino


def test_a_failed_write_keeps_the_old_file_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mq.FolderOffsets(tmp_path) as store:
        store.save("g", {QUEUE: 5})
        for number, error, text in (
            (errno.ENOSPC, mq.DiskFull, "no space left"),
            (errno.EIO, mq.StoreError, "offsets cannot be kept in .*g.json: "),
        ):
            with monkeypatch.context() as broken:
                broken.setattr(os, "fsync", _raiser(OSError(number, os.strerror(number))))
                with pytest.raises(error, match=text):
                    store.save("g", {QUEUE: 9})
        with monkeypatch.context() as stopped:
            stopped.setattr(os, "fsync", _raiser(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                store.save("g", {QUEUE: 9})
        assert store.load("g") == {QUEUE: 5}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["g.json", "g.lock"]
        store.save("g", {QUEUE: 9})
    with mq.FolderOffsets(tmp_path) as store:
        assert store.load("g") == {QUEUE: 9}


def _raiser(error: BaseException) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "truncated"),
        (b'{"group": "g", "offs', "truncated"),
        (b"\xff", "invalid"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"group": "g", "form": 1, "offsets": {"t": {"b": {"0": "5"}}}}', "Expected `int`"),
        (b'{"group": "g", "form": 1, "offsets": {"t": {"b": {"0": -5}}}}', "`int` >= 0"),
        (b'{"group": "g", "form": 2, "offsets": {}}', "its form is 2, and this release reads"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "g.json"
    file.write_bytes(content)
    store = mq.FolderOffsets(tmp_path)
    for use in (lambda: store.load("g"), lambda: store.save("g", {QUEUE: 1})):
        with pytest.raises(mq.CorruptOffsets, match="(?i)" + problem) as caught:
            use()
        assert caught.value.path == str(file)
        assert "remove it" in str(caught.value)
    assert file.read_bytes() == content
    file.unlink()
    with store:  # the failed uses left no lock
        assert store.load("g") == {}


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(mq.StoreError, match=r"offsets cannot be kept in .*/file: File exists"):
        mq.FolderOffsets(tmp_path / "file").load("g")
    (tmp_path / "g.json").mkdir()
    with pytest.raises(mq.StoreError, match=r"g\.json: Is a directory"):
        mq.FolderOffsets(tmp_path).load("g")
    with pytest.raises(mq.OptionError, match="folder must be a path, not None"):
        mq.FolderOffsets(None)  # type: ignore[arg-type]
    with pytest.raises(mq.OptionError, match="instance=' ' is blank"):
        mq.FolderOffsets(tmp_path, instance=" ")


# ---- locks ---------------------------------------------------------------------------------------


def test_a_group_is_used_by_one_object_at_a_time(tmp_path: Path) -> None:
    first, second = mq.FolderOffsets(tmp_path), mq.FolderOffsets(tmp_path)
    first.save("g", {QUEUE: 5})
    for use in (lambda: second.load("g"), lambda: second.save("g", {QUEUE: 1})):
        with pytest.raises(mq.OffsetsInUse, match="instance") as caught:
            use()
        assert (caught.value.group, caught.value.owner) == ("g", str(os.getpid()))
        assert f"process {os.getpid()}" in str(caught.value)
    second.save("another group", {QUEUE: 1})
    first.release("g")
    first.release("never used")
    assert second.load("g") == {QUEUE: 5}
    second.close()
    assert first.load("g") == {QUEUE: 5}
    del first
    gc.collect()
    with mq.FolderOffsets(tmp_path) as third:  # a forgotten object locks nothing
        assert third.load("g") == {QUEUE: 5}


def test_a_lock_without_a_number_names_another_process() -> None:
    assert "in use by another process (" in str(mq.OffsetsInUse("g.lock", "g", ""))


CHILD = """
import sys, downrange as mq
store = mq.FolderOffsets(sys.argv[1])
store.save("g", {mq.QueueId("orders", "broker-a", 0): 8})
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_group_is_used_by_one_process_until_it_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        with mq.FolderOffsets(tmp_path) as store:
            with pytest.raises(mq.OffsetsInUse, match=f"process {child.pid} "):
                store.load("g")
            child.kill()
            child.wait()
            assert store.load("g") == {QUEUE: 8}


def test_a_child_of_a_fork_does_not_take_the_lock_from_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mq.FolderOffsets(tmp_path)
    store.load("g")
    unlocked: list[object] = []
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        child.setattr(fcntl, "flock", lambda *call: unlocked.append(call))
        store.close()
    assert unlocked == []


def test_a_store_of_a_user_needs_no_method_to_release() -> None:
    offset_stores.release(mq.MemoryOffsets(), "g")


# ---- the file of a Java consumer -----------------------------------------------------------------

#: As written by LocalFileOffsetStore of 4.9.4; 5.5.0 indents by tabs, too.
JAVA_FILE = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"orders"
\t\t}:5,{
\t\t\t"brokerName":"bröker",
\t\t\t"queueId":3,
\t\t\t"topic":"ns%prices"
\t\t}:7
\t}
}"""


def test_the_file_of_a_java_consumer_is_read_and_saved(tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(JAVA_FILE, encoding="utf-8")
    with mq.FolderOffsets(tmp_path / "ours") as store:
        store.save("prices", mq.read_java_offsets(file))
        assert store.load("prices") == {QUEUE: 5, PRICES: 7}


def test_the_copy_of_a_java_file_is_read_when_the_file_is_missing_or_damaged(
    tmp_path: Path,
) -> None:
    file, copy = tmp_path / "offsets.json", tmp_path / "offsets.json.bak"
    with pytest.raises(mq.StoreError, match=r"offsets\.json: No such file"):
        mq.read_java_offsets(file)
    copy.write_text(JAVA_FILE, encoding="utf-8")
    assert mq.read_java_offsets(file) == {QUEUE: 5, PRICES: 7}
    file.write_text(JAVA_FILE[:50], encoding="utf-8")
    assert mq.read_java_offsets(str(file)) == {QUEUE: 5, PRICES: 7}
    copy.write_text("", encoding="utf-8")
    with pytest.raises(mq.CorruptOffsets, match="ends too early") as caught:
        mq.read_java_offsets(file)
    assert caught.value.path == str(file)
    with pytest.raises(mq.OptionError, match="path must be a path"):
        mq.read_java_offsets(5)  # type: ignore[arg-type]
