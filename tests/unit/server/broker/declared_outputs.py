"""A check around every handler: its outputs must declare what it changed.

A handler that changed topics or groups returns `TablesChanged` with the new version, and one that
added to the write queue, or to the last write there, returns `StorePending`. Both are easy to
forget, and a reply would then be sent too early or not at all. `checked` wraps a handler; the
`conftest` of this folder wraps all of `HANDLERS`, so that each test of a handler also tests its
declarations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.server.outputs import STORE_PENDING, Reply, StorePending, TablesChanged
from downrange.wire.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import PendingWrite
    from downrange.server.outputs import Output, Peer
    from downrange.wire.command import Command


def checked(handler: Handler) -> Handler:
    """Return a handler that fails if its outputs do not declare its changes."""

    def handle(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
        version, queued = state.tables_version, len(state.write_queue)
        last = state.write_queue.last
        last_size = _size(last)
        outputs = handler(state, request, peer, now_ms)
        declared = list(outputs)
        _check_tables(state, version, declared)
        added = len(state.write_queue) - queued
        if not added and _size(last) > last_size:
            added = 1
        pending = [output for output in declared if isinstance(output, StorePending)]
        assert len(pending) == added, f"{added} writes were added, but {declared} was returned"
        return STORE_PENDING if outputs is STORE_PENDING else declared

    return handle


def _size(write: PendingWrite | None) -> int:
    """Return the number of records of a write."""
    if write is None:
        return 0
    return sum(1 if isinstance(entry, Record) else len(entry) for entry in write.records)


def _check_tables(state: BrokerState, before: int, declared: list[Output]) -> None:
    changes = [output for output in declared if isinstance(output, TablesChanged)]
    version = max((change.version for change in changes), default=before)
    assert version == state.tables_version, f"the tables changed, but {declared} was returned"
    answers = [
        number for number, output in enumerate(declared) if isinstance(output, Reply | StorePending)
    ]
    if changes and answers:
        last_change = max(number for number, output in enumerate(declared) if output in changes)
        assert last_change < answers[0], f"the change stands behind the answer in {declared}"
