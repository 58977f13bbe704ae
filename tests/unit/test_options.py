"""Options: sensible by default, checked at once, and the value is named."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from downrange.errors import OptionError
from downrange.options import NameServerOptions


def test_defaults_are_those_of_apache() -> None:
    options = NameServerOptions()
    assert (options.broker_timeout, options.scan_interval) == (120.0, 5.0)
    assert options.store is None


def test_options_pickle() -> None:
    options = NameServerOptions(store="d")
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", ""),
        ("broker_timeout", -1.0),
        ("scan_interval", 0.0),
        ("brokers_max", 0),
        ("topics_max", 0),
        ("key_value_bytes_max", 0),
    ],
)
def test_a_value_that_makes_no_sense_is_named(name: str, value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        NameServerOptions(**{name: value})
    shown = repr(value) if isinstance(value, str) else str(value)
    assert f"{name}={shown}" in str(caught.value)
