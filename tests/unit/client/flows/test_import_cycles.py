"""Modules of `client.flows` import each other in one direction, type-checking imports included."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import downrange.client.flows as flows

FOLDER = Path(flows.__file__).parent
PACKAGE = flows.__name__


def module_of(path: Path) -> str:
    parts = path.relative_to(FOLDER).with_suffix("").parts
    return ".".join((PACKAGE, *parts)).removesuffix(".__init__")


def test_no_modules_import_each_other() -> None:
    modules = {module_of(path): path for path in FOLDER.rglob("*.py")}
    imports: dict[str, set[str]] = {}
    for module, path in modules.items():
        tree = ast.parse(path.read_text())
        imports[module] = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            for name in (node.module, f"{node.module}.{alias.name}")
            if name in modules and name != module
        }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
