"""Every option is read somewhere."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from downrange.options import (
    TLS,
    AutoBatch,
    ClientOptions,
    Credentials,
    FaultTolerance,
    ProducerOptions,
    Proxy,
    PullOptions,
    SimpleOptions,
    Trace,
)
from downrange.options.consumers import ConsumerOptions

SOURCE = Path(__file__).parents[3] / "src" / "downrange"
#: Names under which the code reads each kind of options.
HOLDERS: dict[Any, set[str]] = {
    ClientOptions: {"options", "_options"},
    ProducerOptions: {"options", "_options"},
    PullOptions: {"options", "_options"},
    SimpleOptions: {"options", "_options"},
    ConsumerOptions: {"options", "_options"},
    FaultTolerance: {"tolerance", "fault_tolerance"},
    AutoBatch: {"options", "_options"},
    Trace: {"options", "_options", "trace"},
    TLS: {"tls", "_tls", "options"},
    Proxy: {"proxy", "_proxy"},
    Credentials: {"credentials", "_credentials"},
}
OPTIONS = [(kind, option.name) for kind in HOLDERS for option in fields(kind)]


def reads() -> set[tuple[str, str]]:
    """Return each `holder.name` in the package, outside of the options themselves."""
    found: set[tuple[str, str]] = set()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "options":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(ast.Name(holder) | ast.Attribute(_, holder), name, ast.Load()):
                    found.add((holder, name))
                case _:
                    pass
    return found


READS = reads()


@pytest.mark.parametrize(
    ("kind", "name"), OPTIONS, ids=[f"{kind.__name__}.{name}" for kind, name in OPTIONS]
)
def test_an_option_is_read_somewhere(kind: Any, name: str) -> None:
    assert any((holder, name) in READS for holder in HOLDERS[kind])


def test_an_option_that_nothing_reads_would_be_noticed() -> None:
    assert not any((holder, "no_such_option") in READS for holder in HOLDERS[ClientOptions])
