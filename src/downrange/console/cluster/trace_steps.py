"""Trace records as steps in the life of a message, and as a report. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from downrange.client.flows.producing.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    SubResult,
    UnknownTrace,
    decode_trace,
)
from downrange.console.cluster.bodies import listed_body
from downrange.console.cluster.pages.messages import TraceStep
from downrange.console.cluster.pages.traces import TraceRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange import ReceivedMessage
    from downrange.client.flows.producing.trace_records import KnownTrace

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = 253_370_764_799_999
#: The longest duration that is taken for one: ten years. Anyone may write trace records.
_COST_MS_MAX: Final = 10 * 365 * 86_400_000
_MESSAGE_KINDS: Final = ("normal", "half", "commit", "delayed", "ordered")
_STATES: Final = {
    "COMMIT_MESSAGE": "commit",
    "ROLLBACK_MESSAGE": "rollback",
    "UNKNOW": "unknown",
}


def steps_of(traces: Iterable[ReceivedMessage], message_id: str) -> list[TraceStep]:
    """Return the steps of one message, by time.

    Args:
        traces: Messages of the trace topic.
        message_id: The unique id of the message.
    """
    steps: list[TraceStep] = []
    for trace in traces:
        for record in _records_of(trace):
            ids = (record.message_id or "").split(",")
            if message_id in ids:
                steps.append(_step(record, trace, len(ids)))
    return sorted(steps, key=lambda step: step.at)


def _records_of(trace: ReceivedMessage) -> list[KnownTrace]:
    """Return the records of a message; none if it cannot be read."""
    body, problem = listed_body(trace)
    if problem is not None:
        return []
    return [each for each in decode_trace(body) if not isinstance(each, UnknownTrace)]


def _step(record: KnownTrace, trace: ReceivedMessage, batch: int) -> TraceStep:
    """Return a record as a step. Its client is the one that sent the trace."""
    at = _time_of(getattr(record, "time_ms", None), trace)
    group = getattr(record, "group", None) or ""
    client = trace.born_host
    seconds: float | None = None
    is_ok: bool | None = None
    match record:
        case PubTrace():
            step, is_ok = "send", record.is_success
            seconds = _seconds(record.cost_ms)
            client = record.client_host or client
            kind = _MESSAGE_KINDS[record.message_type : record.message_type + 1]
            batched = f", one of {batch} in a batch" if batch > 1 else ""
            detail = f"{' '.join(kind) or 'message'} to {record.address or 'a broker'}{batched}"
        case SubBeforeTrace():
            step, detail = "receive", f"delivery {record.retry_count + 1}"
        case SubAfterTrace():
            step, is_ok, seconds = "process", record.is_success, _seconds(record.cost_ms)
            if seconds is not None and record.time_ms is not None:
                at -= timedelta(seconds=seconds)  # the record has the time of the end
            detail = _result_name(record.result)
        case EndTransactionTrace():
            step = "end transaction"
            state = _STATES.get(record.state or "", record.state or "")
            detail = f"{state}{', after a check' if record.is_from_check else ''}"
        case _:  # RecallTrace
            step, is_ok, detail = "recall", record.is_success, ""
    return TraceStep(
        at=at, step=step, group=group, client=client, seconds=seconds, is_ok=is_ok, detail=detail
    )


def _result_name(result: int) -> str:
    try:
        return SubResult(result).name.lower().replace("_", " ")
    except ValueError:
        return f"result {result}"


def _time_of(time_ms: int | None, trace: ReceivedMessage) -> datetime:
    """Return the time of a record; the trace's store time where it has none."""
    if time_ms is None or not 0 <= time_ms <= _TIME_MS_MAX:
        return trace.stored_at
    return _EPOCH + timedelta(milliseconds=time_ms)


def _seconds(cost_ms: int) -> float | None:
    """Return a duration; None for one that cannot be, as of a clock that was set back."""
    return cost_ms / 1000 if 0 <= cost_ms <= _COST_MS_MAX else None


# ---- the report ----------------------------------------------------------------------------------


class TraceFigures:
    """Adds up trace records by topic, step and group."""

    def __init__(self) -> None:
        self._records: list[tuple[KnownTrace, str]] = []
        self.begin: datetime | None = None
        self.end: datetime | None = None

    @property
    def records(self) -> int:
        """How many records were taken."""
        return len(self._records)

    def add(self, trace: ReceivedMessage) -> None:
        """Take one message of the trace topic."""
        for record in _records_of(trace):
            at = _time_of(record.time_ms, trace)
            self.begin = at if self.begin is None else min(self.begin, at)
            self.end = at if self.end is None else max(self.end, at)
            self._records.append((record, trace.born_host.rpartition(":")[0]))

    def rows(self) -> tuple[TraceRow, ...]:
        """Return the sums by topic, step and group.

        Records of consumers do not name the topic. It is that of the record of the send, which may
        be stored later.
        """
        topics: dict[str, str] = {}
        for record, _ in self._records:
            if isinstance(record, PubTrace):
                topics.update(dict.fromkeys(_ids(record), record.topic or ""))
        sums: dict[tuple[str, str, str], _Sum] = {}
        for record, client in self._records:
            match record:
                case PubTrace():
                    key = (record.topic or "", "send", record.group or "")
                    each = sums.setdefault(key, _Sum())
                    each.add(len(_ids(record)), record.is_success, record.cost_ms, client)
                case SubBeforeTrace() | SubAfterTrace():
                    topic = topics.get(record.message_id or "", "")
                    is_end = isinstance(record, SubAfterTrace)
                    key = (topic, "process" if is_end else "receive", record.group or "")
                    each = sums.setdefault(key, _Sum())
                    if isinstance(record, SubAfterTrace):
                        each.add(1, record.is_success, record.cost_ms, client)
                    else:
                        each.add(1, True, -1, client)
                case _:
                    pass
        return tuple(sums[key].row(*key) for key in sorted(sums, key=_order))


class _Sum:
    """The figures of one topic, step and group."""

    def __init__(self) -> None:
        self._count = 0
        self._failed = 0
        self._costs: list[float] = []
        self._clients: set[str] = set()

    def add(self, count: int, is_ok: bool, cost_ms: int, client: str) -> None:
        self._count += count
        self._failed += 0 if is_ok else count
        if (seconds := _seconds(cost_ms)) is not None:
            self._costs.append(seconds)
        self._clients.add(client)

    def row(self, topic: str, step: str, group: str) -> TraceRow:
        costs = sorted(self._costs)
        return TraceRow(
            topic=topic,
            step=step,
            group=group,
            count=self._count,
            failed=self._failed,
            mean=sum(costs) / len(costs) if costs else None,
            p95=costs[int(len(costs) * 0.95)] if costs else None,
            max=costs[-1] if costs else None,
            clients=len(self._clients),
        )


def _ids(record: PubTrace) -> list[str]:
    return (record.message_id or "").split(",")


def _order(key: tuple[str, str, str]) -> tuple[str, int, str]:
    topic, step, group = key
    return topic, ("send", "receive", "process").index(step), group
