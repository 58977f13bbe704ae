from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.store.files import Files, MemoryFiles, OsFiles

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture(params=["memory", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Files]:
    if request.param == "memory":
        yield MemoryFiles()
    else:
        on_disk = OsFiles(tmp_path / "store", handles_max=3)
        yield on_disk
        on_disk.close()
