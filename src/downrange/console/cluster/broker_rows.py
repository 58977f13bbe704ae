"""Brokers from poll to poll: rates from counters, and since when each of them answers.

Pure: figures and times come as arguments. A broker that answers with an error is up, and its row
says which error: Apache's 4.9 brokers refuse to tell their figures in their first seconds. A broker
that is no longer registered stays in the list as one that is down, until `limits.BROKERS_MAX`
others came.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from downrange.console.cluster import limits
from downrange.console.cluster.pages.overview import BrokerRow
from downrange.errors import RocketMQError, ServerError, WireError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.client.flows.admin.clusters import BrokerFacts

_UNREGISTERED: Final = "it is not registered at the name server"


class BrokerRows:
    """The brokers of a cluster, as of the last poll."""

    def __init__(self) -> None:
        self._rows: dict[str, BrokerRow] = {}
        self._read_at: dict[str, float] = {}

    @property
    def rows(self) -> tuple[BrokerRow, ...]:
        """All brokers by name."""
        return tuple(self._rows[name] for name in sorted(self._rows))

    def update(
        self,
        facts: Mapping[str, BrokerFacts],
        answers: Mapping[str, Mapping[str, str] | RocketMQError],
        at: float,
    ) -> None:
        """Take the result of a poll.

        Args:
            facts: The brokers that are registered, by name.
            answers: Broker -> its figures, or the error that asking it raised.
            at: When they answered, in Unix seconds.
        """
        for name in self._rows.keys() - facts.keys():
            self._rows[name] = _down(self._rows[name], _UNREGISTERED, at)
        for name, broker in facts.items():
            answer = answers[name]
            before = self._rows.get(name) or _new_row(broker)
            row = replace(
                before,
                cluster=broker.cluster,
                address=broker.addresses[min(broker.addresses)] if broker.addresses else "",
                replicas=len(broker.addresses),
            )
            if has_answered(answer) and isinstance(answer, RocketMQError):
                self._rows[name] = _refusing(row, answer.brief, at)
            elif isinstance(answer, RocketMQError):
                self._rows[name] = _down(row, answer.brief, at)
            else:
                self._rows[name] = _up(row, answer, at, self._read_at.get(name))
                self._read_at[name] = at
        self._limit()

    def gone(self, problem: str, at: float) -> None:
        """Note that no broker could be asked."""
        self._rows = {name: _down(row, problem, at) for name, row in self._rows.items()}

    def _limit(self) -> None:
        """Forget brokers that are down for longest, when there are too many names."""
        excess = len(self._rows) - limits.BROKERS_MAX
        down = [row for row in self._rows.values() if not row.is_up]
        down.sort(key=lambda row: row.since or datetime.min.replace(tzinfo=UTC))
        for row in down[: max(excess, 0)]:
            del self._rows[row.name]
            self._read_at.pop(row.name, None)


def has_answered(answer: Mapping[str, str] | RocketMQError) -> bool:
    """Return whether a broker answered at all, even if with an error."""
    return not isinstance(answer, RocketMQError) or isinstance(answer, (ServerError, WireError))


def _new_row(broker: BrokerFacts) -> BrokerRow:
    return BrokerRow(
        name=broker.name, cluster=broker.cluster, address="", replicas=0, is_up=False, since=None
    )


def _down(row: BrokerRow, problem: str, at: float) -> BrokerRow:
    is_new = row.is_up or row.since is None
    return replace(
        row,
        is_up=False,
        since=_time(at) if is_new else row.since,
        problem=problem,
        sent_rate=None,
        received_rate=None,
    )


def _refusing(row: BrokerRow, problem: str, at: float) -> BrokerRow:
    """Return a broker that answers, but does not tell its figures."""
    return replace(
        row,
        is_up=True,
        since=row.since if row.is_up else _time(at),
        problem=problem,
        sent_rate=None,
        received_rate=None,
        sent_total=None,
        received_total=None,
        stored_bytes=None,
        disk_used=None,
    )


def _up(row: BrokerRow, figures: Mapping[str, str], at: float, read_at: float | None) -> BrokerRow:
    sent = _whole(figures.get("msgPutTotalTodayNow"))
    received = _whole(figures.get("msgGetTotalTodayNow"))
    started = _whole(figures.get("bootTimestamp"))
    started_at = None if started is None else _time(started / 1000)
    # Counters begin at 0 with each start.
    is_same_run = row.is_up and started_at == row.started_at
    seconds = at - read_at if read_at is not None and is_same_run else 0.0
    first, end = (
        _whole(figures.get(name)) for name in ("commitLogMinOffset", "commitLogMaxOffset")
    )
    version = figures.get("brokerVersionDesc")
    return replace(
        row,
        is_up=True,
        since=row.since if row.is_up else _time(at),
        problem=None,
        version=None if version is None else version.removeprefix("V").replace("_", "."),
        sent_rate=_rate(row.sent_total, sent, seconds),
        received_rate=_rate(row.received_total, received, seconds),
        sent_total=sent,
        received_total=received,
        # An empty log has -1 as its first offset in Apache's brokers.
        stored_bytes=None if first is None or end is None else max(end - max(first, 0), 0),
        disk_used=_share(figures.get("commitLogDiskRatio")),
        started_at=started_at,
    )


def _rate(before: int | None, now: int | None, seconds: float) -> float | None:
    if before is None or now is None or seconds <= 0:
        return None
    return max(now - before, 0) / seconds


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _share(text: str | None) -> float | None:
    """Return the part of a disk that is used; brokers write -1 when they do not know it."""
    try:
        share = float(text or "")
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
