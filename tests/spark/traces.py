"""A small set of traces with known numbers, for the tests of the trace pipeline."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from downrange.client.flows.producing.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    UnknownTrace,
    encode_contexts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from downrange.client.flows.producing.trace_records import TraceRecord

#: 2026-09-21 14:13:20 UTC.
T0 = 1_790_000_000_000
A, B = "10.0.0.1:10911", "10.0.0.2:10911"
TRACE_SCHEMA = (
    "body binary, msg_id string, store_timestamp timestamp, born_host string, broker_name string, "
    "store_host string"
)
STORED_SCHEMA = (
    "topic string, broker_name string, queue_id int, offset long, msg_id string, "
    "born_timestamp timestamp, store_timestamp timestamp"
)


def time_at(after_ms: int) -> datetime:
    return datetime.fromtimestamp((T0 + after_ms) / 1000, UTC)


def pub(message_id: str, after_ms: int, cost_ms: int, **more: Any) -> PubTrace:
    facts: dict[str, Any] = {
        "region": "DefaultRegion",
        "group": "shop",
        "topic": "orders",
        "tags": None,
        "keys": f"k-{message_id}",
        "address": A,
        "body_bytes": 100,
        "message_type": 0,
    }
    return PubTrace(time_ms=T0 + after_ms, message_id=message_id, cost_ms=cost_ms, **(facts | more))


def before(request_id: str, message_id: str, group: str, after_ms: int, retry: int = 0) -> Any:
    return SubBeforeTrace(
        time_ms=T0 + after_ms,
        region="DefaultRegion",
        group=group,
        request_id=request_id,
        message_id=message_id,
        retry_count=retry,
    )


def after(
    request_id: str, message_id: str, cost_ms: int, after_ms: int | None, **more: Any
) -> SubAfterTrace:
    facts: dict[str, Any] = {"is_success": True}
    if after_ms is not None:
        facts |= {"time_ms": T0 + after_ms, "group": "not looked at"}
    return SubAfterTrace(
        request_id=request_id, message_id=message_id, cost_ms=cost_ms, **(facts | more)
    )


def end(message_id: str, after_ms: int, state: str, *, is_from_check: bool = False) -> Any:
    return EndTransactionTrace(
        time_ms=T0 + after_ms,
        region="DefaultRegion",
        group="shop",
        topic="pay",
        message_id=message_id,
        tags=None,
        keys=None,
        address=A,
        message_type=2,
        transaction_id=message_id,
        state=state,
        is_from_check=is_from_check,
    )


def recall(message_id: str, after_ms: int, *, is_success: bool) -> RecallTrace:
    return RecallTrace(
        time_ms=T0 + after_ms,
        region=None,
        group="shop",
        topic="orders",
        message_id=message_id,
        is_success=is_success,
    )


SENDS: list[TraceRecord] = [
    pub("m1", 0, 1),
    pub("m2", 1000, 2, address=B),
    pub("m3", 2000, 3),
    pub("m4", 3000, 4, address=B),
    pub("b1,b2", 5000, 50, body_bytes=2000),
    pub("m5", 6000, 9, address=B, is_success=False),
    pub("m5", 6100, 5),
    pub("r1", 7000, 6, address=B, message_type=3),
    pub(",".join(f"x{number}" for number in range(30)), 8000, 1, topic="audit"),
    pub("h1", 20_000, 2, topic="pay", message_type=1),
    pub("h2", 21_000, 2, topic="pay", message_type=1),
    pub("h3", 22_000, 2, topic="pay", message_type=1),
]
OTHERS: list[TraceRecord] = [
    end("h1", 20_040, "COMMIT_MESSAGE"),
    end("h2", 21_900, "ROLLBACK_MESSAGE", is_from_check=True),
    recall("r1", 7500, is_success=True),
    recall("zz", 7600, is_success=False),
    UnknownTrace(["Zzz", "<b>"]),
    pub("year 20 million", 10**18, 1),
]
CONSUMPTIONS: list[TraceRecord] = [
    before("q1", "m1", "g1", 100),
    after("q1", "m1", 30, 130),
    before("q2", "m2", "g1", 1100),
    after("q2", "m2", 10, 1110, is_success=False, result=2),
    before("q3", "m2", "g1", 11_900, retry=1),
    after("q3", "m2", 12, 12_000),
    before("q4", "m3", "g1", 2010),
    after("q4", "m3", 20, None),  # an old release: time and group are in its begin only
    before("q5", "m4", "g1", 3010),
    before("q6", "b1", "g1", 5050),
    after("q6", "b1", 7, 5100),
    before("q7", "m5", "g1", 6450),
    after("q7", "m5", 8, 6500),
    before("q8", "m1", "g2", 200),
    after("q8", "m1", 5, 205),
    before("q9", "h1", "g3", 20_100),
    after("q9", "h1", 5, 20_105),
]


def trace_row(records: Iterable[TraceRecord], message_id: str, after_ms: int, broker: str) -> Any:
    name = "broker-a" if broker == A else "broker-b"
    body = bytearray(encode_contexts(records))
    return body, message_id, time_at(after_ms), "192.168.0.5:41234", name, broker


def trace_rows() -> list[Any]:
    """Return the trace topic; one message is stored twice, as its producer sent it again."""
    return [
        trace_row(SENDS, "T1", 60_000, A),
        trace_row(OTHERS, "T2", 60_500, B),
        trace_row(CONSUMPTIONS[:9], "T3", 61_000, A),
        trace_row(CONSUMPTIONS[9:], "T4", 61_500, B),
        trace_row(CONSUMPTIONS[9:], "T4", 61_600, A),
    ]


def traces(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(trace_rows(), TRACE_SCHEMA)


def stored(spark: SparkSession) -> DataFrame:
    """Return the messages of the topic `orders`; `u1` was sent without a trace."""
    places = {
        "m1": ("broker-a", 0),
        "m2": ("broker-b", 0),
        "m3": ("broker-a", 1),
        "m4": ("broker-b", 1),
        "b1": ("broker-a", 0),
        "b2": ("broker-a", 0),
        "m5": ("broker-a", 3),
        "u1": ("broker-b", 0),
    }
    rows = [
        ("orders", broker, queue, number, message_id, time_at(number), time_at(number))
        for number, (message_id, (broker, queue)) in enumerate(places.items())
    ]
    return spark.createDataFrame(rows, STORED_SCHEMA)
