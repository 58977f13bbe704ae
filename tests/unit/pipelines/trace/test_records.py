from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from downrange.client.flows.producing.trace_records import (
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    UnknownTrace,
    encode_contexts,
)
from downrange.pipelines.trace.records import _decode_arrays
from downrange.wire.ids import offset_id

if TYPE_CHECKING:
    from datetime import datetime

T0 = 1_790_000_000_000
HOUR_MS = 3_600_000


def rows(
    *bodies: bytes | None, stored_ms: int | None = T0 + 1000, born_host: str | None = None
) -> list[dict[str, Any]]:
    count = len(bodies)
    stored = [None if stored_ms is None else stored_ms * 1000] * count
    lists = _decode_arrays(
        pa.array(bodies, pa.binary()),
        pa.array([f"T{number}" for number in range(count)]),
        pa.array(stored, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([born_host] * count, pa.string()),
        pa.array(["broker-a"] * count),
        pa.array(["10.0.0.1:10911"] * count),
    )
    assert len(lists) == count
    found: list[dict[str, Any]] = lists.flatten().to_pylist()
    return found


def pub(**more: Any) -> PubTrace:
    facts: dict[str, Any] = {
        "time_ms": T0,
        "region": "r",
        "group": "g",
        "topic": "t",
        "message_id": "m",
        "tags": "tag",
        "keys": "k1 k2",
        "address": "10.0.0.9:10911",
        "body_bytes": 5,
        "cost_ms": 7,
        "message_type": 0,
    }
    return PubTrace(**(facts | more))


def body(*records: Any) -> bytes:
    return encode_contexts(records)


def ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def test_a_send_has_all_its_columns() -> None:
    [row] = rows(body(pub()), born_host="192.168.0.5:4000")
    assert row["kind"] == "send"
    assert row["record_id"] == "T0/0/0"
    assert (row["topic"], row["group_name"], row["message_id"]) == ("t", "g", "m")
    assert (row["tags"], row["keys"], row["region"]) == ("tag", "k1 k2", "r")
    assert (row["address"], row["body_bytes"], row["cost_ms"]) == ("10.0.0.9:10911", 5, 7)
    assert (row["message_kind"], row["is_success"]) == ("normal", True)
    assert (ms(row["time"]), ms(row["client_time"]), ms(row["store_time"])) == (T0, T0, T0 + 1000)
    assert row["client"] == "192.168.0.5"
    assert (row["trace_broker"], row["trace_host"]) == ("broker-a", "10.0.0.1:10911")


def test_ids_of_a_batch_are_rows_with_their_own_offset_ids() -> None:
    found = rows(body(pub(message_id="a,b,,c", offset_id="1,2,3")))
    assert [(row["message_id"], row["offset_id"]) for row in found] == [
        ("a", "1"),
        ("b", "2"),
        ("c", "3"),
    ]
    assert [row["record_id"] for row in found] == ["T0/0/0", "T0/0/1", "T0/0/2"]
    assert {row["batch_count"] for row in found} == {3}
    uneven = rows(body(pub(message_id="a,b", offset_id="1,2,3")))
    assert [row["offset_id"] for row in uneven] == ["1", "1"]


def test_a_broker_that_is_not_named_is_taken_from_the_offset_id() -> None:
    known = offset_id(bytes([10, 0, 0, 7]), 10911, 4096)
    assert rows(body(pub(address=None, offset_id=known)))[0]["address"] == "10.0.0.7:10911"
    assert rows(body(pub(address=None, offset_id="no id")))[0]["address"] is None
    assert rows(body(pub(address=None)))[0]["address"] is None


@pytest.mark.parametrize(
    ("time_ms", "believed"),
    [
        (T0, T0),
        (T0 + 1000, T0 + 1000),
        (T0 + 1001, T0 + 1000),  # later than the store time
        (T0 + 1000 - HOUR_MS, T0 + 1000 - HOUR_MS),
        (T0 + 999 - HOUR_MS, T0 + 1000),
        (0, T0 + 1000),
    ],
)
def test_an_impossible_client_time_is_replaced(time_ms: int, believed: int) -> None:
    [row] = rows(body(pub(time_ms=time_ms)))
    assert ms(row["time"]) == believed
    assert ms(row["client_time"]) == time_ms


def test_without_a_store_time_the_client_time_counts() -> None:
    [row] = rows(body(pub()), stored_ms=None)
    assert ms(row["time"]) == T0
    [end] = rows(
        body(SubAfterTrace(request_id="q", message_id="m", cost_ms=1, is_success=True)),
        stored_ms=None,
    )
    assert end["time"] is None


@pytest.mark.parametrize(
    "more",
    [
        {"time_ms": 10**17},
        {"time_ms": -1},
        {"cost_ms": 2**31},
        {"body_bytes": 2**80},
        {"body_bytes": -(2**80)},
    ],
)
def test_impossible_numbers_make_the_line_unknown(more: dict[str, int]) -> None:
    [row] = rows(body(pub(**more)))
    assert row["kind"] == "unknown"
    assert "PubTrace" in row["line"]
    assert ms(row["time"]) == T0 + 1000


def test_a_duration_below_zero_is_not_known() -> None:
    [row] = rows(body(pub(cost_ms=-3)))
    assert (row["kind"], row["cost_ms"]) == ("send", None)


def test_begin_and_end_of_a_delivery_have_the_same_id() -> None:
    begin = SubBeforeTrace(
        time_ms=T0, region=None, group="g", request_id="q", message_id="m", retry_count=2
    )
    end = SubAfterTrace(request_id="q", message_id="m", cost_ms=1, is_success=False, result=3)
    first, second = rows(body(begin, end))
    assert first["delivery_id"] == second["delivery_id"] == "q/m"
    assert (first["kind"], first["retry_count"]) == ("before", 2)
    assert (second["kind"], second["result"], second["is_success"]) == ("after", 3, False)


def test_deliveries_without_ids_are_not_taken_for_one() -> None:
    end = SubAfterTrace(request_id=None, message_id="m", cost_ms=1, is_success=True)
    first, second = rows(body(end, end))
    assert first["delivery_id"] != second["delivery_id"]


def test_unknown_lines_are_cut_and_counted_one_by_one() -> None:
    found = rows(body(UnknownTrace(["Zzz", "x" * 9000]), UnknownTrace(["Y"])), None, b"")
    assert [row["kind"] for row in found] == ["unknown", "unknown"]
    assert len(found[0]["line"]) == 500
    assert found[1]["line"] == "Y"


def test_short_and_long_lines_of_other_releases_are_read() -> None:
    fields = ["Pub", str(T0), "r", "g", "t", "m", "tag", "k", "a:1", "5", "7", "0"]
    old = "\x01".join([*fields, "false"]) + "\x02"
    new = "\x01".join([*fields, "ID", "true", "10.1.1.1:5", "more", "and more"]) + "\x02"
    first, second = rows(old.encode(), new.encode())
    assert (first["is_success"], first["offset_id"]) == (False, None)
    assert (second["is_success"], second["offset_id"], second["client"]) == (
        *(True, "ID"),
        "10.1.1.1",
    )


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("10.0.0.1:80", "10.0.0.1"),
        ("[::1]:80", "::1"),
        ("host", "host"),
        ("10.0.0.1:http", "10.0.0.1:http"),
        (":80", ":80"),
        (None, None),
        ("", None),
    ],
)
def test_a_client_has_no_port(host: str | None, client: str | None) -> None:
    assert rows(body(pub()), born_host=host)[0]["client"] == client
