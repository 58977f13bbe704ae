"""The map in ARCHITECTURE.md names every module exactly once, and nothing else."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "downrange"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
_LINES_MAX = 290


def _named() -> Counter[str]:
    """Return the modules of the map by path; a line such as `wire/` opens a package."""
    section = PAGE.split("\n## Map\n")[1].split("\n## ")[0]
    named: Counter[str] = Counter()
    package = ""
    for block in re.findall(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if opened := re.match(r"([\w/]+/)(?=\s|$)", line):
                package = "" if opened[1] == "downrange/" else opened[1]
            named.update(package + name for name in re.findall(r"(?<![\w/])\w+\.py\b", line))
    return named


def test_map_names_every_module_once() -> None:
    there = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py" and "_sync" not in path.parts
    }
    named = _named()
    assert set(named) == there
    assert [name for name, count in named.items() if count > 1] == []


def test_page_is_short_enough_to_be_read() -> None:
    assert len(PAGE.splitlines()) <= _LINES_MAX
    assert [line for line in PAGE.splitlines() if len(line) > 100 and "|" not in line] == []


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE))))
def test_walks_name_functions_that_exist(named: tuple[str, str]) -> None:
    path, name = named
    files = [file for file in SOURCE.rglob(path.rsplit("/", 1)[-1]) if file.match(path)]
    assert len(files) == 1, f"{path} is not a module, or not the only one of this name"
    module = ast.parse(files[0].read_text())
    body: list[ast.stmt] = module.body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        assert found, f"{path} has no {name}"
        body = getattr(found[0], "body", [])
