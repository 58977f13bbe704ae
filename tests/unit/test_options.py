"""Options: defaults, checks, and errors that name the value."""

from __future__ import annotations

import pickle
import re
import ssl
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from downrange.errors import OptionError
from downrange.options import (
    TLS,
    AutoBatch,
    BrokerOptions,
    ClientOptions,
    Credentials,
    FaultTolerance,
    ListenerOptions,
    NameServerOptions,
    ProducerOptions,
    Proxy,
    PullOptions,
    SimpleOptions,
    Trace,
    delays_of,
)


def test_defaults_are_those_of_apache_and_stay_on_this_machine() -> None:
    listening, names = ListenerOptions(), NameServerOptions()
    assert (listening.host, listening.frame_bytes_max) == ("127.0.0.1", 16 * 1024 * 1024)
    assert (listening.idle_timeout, names.broker_timeout) == (120.0, 120.0)
    assert names.store is None


@pytest.mark.parametrize(
    "options", [ListenerOptions(port=9), NameServerOptions(store="d"), BrokerOptions(name="b")]
)
def test_options_pickle(options: object) -> None:
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ListenerOptions, "host", ""),
        (ListenerOptions, "port", -1),
        (ListenerOptions, "port", 65536),
        (ListenerOptions, "frame_bytes_max", 7),
        (ListenerOptions, "connections_max", 0),
        (ListenerOptions, "connections_per_host_max", 0),
        (ListenerOptions, "in_flight_max", 0),
        (ListenerOptions, "unread_bytes_max", 0),
        (ListenerOptions, "unread_timeout", 0.0),
        (ListenerOptions, "idle_timeout", float("nan")),
        (ListenerOptions, "handshake_timeout", float("inf")),
        (ListenerOptions, "stop_timeout", -0.1),
        (ListenerOptions, "tls_mode", "sometimes"),
        (NameServerOptions, "store", ""),
        (NameServerOptions, "broker_timeout", -1.0),
        (NameServerOptions, "scan_interval", 0.0),
        (NameServerOptions, "brokers_max", 0),
        (NameServerOptions, "topics_max", 0),
        (NameServerOptions, "key_value_bytes_max", 0),
        (BrokerOptions, "name", "a b"),
        (BrokerOptions, "cluster", ""),
        (BrokerOptions, "name_servers", "127.0.0.1:9876"),
        (BrokerOptions, "advertised_host", ""),
        (BrokerOptions, "zone", ""),
        (BrokerOptions, "flush", "never"),
        (BrokerOptions, "flush_interval", 0.0),
        (BrokerOptions, "flush_timeout", float("nan")),
        (BrokerOptions, "checkpoint_interval", -1.0),
        (BrokerOptions, "retention_interval", float("inf")),
        (BrokerOptions, "flush_bytes", 0),
        (BrokerOptions, "broker_id", -1),
        (BrokerOptions, "parked_pulls_max", -1),
        (BrokerOptions, "pop_checkpoints_max", 0),
        (BrokerOptions, "default_topic_queues", 65_537),
        (BrokerOptions, "region", "a\x02DELAY\x011"),
        (BrokerOptions, "bulk_pull_messages_max", 0),
        (BrokerOptions, "bulk_pull_bytes_max", 0),
        (BrokerOptions, "bulk_pull_bytes_max", 9 * 1024 * 1024),
    ],
)
def test_a_wrong_value_is_named(kind: Any, name: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        kind(**{name: value})
    shown = repr(value) if isinstance(value, str) else str(value)
    assert f"{name}={shown}" in str(caught.value)


@pytest.mark.parametrize("levels", ["", "  ", "1x", "s", "1s -5s", "1.5s", "²s"])
def test_delay_levels_that_make_no_sense_are_refused(levels: str) -> None:
    with pytest.raises(OptionError, match="delay_levels"):
        BrokerOptions(delay_levels=levels)


def test_delay_levels_are_read_in_their_units() -> None:
    assert delays_of("1s 2m 3h 1d") == [1_000, 120_000, 10_800_000, 86_400_000]


@pytest.mark.parametrize("kind", [ListenerOptions, NameServerOptions, BrokerOptions])
def test_every_option_is_used(kind: Any) -> None:
    source = Path(__file__).parents[2] / "src" / "downrange"
    texts = [path.read_text() for path in source.rglob("*.py") if path.name != "options.py"]
    used = set(re.findall(r"options\.([a-z0-9_]+)", "\n".join(texts)))
    assert {option.name for option in fields(kind)} - used == set()


# ---- of clients ----------------------------------------------------------------------------------


def test_defaults_of_clients_are_those_of_java() -> None:
    client, producer = ClientOptions(), ProducerOptions()
    assert (client.route_refresh_interval, client.heartbeat_interval) == (30.0, 30.0)
    assert (client.call_timeout, client.discovery_interval) == (3.0, 120.0)
    assert (producer.timeout, producer.retries, producer.submit_retries) == (3.0, 2, 2)
    assert producer.retry_codes == {1, 2, 14, 16, 17, 204, 205, 1500}
    assert (producer.compress_over_bytes, producer.compression_level) == (4096, 5)
    assert (producer.body_bytes_max, producer.default_topic_queues) == (4 * 1024 * 1024, 4)
    assert (producer.default_topic, producer.auto_create) == ("TBW102", "first-broker")
    assert (producer.fault_tolerance, producer.trace, producer.auto_batch) == ("off", False, None)
    batch, trace = AutoBatch(), Trace()
    assert (batch.hold_ms, batch.hold_bytes, batch.total_bytes_max) == (10, 32_768, 33_554_432)
    assert (trace.topic, trace.batch_count) == ("RMQ_SYS_TRACE_TOPIC", 10)


@pytest.mark.parametrize(
    "options",
    [
        ClientOptions(namespace="prod", unit="u"),
        ProducerOptions(fault_tolerance=FaultTolerance(), trace=Trace(), auto_batch=AutoBatch()),
        PullOptions(),
        SimpleOptions(start="latest"),
        TLS(ca="ca.pem", certificate="c.pem", key="k.pem"),
        Proxy("proxy:1080", "me", "secret"),
        Credentials("me", "secret", "token"),
    ],
    ids=lambda options: type(options).__name__,
)
def test_options_of_clients_pickle_and_hash(options: object) -> None:
    assert pickle.loads(pickle.dumps(options)) == options
    assert len({options, options}) == 1


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ClientOptions, "connect_timeout", 0.0),
        (ClientOptions, "call_timeout", float("nan")),
        (ClientOptions, "route_refresh_interval", -1.0),
        (ClientOptions, "heartbeat_interval", float("inf")),
        (ClientOptions, "discovery_interval", 0.0),
        (ClientOptions, "idle_timeout", 0.0),
        (ClientOptions, "busy_poll", -0.1),
        (ClientOptions, "in_flight_max", 0),
        (ClientOptions, "callback_executor", 4),
        (ClientOptions, "callback_threads", 0),
        (ClientOptions, "body_bytes_max", 0),
        (ClientOptions, "sync_connections_max", -1),
        (ClientOptions, "callbacks_waiting_max", -1),
        (ClientOptions, "header_codec", "xml"),
        (ClientOptions, "discovery_url", "ftp://x"),
        (ClientOptions, "instance", ""),
        (ClientOptions, "unit", ""),
        (ClientOptions, "namespace", ""),
        (ClientOptions, "namespace", "a b"),
        (ClientOptions, "namespace_v2", ""),
        (ClientOptions, "client_ip", ""),
        (ClientOptions, "zone", ""),
        (ClientOptions, "zone_mode", True),
        (ClientOptions, "access_channel", "moon"),
        (ProducerOptions, "timeout", 0.0),
        (ProducerOptions, "attempt_timeout", -1.0),
        (ProducerOptions, "compress_over_bytes", 0),
        (ProducerOptions, "body_bytes_max", 0),
        (ProducerOptions, "default_topic_queues", 0),
        (ProducerOptions, "check_threads", 0),
        (ProducerOptions, "checks_waiting_max", 0),
        (ProducerOptions, "retries", -1),
        (ProducerOptions, "submit_retries", -1),
        (ProducerOptions, "in_flight_max", 9),
        (ProducerOptions, "when_full", "drop"),
        (ProducerOptions, "in_flight_bytes_max", 1024 * 1024 - 1),
        (ProducerOptions, "compression", "rar"),
        (ProducerOptions, "compression_level", 10),
        (ProducerOptions, "auto_create", "maybe"),
        (ProducerOptions, "header_version", 3),
        (ProducerOptions, "fault_tolerance", "6.x"),
        (ProducerOptions, "default_topic", "a b"),
        (FaultTolerance, "style", "6.x"),
        (FaultTolerance, "detect_interval", 0.0),
        (FaultTolerance, "detect_timeout", 0.0),
        (AutoBatch, "hold_ms", 0),
        (AutoBatch, "hold_ms", 30_001),
        (AutoBatch, "hold_bytes", 0),
        (AutoBatch, "hold_bytes", 2 * 1024 * 1024 + 1),
        (AutoBatch, "total_bytes_max", 0),
        (Trace, "topic", ""),
        (Trace, "batch_count", 0),
        (Trace, "batch_count", 21),
        (Trace, "flush_interval", 0.0),
        (Trace, "queue_max", 0),
        (Trace, "dispatcher", 5),
        (PullOptions, "batch_count", 0),
        (PullOptions, "retry_backoff", 0.0),
        (PullOptions, "retry_backoff_max", 0.05),
        (PullOptions, "retry_backoff_max", float("inf")),
        (PullOptions, "buffered_max", 0),
        (PullOptions, "suspend", 0.0),
        (PullOptions, "answer_margin", 0.0),
        (SimpleOptions, "start", "first"),
        (SimpleOptions, "retries", -1),
        (SimpleOptions, "handle_timeout", 0.0),
        (SimpleOptions, "retry_backoff", 0.0),
        (SimpleOptions, "retry_backoff_max", 0.05),
    ],
)
def test_a_wrong_value_of_a_client_is_named(kind: Any, name: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        kind(**{name: value})
    shown = repr(value) if isinstance(value, str) else str(value)
    assert f"{name}={shown}" in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"latency_ms": (1,)},
        {"avoid_ms": (1,)},
        {"latency_ms": (1, 2), "avoid_ms": (1,)},
        {"latency_ms": (), "avoid_ms": ()},
        {"latency_ms": (2, 1), "avoid_ms": (0, 0)},
        {"latency_ms": (1, 1), "avoid_ms": (0, 0)},
    ],
)
def test_a_wrong_table_of_latencies_is_refused(settings: Any) -> None:
    with pytest.raises(OptionError, match="latency_ms"):
        FaultTolerance(**settings)
    assert FaultTolerance(latency_ms=(1, 2), avoid_ms=(0, 9)).avoid_ms == (0, 9)


@pytest.mark.parametrize("keys", [("", "s"), ("a", "")])
def test_credentials_need_both_keys(keys: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match="access key and a secret key"):
        Credentials(*keys)


def test_files_of_tls_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="key needs certificate"):
        TLS(key="k.pem")
    context = ssl.create_default_context()
    with pytest.raises(OptionError, match="context replaces ca"):
        TLS(context=context, ca="ca.pem")
    assert TLS(context=context).context is context


def test_secrets_never_show() -> None:
    options = [
        Credentials("me", "secret", "secret"),
        Proxy("proxy:1080", "me", "secret"),
        TLS(certificate="c.pem", key_password="secret"),
    ]
    assert "secret" not in repr(options)
