"""Options: sensible by default, checked at once, and the value is named."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from downrange.errors import OptionError
from downrange.options import BrokerOptions, ListenerOptions, NameServerOptions, delays_of


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
        (BrokerOptions, "flush", "never"),
        (BrokerOptions, "flush_interval", 0.0),
        (BrokerOptions, "flush_timeout", float("nan")),
        (BrokerOptions, "checkpoint_interval", -1.0),
        (BrokerOptions, "retention_interval", float("inf")),
        (BrokerOptions, "flush_bytes", 0),
        (BrokerOptions, "broker_id", -1),
        (BrokerOptions, "parked_pulls_max", -1),
        (BrokerOptions, "default_topic_queues", 65_537),
        (BrokerOptions, "region", "a\x02DELAY\x011"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(kind: Any, name: str, value: object) -> None:
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
    used = set(re.findall(r"options\.([a-z_]+)", "\n".join(texts)))
    assert {option.name for option in fields(kind)} - used == set()
