from __future__ import annotations

import re
from pathlib import Path

import pytest

import downrange.console.cluster
from downrange.console.cluster.pages.common import NOTES, Note

SOURCE = Path(downrange.console.cluster.__file__).parent


def test_every_note_is_in_the_table_and_every_entry_is_used() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    used = set(re.findall(r"""(?:code=|_note\(\s*)"([a-z-]+)\"""", text))
    assert used == NOTES.keys()


def test_a_note_without_its_values_is_refused() -> None:
    with pytest.raises(AssertionError):
        Note(code="queues-cut", text="some", values={})
