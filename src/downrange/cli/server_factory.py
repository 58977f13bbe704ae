"""Builds servers from flags and a config file; a flag overrides the file."""

from __future__ import annotations

import dataclasses
import ssl
from typing import TYPE_CHECKING, Final

from downrange.busy_poll import has_core_to_spare
from downrange.cli.config_file import AccessSettings, TlsSettings, load_settings, no_settings
from downrange.options import (
    BrokerOptions,
    ListenerOptions,
    MetricsOptions,
    NameServerOptions,
)
from downrange.server import BrokerServer, ClusterOptions, ClusterServer, NameServer
from downrange.server.access.file import AccessFile
from downrange.store.message_store import StoreOptions
from downrange.store.retention import RetentionOptions
from downrange.tls import client_context, server_context

if TYPE_CHECKING:
    from pathlib import Path

    from downrange.cli.server_flags import CommonFlags
    from downrange.options.toml import TomlTables

#: Longer than the time between a reply and the next request of a client on this machine.
_BUSY_POLL: Final = 0.0005


class ServerParts:
    """The parts that all servers have in common.

    Args:
        flags: Flags of the command line.

    Raises:
        OptionError: A setting is invalid, or a file that it names.
    """

    def __init__(self, flags: CommonFlags) -> None:
        self.settings = no_settings() if flags.config is None else load_settings(flags.config)
        self.listener = _listener_options(self.settings, flags)
        self.metrics: MetricsOptions | None = None
        if flags.metrics is not None or self.settings.has_table("metrics"):
            self.metrics = self.settings.make(MetricsOptions, "metrics", address=flags.metrics)
        access = self.settings.make(AccessSettings, "access", file=_text(flags.acl))
        self.access = None if access.file is None else AccessFile(access.file)
        self.credentials: tuple[str, str] | None = None
        if access.access_key is not None and access.secret_key is not None:
            self.credentials = (access.access_key, access.secret_key)
        self.tls: ssl.SSLContext | None = None
        #: TLS to name servers, and to the name server in the same process.
        self.client_tls: ssl.SSLContext | None = None
        self.local_tls: ssl.SSLContext | None = None
        if flags.tls_certificate or flags.tls_key or flags.tls_ca or self.settings.has_table("tls"):
            self._load_tls(flags)

    def _load_tls(self, flags: CommonFlags) -> None:
        files = self.settings.make(
            TlsSettings,
            "tls",
            certificate=_text(flags.tls_certificate),
            key=_text(flags.tls_key),
            ca=_text(flags.tls_ca),
        )
        self.tls = server_context(
            certificate=files.certificate,
            key=files.key,
            ca=files.ca,
            key_password=files.key_password,
        )
        if files.nameserver_ca is not None:
            self.client_tls = client_context(
                ca=files.nameserver_ca,
                certificate=files.certificate,
                key=files.key,
                key_password=files.key_password,
            )
        self.local_tls = self.client_tls or _own_certificate_context(files)


def _own_certificate_context(files: TlsSettings) -> ssl.SSLContext:
    """Return a context that trusts the server's own certificate, whatever its issuer."""
    context = client_context(
        ca=files.certificate,
        certificate=files.certificate,
        key=files.key,
        key_password=files.key_password,
        is_name_checked=False,
    )
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def make_name_server(flags: CommonFlags, port: int | None, store: Path | None) -> NameServer:
    """Build a name server.

    Raises:
        OptionError: A setting is invalid, or a file that it names.
    """
    parts = ServerParts(flags)
    return NameServer(
        parts.settings.make(NameServerOptions, "nameserver", store=_text(store)),
        _listener_options(parts.settings, flags, port),
        tls=parts.tls,
        access=parts.access,
        metrics=parts.metrics,
    )


def make_broker(
    flags: CommonFlags,
    *,
    store: Path,
    port: int | None,
    name: str | None,
    cluster: str | None,
    name_servers: list[str],
    flush: str | None,
    vip: bool = False,
    no_sql: bool = False,
) -> BrokerServer:
    """Build a broker.

    Raises:
        OptionError: A setting is invalid, or a file that it names.
    """
    parts = ServerParts(flags)
    settings = parts.settings
    return BrokerServer(
        str(store),
        settings.make(
            BrokerOptions,
            "broker",
            name=name,
            cluster=cluster,
            name_servers=tuple(name_servers) or None,
            flush=flush,
            is_vip_port_open=vip or None,
            is_sql_enabled=False if no_sql else None,
        ),
        _listener_options(settings, flags, port),
        store=settings.make(StoreOptions, "store"),
        retention=settings.make(RetentionOptions, "retention"),
        tls=parts.tls,
        name_server_tls=parts.client_tls,
        credentials=parts.credentials,
        access=parts.access,
        metrics=parts.metrics,
    )


def make_cluster(
    flags: CommonFlags,
    *,
    store: Path,
    nameserver_port: int,
    broker_port: int,
    brokers: int,
    flush: str | None,
    vip: bool = False,
    no_sql: bool = False,
) -> ClusterServer:
    """Build a cluster.

    Raises:
        OptionError: A setting is invalid, or a file that it names.
    """
    parts = ServerParts(flags)
    settings = parts.settings
    options = ClusterOptions(
        store=str(store),
        brokers=brokers,
        nameserver_port=nameserver_port,
        broker_port=broker_port,
        listener=parts.listener,
        nameserver=settings.make(NameServerOptions, "nameserver"),
        broker=settings.make(
            BrokerOptions,
            "broker",
            flush=flush,
            is_vip_port_open=vip or None,
            is_sql_enabled=False if no_sql else None,
        ),
        store_files=settings.make(StoreOptions, "store"),
        retention=settings.make(RetentionOptions, "retention"),
        metrics=parts.metrics,
    )
    is_enforced = parts.listener.tls_mode == "enforcing"
    client_tls = parts.local_tls if is_enforced else parts.client_tls
    return ClusterServer(
        options,
        tls=parts.tls,
        client_tls=client_tls,
        credentials=parts.credentials,
        access=parts.access,
    )


def _listener_options(
    settings: TomlTables, flags: CommonFlags, port: int | None = None
) -> ListenerOptions:
    """Return the listener options of a server that has its own process."""
    options = settings.make(
        ListenerOptions, "listener", host=flags.host, tls_mode=flags.tls_mode, port=port
    )
    if settings.has_key("listener", "busy_poll") or not has_core_to_spare():
        return options
    return dataclasses.replace(options, busy_poll=_BUSY_POLL)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
