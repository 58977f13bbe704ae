"""Rules that review may miss: import arrows, purity, unused modules."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
)

#: Parts that every product may use.
_SHARED = {
    *("wire", "model", "options", "errors", "checks", "extras", "addresses", "tls", "memory"),
    *("filters", "native"),
    "allocation",
}

#: Part of the package -> the parts that it may import. Every part must be listed.
#: Inside the two large products, `client` and `server`, sub-packages are parts of their own.
ARROWS: dict[str, set[str]] = {
    "errors": {"model"},  # for annotations: an error carries attempts and receipts
    "extras": {"errors"},
    "memory": {"wire"},
    "busy_poll": set(),
    "native": set(),
    "checks": {"errors"},
    "model": {"checks", "errors"},
    "allocation": {"model", "checks", "errors"},
    "wire": {"native", "model", "errors"},
    "store": {"wire", "native", "model", "errors"},
    "options": {"wire", "addresses", "allocation", "model", "checks", "errors"},
    "filters": {"checks", "errors"},
    "addresses": {"errors"},
    "tls": {"errors"},
    "client.flows": {"wire", "filters", "model", "allocation", "options", "checks", "errors"}
    | {"native"},
    "client.drivers": _SHARED | {"client.flows", "busy_poll"},
    "client": _SHARED | {"client.drivers", "client.flows"},
    "server.outputs": {"wire"},
    "server.access": {"server.outputs", "wire", "options", "errors", "extras"},
    "server.nameserver": {"server.outputs", "wire", "model", "options", "errors"},
    "server.broker": {"server.outputs", "server.access", "store"}
    | {"wire", "filters", "model", "allocation", "options", "errors", "native"},
    "server.metrics": {"server.broker", "server.nameserver", "store", "wire"},
    "server.net": _SHARED | {"server.outputs", "busy_poll"},
    "server.run": _SHARED
    | {"server.net", "server.nameserver", "server.broker", "server.access", "server.outputs"}
    | {"server.metrics"}
    | {"store", "busy_poll"},
    "server": {"server.run"},
    "embedded": _SHARED | {"server.run", "server.net", "server.access", "server.outputs"},
    "testing": _SHARED | {"__init__", "client", "client.flows", "embedded", "server.outputs"},
    "pytest_downrange": {"testing", "client", "errors"},
    # `__init__` stands for the public names, `from downrange import Producer`.
    "spark": _SHARED | {"__init__", "client", "client.flows"},
    "otel": _SHARED | {"client", "client.flows"},
    "pipelines": _SHARED | {"__init__", "spark", "client", "client.flows"},
    # `server.access` for the accounts that may log in, `server.net` to log a peer that speaks TLS.
    "console": _SHARED
    | {"__init__", "client", "client.flows", "console.cluster", "server.access", "server.net"},
    "console.cluster": _SHARED | {"__init__", "client", "client.flows"},
    "demo": _SHARED | {"__init__", "pipelines", "spark", "embedded", "client", "client.flows"},
    "cli": _SHARED
    | {
        "__init__",
        "client",
        "client.flows",
        "client.drivers",
        "server",
        "server.run",
        "server.access",
    }
    | {"store", "pipelines", "demo", "busy_poll", "console"},
    "pyspark_rocketmq": {"spark"},
    "pyspark_downrange": {"spark"},
    "__main__": {"cli", "errors", "extras"},
    "__init__": {"client", "client.flows", "embedded", "filters", "allocation", "otel"}
    | {"model", "options", "errors"},
}

#: Parts that need an extra.
_EXTRA_PARTS = {
    *("cli", "__main__", "spark", "pipelines", "demo", "pyspark_rocketmq", "pyspark_downrange"),
    *("console", "pytest_downrange"),
    "otel",
}

#: Parts that only decide and convert, and so can be tested and simulated without I/O.
PURE = {
    *("errors", "checks", "model", "allocation", "options", "addresses", "wire", "filters"),
    "client.flows",
    "server.outputs",
    *("server.nameserver", "server.broker", "server.metrics"),
}
#: Pure modules of parts that are not pure as a whole.
PURE_MODULES = {f"downrange.server.access.{name}" for name in ("rules", "needs", "addresses")}
#: Modules of pure parts that read files.
READING_MODULES = {"downrange.options.toml"}
IMPURE_MODULES = {
    *("asyncio", "concurrent", "logging", "multiprocessing", "os", "pathlib", "random", "secrets"),
    *("selectors", "signal", "socket", "ssl", "subprocess", "threading", "time", "uuid"),
}
#: Impure modules that a pure one needs for annotations only.
TYPES_ONLY = {"downrange.options.clients": {"concurrent", "os", "ssl"}}
IMPURE_CALLS = {
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
    ("date", "today"),
}


def _path_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _part_of(module: str) -> str:
    """Return the part of a module, such as `wire`, or `server.net` inside a large product."""
    package, *parts = module.split(".")
    if package != "downrange":
        return package
    if not parts:
        return "__init__"
    inner = ".".join(parts[:2])
    return inner if inner in ARROWS else parts[0]


def _imports_of(module: str) -> set[str]:
    """Return the full names that a module imports, also those for type checkers."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(_path_of(module).read_text())):
        match node:
            case ast.Import(names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(source, names, 0) if source is not None:
                for alias in names:
                    whole = f"{source}.{alias.name}"
                    found.add(whole if whole in MODULES else source)
            case ast.ImportFrom():
                raise AssertionError(f"{module} imports relatively; use the full name")
            case _:
                pass
    return found


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_what_its_part_may(module: str) -> None:
    part = _part_of(module)
    imported = {_part_of(name) for name in _imports_of(module) if name.split(".")[0] == "downrange"}
    assert imported <= ARROWS[part] | {part}


@pytest.mark.parametrize(
    "module",
    [
        name
        for name in MODULES
        if (_part_of(name) in PURE and name not in READING_MODULES) or name in PURE_MODULES
    ],
)
def test_pure_module_does_no_io(module: str) -> None:
    imported = {name.split(".")[0] for name in _imports_of(module)}
    assert imported & IMPURE_MODULES == TYPES_ONLY.get(module, set())
    calls = {
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(_path_of(module).read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert calls & IMPURE_CALLS == set()
    names = {
        node.id
        for node in ast.walk(ast.parse(_path_of(module).read_text()))
        if isinstance(node, ast.Name)
    }
    assert names & {"open", "print", "input"} == set()


@pytest.mark.parametrize("module", MODULES)
def test_module_can_be_imported_and_has_a_docstring(module: str) -> None:
    assert importlib.import_module(module).__doc__


def test_plain_install_needs_only_the_declared_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert len(declared) <= 3
    used = {
        name.split(".")[0]
        for module in MODULES
        if _part_of(module) not in _EXTRA_PARTS
        for name in _imports_of(module)
    }
    # `_typeshed` exists for type checkers only.
    assert used - set(sys.stdlib_module_names) - {"downrange", "_typeshed"} == declared


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_tests_that_the_complaints_name_exist() -> None:
    """The table in docs/concepts/consumers.md."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/concepts/consumers.md").read_text()))
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.update(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(named) > 30
    assert not named - found
