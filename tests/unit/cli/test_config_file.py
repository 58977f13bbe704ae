"""Config files: tables become options, and slips of the pen are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from downrange.cli.config_file import (
    TABLES,
    AccessSettings,
    Settings,
    TlsSettings,
    load_settings,
)
from downrange.errors import OptionError
from downrange.options import BrokerOptions, ListenerOptions, NameServerOptions

if TYPE_CHECKING:
    from pathlib import Path


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


def settings(**table: Any) -> Settings:
    return Settings({"store": table}, "config file a.toml")


def test_file_gives_the_options_of_each_part(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(
        """
        [listener]
        host = "0.0.0.0"
        idle_timeout = 60
        tls_mode = "enforcing"
        [nameserver]
        is_order_message_enabled = true
        [broker]
        name_servers = ["10.0.0.1:9876", "10.0.0.2:9876"]
        [tls]
        certificate = "server.pem"
        key = "server.key"
        key_password = "open sesame"
        [access]
        file = "plain_acl.yml"
        """
    )
    loaded = load_settings(path)
    assert loaded.make(ListenerOptions, "listener") == ListenerOptions(
        host="0.0.0.0", idle_timeout=60.0, tls_mode="enforcing"
    )
    names = loaded.make(NameServerOptions, "nameserver")
    assert names == NameServerOptions(is_order_message_enabled=True)
    broker = loaded.make(BrokerOptions, "broker")
    assert broker.name_servers == ("10.0.0.1:9876", "10.0.0.2:9876")
    tls = loaded.make(TlsSettings, "tls")
    assert tls == TlsSettings(
        certificate="server.pem", key="server.key", key_password="open sesame"
    )
    assert "open sesame" not in repr(tls)
    assert loaded.make(AccessSettings, "access").file == "plain_acl.yml"


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
    section = settings(**values).section(Sample, "store")
    assert section == {**values, "names": ("a", "b")}
    assert isinstance(section["span"], float)
    assert Sample(**section).host == "h"


def test_table_that_is_not_there_gives_no_values() -> None:
    empty = Settings({}, "config file a.toml")
    assert empty.section(Sample, "store") == {}
    assert not empty.has("store")
    assert settings().has("store")


def test_what_the_command_line_gives_is_stronger_than_the_file() -> None:
    made = settings(folder="/data", size=5).make(Sample, "store", size=7, host=None)
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
            {"derived": 5},
            "derived is not known; known are folder, size, span, is_on, mode, names, host",
        ),
    ],
)
def test_bad_value_is_refused_with_its_place(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        settings(**table).section(Sample, "store")
    assert str(caught.value) == f"config file a.toml: [store] {problem}"


def test_missing_field_without_default_is_named() -> None:
    with pytest.raises(OptionError) as caught:
        settings(size=5).make(Sample, "store")
    assert str(caught.value) == "config file a.toml: [store] lacks 'folder'"


def test_value_that_the_options_themselves_refuse_is_refused() -> None:
    loaded = Settings({"listener": {"port": 70_000}}, "config file a.toml")
    with pytest.raises(OptionError, match="port=70000 is no TCP port"):
        loaded.make(ListenerOptions, "listener")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[brokr]", "[brokr] is not known; did you mean 'broker'?"),
        ("[zzz]", f"[zzz] is not known; known are {', '.join(TABLES)}"),
        ("store = '/data'", "store is no table; write [store] above its keys"),
        ("[store", "Expected ']' at the end of a table declaration (at end of document)"),
    ],
)
def test_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(OptionError) as caught:
        load_settings(path)
    assert str(caught.value) == f"config file {path}: {problem}"


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"config file .*none\.toml cannot be read: No such file"):
        load_settings(str(tmp_path / "none.toml"))
    (tmp_path / "odd.toml").write_bytes(b"\xff")
    with pytest.raises(OptionError, match=r"config file .*odd\.toml: 'utf-8' codec"):
        load_settings(tmp_path / "odd.toml")
