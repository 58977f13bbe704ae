"""The lag of a stream, from its progress reports."""

from __future__ import annotations

import json
import logging
from typing import Any, cast

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from downrange.model import QueueId
from downrange.spark.read.lag import Lag, LagListener, lags_of
from downrange.spark.read.offsets import Positions

QUEUES = [QueueId("orders", "broker-a", number) for number in range(4)]


def progress(*sources: dict[str, Any], name: str | None = "landing") -> StreamingQueryProgress:
    return StreamingQueryProgress.fromJson(
        {
            "id": "b9ccd9b8-7f3c-4e2b-9b8e-9a7b8a1f2f3d",
            "runId": "00000000-7f3c-4e2b-9b8e-9a7b8a1f2f3d",
            "name": name,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "batchId": 7,
            "batchDuration": 12,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": list(sources),
            "sink": {"description": "", "numOutputRows": 0, "metrics": {}},
            "numInputRows": 5,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
            "observedMetrics": {},
        }
    )


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {
        "description": "rocketmq",
        "startOffset": None,
        "endOffset": None if end is None else json.dumps(end),
        "latestOffset": None if latest is None else json.dumps(latest),
        "numInputRows": 5,
        "inputRowsPerSecond": 2.0,
        "processedRowsPerSecond": 4.0,
        "metrics": {},
    }


def offsets(*numbers: int) -> dict[str, Any]:
    return Positions(dict(zip(QUEUES, numbers, strict=False))).to_json()


def test_the_lag_is_what_lies_between_the_end_of_a_batch_and_that_of_the_queues() -> None:
    (lag,) = lags_of(progress(source(offsets(10, 5, 8), offsets(12, 9, 8, 100))))
    assert lag.queues == {QUEUES[0]: 2, QUEUES[1]: 4, QUEUES[2]: 0}
    assert (lag.query, lag.batch, lag.rows, lag.rows_per_second) == ("landing", 7, 5, 4.0)
    assert (lag.total, lag.least, lag.most, lag.average) == (6, 0, 4, 2.0)


def test_a_report_that_is_older_than_the_batch_gives_no_negative_lag() -> None:
    (lag,) = lags_of(progress(source(offsets(10), offsets(7))))
    assert lag.total == 0


def test_a_query_without_a_name_is_known_by_its_id() -> None:
    (lag,) = lags_of(progress(source(offsets(), offsets()), name=None))
    assert lag.query == "b9ccd9b8-7f3c-4e2b-9b8e-9a7b8a1f2f3d"
    assert (lag.total, lag.least, lag.most, lag.average) == (0, 0, 0, 0.0)


@pytest.mark.parametrize(
    "other",
    [
        source(None, None),
        source(offsets(1), None),
        source({"topic": {"0": 5}}, {"topic": {"0": 9}}),
        source(5, 9),
        source({"v": 99, "q": {}}, {"v": 99, "q": {}}),
    ],
)
def test_other_sources_have_no_lag(other: dict[str, Any]) -> None:
    ours = source(offsets(1), offsets(3))
    assert [lag.total for lag in lags_of(progress(other, ours))] == [2]


def test_a_listener_reports_each_lag(caplog: pytest.LogCaptureFixture) -> None:
    event = QueryProgressEvent(progress(source(offsets(1), offsets(3))))
    seen: list[Lag] = []
    LagListener(seen.append).onQueryProgress(event)
    assert [lag.total for lag in seen] == [2]
    caplog.set_level(logging.INFO, "downrange.spark")
    logging_one = LagListener()
    logging_one.onQueryStarted(cast("QueryStartedEvent", None))
    logging_one.onQueryProgress(event)
    logging_one.onQueryIdle(cast("QueryIdleEvent", None))
    logging_one.onQueryTerminated(cast("QueryTerminatedEvent", None))
    assert "landing batch 7: 5 rows at 4/s; 2 messages wait (2 to 2 per queue)" in caplog.text
