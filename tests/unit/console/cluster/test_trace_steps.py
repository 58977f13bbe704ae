from __future__ import annotations

import zlib

import pytest

from downrange.client.flows.producing.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    UnknownTrace,
    encode_contexts,
)
from downrange.console.cluster.trace_steps import TraceFigures, steps_of
from tests.unit.console.cluster.fake_admin import at, compressed, message


def pub(message_id: str, *, at_ms: int = 1000, cost_ms: int = 20, **more: object) -> PubTrace:
    fields: dict[str, object] = {
        "time_ms": at_ms,
        "region": "r",
        "group": "shop",
        "topic": "orders",
        "message_id": message_id,
        "tags": None,
        "keys": None,
        "address": "10.0.0.1:10911",
        "body_bytes": 5,
        "cost_ms": cost_ms,
        "message_type": 0,
        "offset_id": "OFFSET",
        **more,
    }
    return PubTrace(**fields)  # type: ignore[arg-type]


def before(message_id: str, at_ms: int = 2000, retry: int = 1) -> SubBeforeTrace:
    return SubBeforeTrace(
        time_ms=at_ms,
        region="r",
        group="billing",
        request_id="R",
        message_id=message_id,
        retry_count=retry,
    )


def after(message_id: str, *, cost_ms: int = 500, result: int = 0) -> SubAfterTrace:
    return SubAfterTrace(
        request_id="R",
        message_id=message_id,
        cost_ms=cost_ms,
        is_success=result == 0,
        result=result,
        time_ms=2600,
        group="billing",
    )


def end(message_id: str) -> EndTransactionTrace:
    return EndTransactionTrace(
        time_ms=1500,
        region="r",
        group="shop",
        topic="orders",
        message_id=message_id,
        tags=None,
        keys=None,
        address="a",
        message_type=2,
        transaction_id="T",
        state="COMMIT_MESSAGE",
        is_from_check=True,
    )


def recall(message_id: str) -> RecallTrace:
    return RecallTrace(
        time_ms=3000,
        region="r",
        group="shop",
        topic="orders",
        message_id=message_id,
        is_success=False,
    )


def traced(*records: TraceRecord) -> list[object]:
    return [message(0, encode_contexts(records), topic="RMQ_SYS_TRACE_TOPIC", second=9.0)]


def test_the_steps_of_a_message_are_ordered_by_time() -> None:
    records = [recall("A"), after("A", result=4), before("A"), end("A"), pub("A"), pub("B")]
    steps = steps_of(traced(*records), "A")  # type: ignore[arg-type]
    assert [step.step for step in steps] == [
        *("send", "end transaction", "receive", "process", "recall"),
    ]
    send, ending, receive, process, recalled = steps
    assert (send.at, send.seconds, send.is_ok, send.group) == (at(1.0), 0.02, True, "shop")
    assert (send.client, send.detail) == ("10.0.0.9:1234", "normal to 10.0.0.1:10911")
    assert ending.detail == "commit, after a check"
    assert (receive.detail, receive.seconds) == ("delivery 2", None)
    assert (process.at, process.seconds, process.is_ok) == (at(2.1), 0.5, False)
    assert (process.detail, recalled.is_ok) == ("failed", False)


def test_odd_records_do_not_break_a_time_line() -> None:
    odd = [
        pub("A,B,C", cost_ms=-5, message_type=99, address=None),
        after("B", result=77, cost_ms=-1),
        UnknownTrace(["Odd", "B"]),
        before("B", at_ms=10**18),
    ]
    steps = steps_of(traced(*odd), "B")  # type: ignore[arg-type]
    assert [step.step for step in steps] == ["send", "process", "receive"]
    assert steps[0].detail == "message to a broker, one of 3 in a batch"
    assert (steps[0].seconds, steps[0].client) == (None, "10.0.0.9:1234")
    assert (steps[1].detail, steps[1].seconds) == ("result 77", None)
    assert steps[2].at == at(9.0)  # an impossible time is replaced by the store time
    assert steps_of(traced(*odd), "") == []  # type: ignore[arg-type]


@pytest.mark.parametrize("cost_ms", [10**15, 10**330], ids=["years", "no float"])
def test_a_duration_that_cannot_be_is_not_known(cost_ms: int) -> None:
    records: list[TraceRecord] = [pub("A", cost_ms=cost_ms), after("A", cost_ms=cost_ms)]
    send, process = steps_of(traced(*records), "A")  # type: ignore[arg-type]
    assert (send.seconds, process.seconds, process.at) == (None, None, at(2.6))
    figures = TraceFigures()
    for trace in traced(*records, pub("B", cost_ms=10)):
        figures.add(trace)  # type: ignore[arg-type]
    sends, processes = figures.rows()
    assert (sends.count, sends.max, processes.max) == (2, 0.01, None)


def test_a_trace_that_cannot_be_decompressed_does_not_hide_the_others() -> None:
    body = encode_contexts([pub("A")])
    traces = [compressed(b"not zlib"), compressed(zlib.compress(body, 9))]
    assert [step.step for step in steps_of(traces, "A")] == ["send"]
    figures = TraceFigures()
    for trace in traces:
        figures.add(trace)
    assert figures.records == 1


def test_a_report_adds_up_records_by_topic_step_and_group() -> None:
    figures = TraceFigures()
    assert (figures.rows(), figures.begin) == ((), None)
    records: list[TraceRecord] = [
        after("A", result=4),
        before("A"),
        pub("A,B", cost_ms=10),
        pub("C", cost_ms=30, is_success=False),
        before("unknown"),
        end("A"),
        UnknownTrace(["Odd"]),
    ]
    for trace in traced(*records):
        figures.add(trace)  # type: ignore[arg-type]
    assert (figures.records, figures.begin, figures.end) == (6, at(1.0), at(2.6))
    rows = {(row.topic, row.step): row for row in figures.rows()}
    send = rows["orders", "send"]
    assert (send.count, send.failed, send.mean, send.max, send.clients) == (3, 1, 0.02, 0.03, 1)
    process = rows["orders", "process"]
    assert (process.count, process.failed, process.p95, process.group) == (1, 1, 0.5, "billing")
    assert (rows["orders", "receive"].mean, rows["", "receive"].count) == (None, 1)
    assert list(rows) == [
        ("", "receive"),
        ("orders", "send"),
        ("orders", "receive"),
        ("orders", "process"),
    ]
