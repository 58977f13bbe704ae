"""The config file of `serve`: its tables become the options of the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.cli.config_file import (
    TABLES,
    AccessSettings,
    TlsSettings,
    load_settings,
    no_settings,
)
from downrange.errors import OptionError
from downrange.options import BrokerOptions, ListenerOptions, NameServerOptions

if TYPE_CHECKING:
    from pathlib import Path


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


def test_without_a_file_every_table_is_missing() -> None:
    settings = no_settings()
    assert not any(settings.has_table(name) for name in TABLES)
    with pytest.raises(OptionError, match="the command line: certificate is missing"):
        settings.make(TlsSettings, "tls")


def test_half_an_account_for_name_servers_is_refused() -> None:
    with pytest.raises(OptionError, match="access_key and secret_key need each other"):
        AccessSettings(access_key="broker-account")
