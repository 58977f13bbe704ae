"""TOML tables become dataclasses, and errors name the place and the next step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from downrange.errors import OptionError
from downrange.options import ListenerOptions
from downrange.options.toml import TomlTables, load_tables, missing_field, read_values

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = ("listener", "broker", "store")


@dataclass(frozen=True)
class Inner:
    """Options that have a table of their own."""

    depth: int = 1


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One field of each kind."""

    folder: str
    size: int = 1
    span: float = 1.0
    is_on: bool = False
    mode: Literal["sync", "async"] = "async"
    names: tuple[str, ...] = ()
    host: str | None = None
    derived: int = field(init=False, default=0)
    inner: Inner = field(default_factory=Inner)


def tables(**table: Any) -> TomlTables:
    return TomlTables({"store": table}, "config file a.toml", KNOWN)


def test_values_are_checked_and_converted_by_the_types_of_the_fields() -> None:
    values = {
        "folder": "/data",
        "size": 5,
        "span": 2,
        "is_on": True,
        "mode": "sync",
        "names": ["a", "b"],
        "host": "h",
    }
    checked = tables(**values).values(Sample, "store")
    assert checked == {**values, "names": ("a", "b")}
    assert isinstance(checked["span"], float)
    assert Sample(**checked).host == "h"


def test_table_that_is_not_there_gives_no_values() -> None:
    empty = TomlTables({}, "config file a.toml", KNOWN)
    assert empty.values(Sample, "store") == {}
    assert not empty.has_table("store")
    assert tables().has_table("store")


def test_a_key_is_looked_for_in_its_table() -> None:
    assert tables(size=5).has_key("store", "size")
    assert not tables(size=5).has_key("store", "span")
    assert not tables(size=5).has_key("listener", "size")


def test_given_values_override_the_file() -> None:
    made = tables(folder="/data", size=5).make(Sample, "store", size=7, host=None)
    assert (made.folder, made.size, made.host) == ("/data", 7, None)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"size": "5"}, "size: Expected `int`, got `str`"),
        ({"size": True}, "size: Expected `int`, got `bool`"),
        ({"size": 5.5}, "size: Expected `int`, got `float`"),
        ({"is_on": 1}, "is_on: Expected `bool`, got `int`"),
        ({"mode": "often"}, "mode: Invalid enum value 'often'"),
        ({"names": ["a", 1]}, "names: Expected `str`, got `int` - at `$[1]`"),
        ({"sise": 5}, "sise is not known; did you mean 'size'?"),
        (
            {"zzz": 5},
            "zzz is not known; known are folder, size, span, is_on, mode, names, host",
        ),
        (
            {"inner": {"depth": 2}},
            "inner is not known; known are folder, size, span, is_on, mode, names, host",
        ),
        (
            {"derived": 5},
            "derived is not known; known are folder, size, span, is_on, mode, names, host",
        ),
    ],
)
def test_bad_value_is_refused_with_its_place(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        tables(**table).values(Sample, "store")
    assert str(caught.value) == f"config file a.toml: [store] {problem}"


def test_missing_field_without_default_is_named() -> None:
    with pytest.raises(OptionError) as caught:
        tables(size=5).make(Sample, "store")
    assert (
        str(caught.value)
        == "config file a.toml: folder is missing: give it, or write it into [store]"
    )


def test_value_that_the_options_themselves_refuse_is_refused() -> None:
    loaded = TomlTables({"listener": {"port": 70_000}}, "config file a.toml", KNOWN)
    with pytest.raises(OptionError, match="port=70000 is not between 0 and 65535"):
        loaded.make(ListenerOptions, "listener")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[brokr]", "[brokr] is not known; did you mean 'broker'?"),
        ("[zzz]", f"[zzz] is not known; known are {', '.join(KNOWN)}"),
        ("store = '/data'", "store must be a table; write [store] above its keys"),
        ("[store", "Expected ']' at the end of a table declaration (at end of document)"),
    ],
)
def test_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(OptionError) as caught:
        load_tables(path, KNOWN)
    assert str(caught.value) == f"config file {path}: {problem}"


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"config file .*none\.toml cannot be read: No such file"):
        load_tables(str(tmp_path / "none.toml"), KNOWN)
    (tmp_path / "odd.toml").write_bytes(b"\xff")
    with pytest.raises(OptionError, match=r"config file .*odd\.toml: 'utf-8' codec"):
        load_tables(tmp_path / "odd.toml", KNOWN)


def test_one_table_can_be_read_without_a_file() -> None:
    assert read_values(Sample, {"size": 5}) == {"size": 5}
    with pytest.raises(OptionError, match=r"^accounts\.a: sise is not known; did you mean 'size'"):
        read_values(Sample, {"sise": 5}, "accounts.a: ")


def test_a_required_field_without_a_value_is_missing() -> None:
    assert missing_field(Sample, {}) == "folder"
    assert missing_field(Sample, {"folder": "a"}) is None
