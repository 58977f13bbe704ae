"""Options: sensible by default, checked at once, and the value is named."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from downrange.errors import OptionError
from downrange.options import ListenerOptions, NameServerOptions


def test_defaults_are_those_of_apache_and_stay_on_this_machine() -> None:
    listening, names = ListenerOptions(), NameServerOptions()
    assert (listening.host, listening.frame_bytes_max) == ("127.0.0.1", 16 * 1024 * 1024)
    assert (listening.idle_timeout, names.broker_timeout) == (120.0, 120.0)
    assert names.store is None


@pytest.mark.parametrize("options", [ListenerOptions(port=9), NameServerOptions(store="d")])
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
    ],
)
def test_a_value_that_makes_no_sense_is_named(kind: Any, name: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        kind(**{name: value})
    shown = repr(value) if isinstance(value, str) else str(value)
    assert f"{name}={shown}" in str(caught.value)
