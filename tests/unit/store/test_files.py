from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from downrange.errors import DiskFull, StoreError, StoreLocked
from downrange.store.files import (
    SECTOR_BYTES,
    MemoryFiles,
    OsFiles,
    PowerLost,
    Write,
    allow_handles,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from downrange.store.files import Files


def test_new_file_has_its_size_and_reads_as_zeros(files: Files) -> None:
    file = files.open("a/b", size=1000)
    assert (file.size, file.path) == (1000, "a/b")
    assert file.read(990, 50) == bytes(10)


def test_parts_are_written_back_to_back(files: Files) -> None:
    file = files.open("f", size=5000)
    file.write(10, [b"one", b"", b"two"])
    file.write(3000, [b"x"] * 1500)  # more than the buffers of one system call
    assert file.read(8, 10) == b"\x00\x00onetwo\x00\x00"
    assert file.read(3000, 1600) == b"x" * 1500 + bytes(100)
    assert files.open("f").read(10, 3) == b"one"


def test_cleared_bytes_read_as_zeros(files: Files) -> None:
    file = files.open("f", size=100)
    file.write(0, [b"abcdef"])
    file.clear(3)
    assert file.read(0, 100) == b"abc" + bytes(97)


def test_missing_file_is_not_created_without_a_size(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        files.open("missing")
    assert files.read_all("missing") is None
    assert files.names("missing") == []


def test_replaced_file_is_whole_and_the_old_one_stays_behind(files: Files) -> None:
    files.replace("config/x", b"one")
    files.replace("config/x", b"two")
    assert files.read_all("config/x") == b"two"
    assert files.read_all("config/x.bak") == b"one"
    assert files.names("config") == ["x", "x.bak"]


def test_removed_things_are_gone(files: Files) -> None:
    files.open("a/b/c", size=1).write(0, [b"x"])
    files.open("a/d", size=1)
    files.remove("a/d")
    files.remove("a/d")
    assert files.names("a") == ["b"]
    files.remove("a/b")
    assert (files.names("a"), files.is_folder("a"), files.is_folder("a/b")) == ([], True, False)
    files.remove("a")
    assert (files.names("a"), files.is_folder("a")) == ([], False)


def test_more_files_than_handles_can_be_used(files: Files) -> None:
    opened = [files.open(f"f{number}", size=10) for number in range(8)]
    for number, file in enumerate(opened):
        file.write(0, [bytes([number])])
        file.sync()
    assert [file.read(0, 1)[0] for file in opened] == list(range(8))


def test_space_is_reported(files: Files) -> None:
    free, total = files.space()
    assert 0 < free <= total


# ---- the disk ------------------------------------------------------------------------------------


def test_space_that_the_system_keeps_for_itself_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large part may be reserved for the system; it must not count as used."""
    kept = Mock(f_blocks=1000, f_bfree=800, f_bavail=300, f_frsize=10)
    files = OsFiles(tmp_path)
    try:
        monkeypatch.setattr("os.statvfs", lambda _: kept)
        assert files.space() == (3000, 5000)
    finally:
        files.close()


def test_empty_file_takes_no_space(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    files.open("big", size=1 << 30)
    assert (tmp_path / "big").stat().st_blocks * 512 < 1 << 16
    files.close()


def test_second_process_is_kept_out(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    code = f"from downrange.store.files import OsFiles; OsFiles({str(tmp_path)!r})"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "StoreLocked" in other.stderr
    assert f"{tmp_path} is in use by another process" in other.stderr
    assert (tmp_path / "lock").read_bytes() == b"lock"
    files.close()


def test_second_store_of_this_process_is_kept_out_until_the_first_closes(tmp_path: Path) -> None:
    files = OsFiles(tmp_path / "store")
    (tmp_path / "other name").symlink_to(tmp_path / "store")
    with pytest.raises(StoreLocked):
        OsFiles(tmp_path / "other name")
    files.close()
    OsFiles(tmp_path / "other name").close()


def test_lock_that_is_held_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*_: object) -> None:
        raise OSError(errno.EAGAIN, "held")

    monkeypatch.setattr("fcntl.lockf", held)
    with pytest.raises(StoreLocked) as raised:
        OsFiles(tmp_path)
    assert raised.value.folder == str(tmp_path)


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file/store cannot be used"):
        OsFiles(tmp_path / "file" / "store")


@pytest.mark.parametrize("parts", [[b"x"], [b"x", b"y"]], ids=["one part", "two parts"])
def test_full_disk_is_distinguished_from_other_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[bytes]
) -> None:
    files = OsFiles(tmp_path)
    file = files.open("f", size=10)

    def trouble(number: int) -> None:
        def fail(*_: object) -> int:
            raise OSError(number, "trouble")

        monkeypatch.setattr(os, "pwritev", fail)
        monkeypatch.setattr(os, "pwrite", fail)

    trouble(errno.ENOSPC)
    with pytest.raises(DiskFull) as raised:
        file.write(0, parts)
    assert raised.value.path == "f"
    trouble(errno.EIO)
    with pytest.raises(OSError, match="trouble"):
        file.write(0, parts)
    files.close()


def test_file_that_cannot_get_its_size_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.EFBIG, "too large")

    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(OSError, match="too large"):
        files.open("f", size=10)
    files.close()


def test_many_files_are_synced_by_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFiles(tmp_path)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    writes = [Write(f"many/{number}", 10, 0, b"x") for number in range(40)]
    files.write_durably(writes[:3])
    assert len(synced) == 3
    files.write_durably(writes)
    assert len(synced) == 3
    assert files.read_all("many/39") == b"x" + bytes(9)
    files.close()


class _System:
    """A C library without `syncfs`, or one that reports a broken disk."""

    def __init__(self, answer: int | None) -> None:
        if answer is not None:
            self.syncfs = lambda _: answer


def test_failed_sync_of_many_files_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles(tmp_path)
    writes = [Write(f"{number}", 10, 0, b"x") for number in range(40)]
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: _System(-1))
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_durably(writes)
    synced: list[bool] = []
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: _System(None))
    monkeypatch.setattr(os, "sync", lambda: synced.append(True))
    files.write_durably(writes)
    assert synced == [True]
    files.close()


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "raised_to"),
    [
        (1024, 1 << 20, 4096, 8192),
        (1024, resource.RLIM_INFINITY, 4096, 8192),
        (1024, 2000, 1000, 2000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4096, None),
        (20_000, 20_000, 4096, None),
    ],
)
def test_limit_of_handles_is_raised_as_far_as_it_may_be(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, allowed: int, raised_to: int | None
) -> None:
    raised: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda *wanted: raised.append(wanted))
    assert allow_handles(4096) == allowed
    assert [limits[0] for _, limits in raised] == ([] if raised_to is None else [raised_to])


def test_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFiles(tmp_path)
    file = files.open("f", size=10)

    def short(handle: int, parts: Sequence[bytes], at: int) -> int:
        return os.pwrite(handle, b"".join(parts)[:2], at)

    monkeypatch.setattr(os, "pwritev", short)
    file.write(1, [b"abc", b"def"])
    assert file.read(0, 8) == b"\x00abcdef\x00"
    files.close()


def test_short_write_of_one_part_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles(tmp_path)
    file = files.open("f", size=10)
    pwrite = os.pwrite

    def short(handle: int, data: bytes, at: int) -> int:
        return pwrite(handle, data[:2], at)

    monkeypatch.setattr(os, "pwrite", short)
    file.write(1, [b"abcdef"])
    assert file.read(0, 8) == b"\x00abcdef\x00"
    files.close()


# ---- memory and its bad days ---------------------------------------------------------------------


def test_crash_keeps_what_was_synced_and_some_of_the_rest() -> None:
    outcomes: set[bytes] = set()
    for seed in range(60):
        files = MemoryFiles()
        file = files.open("f", size=4 * SECTOR_BYTES)
        file.write(0, [b"S" * SECTOR_BYTES])
        file.sync()
        file.write(SECTOR_BYTES, [b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES])
        files.crash(Random(seed))
        data = file.read(0, file.size)
        assert data.startswith(b"S" * SECTOR_BYTES)
        outcomes.add(bytes(data[at] for at in range(0, len(data), SECTOR_BYTES)))
    assert outcomes == {b"S\x00\x00\x00", b"Sa\x00\x00", b"Sab\x00"}


def test_same_seed_crashes_the_same_way() -> None:
    def content_after(seed: int) -> bytes:
        files = MemoryFiles()
        file = files.open("f", size=9000)
        for number in range(8):
            file.write(number * 1000, [bytes([number + 1]) * 1500])
        files.crash(Random(seed))
        return file.read(0, 9000)

    assert content_after(7) == content_after(7)
    assert len({content_after(seed) for seed in range(20)}) > 5


def test_power_is_lost_after_the_given_steps() -> None:
    files = MemoryFiles()
    file = files.open("f", size=10)
    files.steps_left = 2
    file.write(0, [b"a"])
    file.sync()
    with pytest.raises(PowerLost):
        file.write(1, [b"b"])
    with pytest.raises(PowerLost):
        files.remove("f")
    files.crash(Random(1))
    assert file.read(0, 2) == b"a\x00"


def test_memory_runs_full() -> None:
    files = MemoryFiles(capacity=10)
    file = files.open("f", size=100)
    file.write(0, [b"12345678"])
    with pytest.raises(DiskFull):
        file.write(8, [b"abc"])
    assert file.read(0, 12) == b"12345678" + bytes(4)
    assert files.space()[0] == 2


def test_a_replacement_that_fails_leaves_the_old_file_or_its_backup() -> None:
    """After any number of failures, a power loss or a full disk, one of the two files exists."""
    for steps in range(3):
        files = MemoryFiles()
        files.replace("x", b"old")
        for _ in range(2):
            files.steps_left = steps
            with pytest.raises(PowerLost):
                files.replace("x", b"new")
            files.crash(Random(0))
            assert b"old" in (files.read_all("x"), files.read_all("x.bak"))
    files = MemoryFiles(capacity=5)
    files.replace("x", b"old")
    with pytest.raises(DiskFull):
        files.replace("x", b"new")
    assert files.read_all("x") == b"old"
