"""Which clients and consumers metrics are about."""

from __future__ import annotations

import gc
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from downrange.otel import client_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class Client:
    """Something that was started."""


def test_clients_may_be_started_while_metrics_are_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A set that changes while it is copied raises an error, and the reader gets no metrics."""
    other = Client()
    adding = Thread(target=lambda: started.add(other))

    class Watched(WeakSet[Any]):
        def __iter__(self) -> Iterator[Any]:
            for each in super().__iter__():
                if adding.ident is None:
                    adding.start()
                    adding.join(0.05)  # it would end in this time if nothing stopped it
                yield each

    monkeypatch.setattr(client_metrics, "WeakSet", Watched)
    started = client_metrics._Started()
    first = Client()
    started.add(first)
    assert started.all() == [first]
    adding.join()
    assert set(started.all()) == {first, other}


def test_clients_that_do_not_exist_any_more_are_left_out() -> None:
    started = client_metrics._Started()
    client: Client | None = Client()
    started.add(client)
    assert started.all() == [client]
    del client
    gc.collect()
    assert started.all() == []
