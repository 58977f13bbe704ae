from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.errors import CorruptStore
from downrange.store.segments import SegmentChain

if TYPE_CHECKING:
    from downrange.store.files import Files


def test_chain_grows_by_the_next_file(files: Files) -> None:
    chain = SegmentChain(files, "run", 100)
    assert (chain.first, chain.end) == (0, 0)
    assert chain.read(0, 10) == b""
    chain.write(90, [b"0123456789"])
    chain.write(100, [b"next"])
    assert chain.starts == [0, 100]
    assert files.names("run") == ["0" * 20, "0" * 17 + "100"]
    assert SegmentChain(files, "run", 100).read(95, 50) == b"56789"


def test_chain_is_cut_within_a_file_and_between_files(files: Files) -> None:
    chain = SegmentChain(files, "run", 100)
    for start in (0, 100, 200):
        chain.write(start, [b"x" * 100])
    chain.cut(150)
    assert chain.starts == [0, 100]
    assert chain.read(140, 60) == b"x" * 10 + bytes(50)
    chain.cut(100)
    assert chain.starts == [0]
    chain.cut(0)
    assert (chain.starts, files.names("run")) == ([], [])


def test_chain_begins_later_when_its_first_file_goes(files: Files) -> None:
    chain = SegmentChain(files, "run", 100)
    for start in (0, 100):
        chain.write(start, [b"x"])
    chain.drop_first()
    assert (chain.first, chain.end) == (100, 200)
    assert chain.read(0, 10) == b""
    assert [file.path for file in chain.files_between(100, 150)] == ["run/" + "0" * 17 + "100"]


@pytest.mark.parametrize(
    ("name", "size", "problem"),
    [
        ("readme.txt", 100, "is not named like a segment"),
        ("0" * 17 + "300", 100, "does not follow 0 by 100 bytes"),
        ("0" * 17 + "100", 77, "has 77 bytes, but the store is opened with 100"),
    ],
)
def test_strange_file_is_named(files: Files, name: str, size: int, problem: str) -> None:
    files.open("run/" + "0" * 20, size=100)
    files.open(f"run/{name}", size=size)
    with pytest.raises(CorruptStore, match=problem) as raised:
        SegmentChain(files, "run", 100).file(100)
    assert raised.value.path == f"run/{name}"
