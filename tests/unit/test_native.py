"""Which path runs, and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from downrange import native
from downrange.store.key_slots import PureKeySlots
from downrange.wire import hashes
from tests.support.native_part import require_native_part

ROOT = Path(__file__).parents[2]


def _load_with(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | ImportError, abi_flags: str = ""
) -> str:
    """Return the reason for the pure path, with this module or error behind the import."""

    def import_module(_name: str) -> ModuleType:
        if isinstance(module, ImportError):
            raise module
        return module

    monkeypatch.setattr(native, "import_module", import_module)
    monkeypatch.setattr("sys.abiflags", abi_flags)
    loaded, reason = native._load()
    assert (loaded is None) is bool(reason)
    return reason


def test_variable_forces_the_pure_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.PURE_VARIABLE, "1")
    assert native._load() == (None, "DOWNRANGE_PURE is set")


@pytest.mark.parametrize("value", ["", "0"])
def test_empty_variable_or_zero_forces_nothing(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    module = ModuleType("_native")
    module.__dict__["__version__"] = native.VERSION
    monkeypatch.setenv(native.PURE_VARIABLE, value)
    assert _load_with(monkeypatch, module) == ""


def test_free_threaded_python_is_not_given_the_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.PURE_VARIABLE, raising=False)
    reason = _load_with(monkeypatch, ModuleType("_native"), abi_flags="t")
    assert reason.startswith("free-threaded Python cannot load")


def test_import_error_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.PURE_VARIABLE, raising=False)
    reason = _load_with(monkeypatch, ImportError("wrong ELF class"))
    assert reason == "the native part cannot be imported: wrong ELF class"


@pytest.mark.parametrize("version", ["0.0.9", None])
def test_binary_of_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.delenv(native.PURE_VARIABLE, raising=False)
    module = ModuleType("_native")
    if version:
        module.__dict__["__version__"] = version
    reason = _load_with(monkeypatch, module)
    assert f"has version {version}" in reason
    assert "install the package again" in reason


def test_one_version_number_in_all_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    crate = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text())["package"]
    assert project["version"] == crate["version"] == native.VERSION


def test_twin_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("_native")
    module.__dict__["java_hash"] = found = object()
    monkeypatch.setattr(native, "native", module)
    assert native.twin(hashes.pure_java_hash) is found
    with pytest.raises(ImportError, match=r"no key_hash_behind: .* run `make native`"):
        native.twin(hashes.pure_key_hash_behind)
    monkeypatch.setattr(native, "native", None)
    assert native.twin(hashes.pure_java_hash) is hashes.pure_java_hash


def test_twin_of_a_class_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("_native")
    module.__dict__["KeySlots"] = found = type("KeySlots", (), {})
    monkeypatch.setattr(native, "native", module)
    assert native.twin(PureKeySlots) is found
    monkeypatch.setattr(native, "native", ModuleType("_native"))
    with pytest.raises(ImportError, match=r"no KeySlots: .* run `make native`"):
        native.twin(PureKeySlots)


def test_native_function_is_none_without_the_native_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "native", None)
    assert native.native_only("take_batch") is None
    module = ModuleType("_native")
    module.__dict__["take_batch"] = found = object()
    monkeypatch.setattr(native, "native", module)
    assert native.native_only("take_batch") is found


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("downrange.wire.batches", "take_batch"),
        ("downrange.wire.send_runs", "take_sends"),
        ("downrange.store.key_slots", "KeySlots"),
        ("downrange.spark.read.property_columns", "property_values"),
        ("downrange.spark.write.row_properties", "joined_rows"),
    ],
)
def test_binary_of_other_sources_is_named_at_import(owner: str, name: str) -> None:
    """Each name is asked for when its module is imported: here in a process of its own."""
    require_native_part()
    if ".spark." in owner:
        pytest.importorskip("pyarrow")
    code = f"""
import downrange._native
del downrange._native.{name}
try:
    import {owner}
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, native.PURE_VARIABLE: "0"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert f"the native part has no {name}: it was built from other sources" in said.stdout


def test_only_one_module_reads_the_native_one() -> None:
    """Others ask `twin` or `native_only`, which say what to do about an old binary."""
    readers = [
        path.name
        for path in (ROOT / "src" / "downrange").rglob("*.py")
        if re.search(r"downrange\.native import .*\bnative\b", path.read_text())
    ]
    assert readers == []


def test_path_in_use_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "native", ModuleType("_native"))
    assert native.path_in_use() == "native"
    monkeypatch.setattr(native, "native", None)
    monkeypatch.setattr(native, "pure_reason", "DOWNRANGE_PURE is set")
    assert native.path_in_use() == "pure Python: DOWNRANGE_PURE is set"


def test_every_native_name_has_a_type_and_every_type_a_name() -> None:
    require_native_part()
    stub = (ROOT / "src/downrange/_native.pyi").read_text()
    typed = set(re.findall(r"^(?:def|class) (\w+)", stub, re.MULTILINE))
    assert typed
    module = import_module("downrange._native")
    assert typed == {name for name in dir(module) if not name.startswith("__")}


def test_every_native_name_is_compared_with_its_twin() -> None:
    """A class may be named without its module: objects of it are what functions return."""
    stub = (ROOT / "src/downrange/_native.pyi").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests/unit/native").rglob("test_*.py"))
    named = {f"native.{name}" for name in re.findall(r"^def (\w+)", stub, re.MULTILINE)}
    named |= set(re.findall(r"^class (\w+)", stub, re.MULTILINE))
    assert {name for name in named if not re.search(rf"\b{name}\b", tests)} == set()
