"""What one page of metrics shows of a broker, collected before the page is written.

Figures that need more than a look at a counter are collected here, in small steps: lags of groups,
open transactions, timers by the time that they have left.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from downrange.server.broker.transactions.half_records import read_half
from downrange.server.metrics.exposition import labels
from downrange.server.metrics.lag import Lag, lags_of
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.server.broker.state import BrokerState
    from downrange.server.metrics.request_times import RequestTimes

#: The bounds of `timer_message_snapshot`, in seconds from now (Java: timerMetricBound).
TIMER_BOUNDS: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
#: How many open transactions are examined for a page.
_HALVES_MAX: Final = 10_000
_HALVES_STEP: Final = 50
_TIMERS_STEP: Final = 1_000


class BrokerScrape:
    """A broker at the time of a page.

    Args:
        state: The broker's state.
        requests: The times of its requests.
        now_ms: The time.
        connection_count: Open connections.
        refused_count: Connections that were refused since the start.
        denied_count: Requests that were denied since the start.
        disk_bytes: The used bytes of the disk that has the store.

    Attributes:
        base: The labels that all samples of this broker have.
        store_base: The same for samples about the store.
        lags: How far groups are behind, after `collect`.
        halves: Open transactions by topic, after `collect`.
        timers: Waiting messages by their place in `TIMER_BOUNDS`, after `collect`.
    """

    def __init__(
        self,
        state: BrokerState,
        requests: RequestTimes,
        now_ms: int,
        *,
        connection_count: int = 0,
        refused_count: int = 0,
        denied_count: int = 0,
        disk_bytes: int = 0,
    ) -> None:
        self.state = state
        self.requests = requests
        self.now_ms = now_ms
        self.connection_count = connection_count
        self.refused_count = refused_count
        self.denied_count = denied_count
        self.disk_bytes = disk_bytes
        self.base = labels(
            cluster=state.options.cluster,
            node_id=state.options.name,
            node_type="broker",
            otel_scope_name="broker-meter",
        )
        self.store_base = f"{self.base},{labels(storage_medium='disk', storage_type='local')}"
        self.lags: list[Lag] = []
        self.halves: dict[str, int] = {}
        self.timers = [0] * len(TIMER_BOUNDS)

    def collect(self) -> Iterator[str]:
        """Collect the figures; each step yields an empty text."""
        for lag in lags_of(self.state, self.now_ms):
            if lag is not None:
                self.lags.append(lag)
            yield ""
        yield from self._collect_halves()
        yield from self._collect_timers()

    def _collect_halves(self) -> Iterator[str]:
        halves, store = self.state.halves, self.state.store
        if self.state.topics.get(HALF_TOPIC) is None:
            return
        end = store.queue(HALF_TOPIC, 0).max_offset
        offset, examined = halves.ended.next_open(0), 0
        while offset < end and examined < _HALVES_MAX:
            half = read_half(store, offset)
            topic = "" if half is None else half.properties().get(PropertyKey.REAL_TOPIC, "")
            if topic:
                self.halves[topic] = self.halves.get(topic, 0) + 1
            offset = halves.ended.next_open(offset + 1)
            examined += 1
            if examined % _HALVES_STEP == 0:
                yield ""
        # A topic whose transactions are all ended shows 0 instead of its last figure.
        for topic in self.state.statistics.events.committed:
            self.halves.setdefault(topic, 0)
        yield ""

    def _collect_timers(self) -> Iterator[str]:
        timers, index = self.state.timers, 0
        bounds_ms = [self.now_ms + bound * 1_000 for bound in TIMER_BOUNDS]
        while some := timers.waiting_from(index, _TIMERS_STEP):
            for due_ms, _, topic in some:
                place = bisect_left(bounds_ms, due_ms)
                if topic and place < len(bounds_ms):
                    self.timers[place] += 1
            index += len(some)
            yield ""
