"""Extras: a missing package is named with the next step, a broken one is not hidden."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from downrange import extras
from downrange.errors import MissingExtra, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Packages whose import name differs from their distribution name.
IMPORT_NAMES = {"pyyaml": "yaml", "opentelemetry-api": "opentelemetry"}
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Declare an extra of two packages, and return a folder for them."""
    monkeypatch.setitem(extras.EXTRAS, "sample", ("sample_first", "sample_second"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("sample_")]:
        del sys.modules[name]


def test_installed_packages_are_imported_in_order(packages: Path) -> None:
    (packages / "sample_first.py").write_text("number = 1")
    (packages / "sample_second.py").write_text("number = 2")
    found = extras.require("the sample", "sample")
    assert all(isinstance(package, ModuleType) for package in found)
    assert [vars(package)["number"] for package in found] == [1, 2]


@pytest.mark.parametrize("present", ["sample_first", "sample_second", None])
def test_a_missing_package_is_answered_with_what_to_install(
    packages: Path, present: str | None
) -> None:
    if present is not None:
        (packages / f"{present}.py").touch()
    with pytest.raises(MissingExtra) as caught:
        extras.require("the sample", "sample")
    error = caught.value
    assert (
        str(error)
        == "the sample needs the extra 'sample': run pip install '.[sample]' in the checkout"
    )
    assert (error.feature, error.extra) == ("the sample", "sample")
    assert isinstance(error, ImportError)
    assert isinstance(error, RocketMQError)
    assert isinstance(error.__cause__, ModuleNotFoundError)


def test_only_what_is_needed_is_imported_and_missed(packages: Path) -> None:
    (packages / "sample_second.py").write_text("number = 2")
    (second,) = extras.require("the sample", "sample", "sample_second")
    assert vars(second)["number"] == 2
    with pytest.raises(MissingExtra, match="the sample needs the extra 'sample'"):
        extras.require("the sample", "sample", "sample_first")


def test_an_extra_is_checked_without_being_imported(packages: Path) -> None:
    for name in ("sample_first", "sample_second"):
        with pytest.raises(MissingExtra, match=r"pip install '\.\[sample\]'"):
            extras.check("the sample", "sample")
        (packages / f"{name}.py").write_text("raise AssertionError('imported')")
        importlib.invalidate_caches()
    extras.check("the sample", "sample")
    assert "sample_first" not in sys.modules


@pytest.mark.parametrize(
    "source", ["import no_such_package", "raise ImportError('libsample.so: cannot open')"]
)
def test_a_package_that_is_installed_but_broken_raises_its_own_error(
    packages: Path, source: str
) -> None:
    (packages / "sample_first.py").write_text(source)
    with pytest.raises(ImportError, match=r"no_such_package|libsample\.so") as caught:
        extras.require("the sample", "sample")
    assert not isinstance(caught.value, MissingExtra)


def test_the_table_of_extras_is_that_of_the_package() -> None:
    declared: dict[str, list[str]] = _pyproject()["project"]["optional-dependencies"]
    names = [name for name in declared if name != "all"]
    assert sorted(extras.EXTRAS) == sorted(names)
    for name in names:
        assert sorted(extras.EXTRAS[name]) == sorted(_packages(declared, name))


def test_the_extra_of_all_holds_every_other() -> None:
    declared: dict[str, list[str]] = _pyproject()["project"]["optional-dependencies"]
    assert _packages(declared, "all") == {
        name for names in extras.EXTRAS.values() for name in names
    }


def _pyproject() -> dict[str, Any]:
    return tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))


def _packages(declared: dict[str, list[str]], extra: str) -> set[str]:
    """Return the packages of an extra, also of the extras that it includes."""
    found: set[str] = set()
    for requirement in declared[extra]:
        if own := re.match(r"downrange\[(.*)\]", requirement):
            for name in own[1].split(","):
                found |= _packages(declared, name)
        else:
            name = re.match(r"[\w.-]+", requirement)
            assert name is not None
            found.add(IMPORT_NAMES.get(name[0], name[0].replace("-", "_")))
    return found
