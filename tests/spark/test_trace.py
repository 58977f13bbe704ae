"""Tables, measures and figures of the trace pipeline, with numbers computed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import OptionError
from downrange.pipelines.trace.figures import collect_figures
from downrange.pipelines.trace.measures import trace_measures
from downrange.pipelines.trace.report import build_report, render
from downrange.pipelines.trace.table_files import read_tables, write_measures, write_tables
from downrange.pipelines.trace.tables import trace_tables
from tests.spark.traces import (
    T0,
    TRACE_SCHEMA,
    A,
    B,
    end,
    pub,
    stored,
    time_at,
    trace_row,
    traces,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from downrange.pipelines.trace.figures import Figures
    from downrange.pipelines.trace.measures import TraceMeasures
    from downrange.pipelines.trace.tables import TraceTables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace")


@pytest.fixture(scope="module")
def tables(spark: SparkSession, folder: Path) -> TraceTables:
    return write_tables(trace_tables(traces(spark)), folder)


@pytest.fixture(scope="module")
def measures(tables: TraceTables, folder: Path) -> TraceMeasures:
    return write_measures(trace_measures(tables), folder)


@pytest.fixture(scope="module")
def figures(tables: TraceTables, measures: TraceMeasures) -> Figures:
    return collect_figures(tables, measures)


def rows_of(table: DataFrame, *names: str) -> set[tuple[Any, ...]]:
    found = [tuple(row) for row in table.select(*names).collect()]
    assert len(found) == len(set(found)), "a row occurs twice"
    return set(found)


def row_of(table: DataFrame, **where: str) -> dict[str, Any]:
    for name, value in where.items():
        table = table.where(table[name] == value)
    [row] = table.collect()
    return row.asDict()


# ---- tables --------------------------------------------------------------------------------------


def test_a_batch_has_a_row_for_each_message(tables: TraceTables) -> None:
    sends = rows_of(tables.sends, "topic", "message_id", "batch_index", "batch_count", "cost_ms")
    assert {row for row in sends if row[0] == "orders"} == {
        *(("orders", f"m{n}", 0, 1, n) for n in range(1, 5)),
        ("orders", "b1", 0, 2, 50),
        ("orders", "b2", 1, 2, 50),
        ("orders", "m5", 0, 1, 9),
        ("orders", "m5", 0, 1, 5),
        ("orders", "r1", 0, 1, 6),
    }
    assert sum(row[0] == "audit" for row in sends) == 30
    assert sum(row[0] == "pay" for row in sends) == 3


def test_begin_and_end_of_a_consumption_are_one_row(tables: TraceTables) -> None:
    found = rows_of(
        tables.deliveries,
        *("delivery_id", "topic", "consumer_group", "outcome", "retry_count", "end_to_end_ms"),
    )
    assert found == {
        ("q1/m1", "orders", "g1", "success", 0, 130),
        ("q2/m2", "orders", "g1", "exception", 0, 110),
        ("q3/m2", "orders", "g1", "success", 1, 11_000),
        ("q4/m3", "orders", "g1", "success", 0, 30),
        ("q5/m4", "orders", "g1", "not finished", 0, None),
        ("q6/b1", "orders", "g1", "success", 0, 100),
        ("q7/m5", "orders", "g1", "success", 0, 500),
        ("q8/m1", "orders", "g2", "success", 0, 205),
        ("q9/h1", "pay", "g3", "success", 0, 105),
    }


def test_messages_that_a_group_did_not_consume_are_found(tables: TraceTables) -> None:
    found = rows_of(
        tables.unconsumed, "message_id", "consumer_group", "delivery_count", "last_outcome"
    )
    assert found == {
        ("m4", "g1", 1, "not finished"),
        ("b2", "g1", 0, "never delivered"),
        *((name, "g2", 0, "never delivered") for name in ("m2", "m3", "m4", "m5", "b1", "b2")),
        *((f"x{number}", None, 0, "never delivered") for number in range(30)),
    }


def test_lines_that_cannot_be_decoded_are_kept(tables: TraceTables) -> None:
    lines = {row[0] for row in rows_of(tables.unknown, "line")}
    assert "Zzz | <b>" in lines
    assert len(lines) == 2
    assert any("year 20 million" in line for line in lines)


def test_brokers_and_clients_have_names(tables: TraceTables) -> None:
    assert rows_of(tables.brokers, "address", "broker_name") == {(A, "broker-a"), (B, "broker-b")}
    assert {row[0] for row in rows_of(tables.sends.select("client").distinct(), "client")} == {
        "192.168.0.5"
    }


def test_tables_can_be_read_back(spark: SparkSession, folder: Path, tables: TraceTables) -> None:
    again = read_tables(spark, folder)
    assert again.stored is None
    assert {name: table.count() for name, table in again.frames().items()} == {
        name: table.count() for name, table in tables.frames().items()
    }
    with pytest.raises(OptionError, match="has no table"):
        read_tables(spark, folder / "elsewhere")


def test_a_time_range_leaves_out_the_rest(spark: SparkSession) -> None:
    found = trace_tables(traces(spark), begin=time_at(500), end=time_at(2500))
    assert rows_of(found.sends, "message_id") == {("m2",), ("m3",)}
    assert rows_of(found.consumptions, "delivery_id") == {("q2/m2",)}
    # m2 succeeded only after the end, which still counts.
    assert rows_of(found.unconsumed.where("consumer_group = 'g1'"), "message_id") == set()


@pytest.mark.parametrize(
    ("begin", "end", "word"),
    [(time_at(5), time_at(5), "not after"), (time_at(5).replace(tzinfo=None), None, "time zone")],
)
def test_an_invalid_time_range_is_rejected(
    spark: SparkSession, begin: Any, end: Any, word: str
) -> None:
    with pytest.raises(OptionError, match=word):
        trace_tables(traces(spark), begin=begin, end=end)


def test_rows_without_a_needed_column_are_refused(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="'msg_id'"):
        trace_tables(traces(spark).drop("msg_id"))
    with pytest.raises(OptionError, match="'queue_id'"):
        trace_tables(traces(spark), stored(spark).drop("queue_id"))


# ---- measures ------------------------------------------------------------------------------------


def test_sends_of_a_topic_are_measured(measures: TraceMeasures) -> None:
    found = row_of(measures.sends_by_topic, topic="orders")
    assert found["message_count"] == 9
    assert found["request_count"] == 8
    assert found["body_bytes"] == 2700
    assert (found["p50_ms"], found["p90_ms"], found["p99_ms"], found["max_ms"]) == (4, 50, 50, 50)
    assert (found["failed_count"], found["failed_share"]) == (1, pytest.approx(1 / 9))
    assert (found["retried_count"], found["retried_share"]) == (1, pytest.approx(1 / 9))


def test_sends_are_measured_by_broker_group_and_client(measures: TraceMeasures) -> None:
    by_broker = rows_of(measures.sends_by_broker, "broker", "message_count", "failed_count")
    assert by_broker == {("broker-a", 38, 0), ("broker-b", 4, 1)}
    assert rows_of(measures.sends_by_group, "producer_group", "message_count") == {("shop", 42)}
    assert rows_of(measures.sends_by_client, "client", "message_count") == {("192.168.0.5", 42)}


def test_deliveries_to_a_group_are_measured(measures: TraceMeasures) -> None:
    found = row_of(measures.consumptions_by_group, topic="orders", consumer_group="g1")
    assert found["delivery_count"] == 7
    assert (found["failed_count"], found["retried_count"], found["unfinished_count"]) == (1, 1, 1)
    assert (found["p50_ms"], found["p90_ms"], found["max_ms"]) == (10, 30, 30)
    assert (found["end_to_end_p50_ms"], found["end_to_end_p99_ms"]) == (130, 11_000)
    assert found["unconsumed_count"] == 2
    assert row_of(measures.consumptions_by_client)["delivery_count"] == 9


def test_transactions_are_measured(measures: TraceMeasures) -> None:
    found = row_of(measures.transactions_by_topic, topic="pay")
    ends = ("committed_count", "rolled_back_count", "unknown_count", "open_count")
    assert [found[name] for name in ends] == [1, 1, 0, 1]
    assert found["transaction_count"] == 3
    assert found["check_count"] == 1
    assert (found["p50_ms"], found["max_ms"]) == (40, 900)


def test_a_topic_on_one_broker_alone_shows(measures: TraceMeasures) -> None:
    audit = row_of(measures.balance, topic="audit", level="broker")
    assert (audit["place_count"], audit["used_count"], audit["message_count"]) == (2, 1, 30)
    assert (audit["top_place"], audit["top_share"]) == ("broker-a", 1.0)
    assert (audit["max_over_mean"], audit["min_over_mean"]) == (2.0, 0.0)
    assert (audit["variation"], audit["gini"]) == (1.0, 0.5)
    orders = row_of(measures.balance, topic="orders", level="broker")
    assert orders["max_over_mean"] == pytest.approx(1.25)
    assert orders["min_over_mean"] == pytest.approx(0.75)
    assert orders["gini"] == pytest.approx(0.125)


def test_errors_are_counted(measures: TraceMeasures) -> None:
    found = rows_of(measures.errors, "what", "topic", "who", "error_count")
    assert found == {
        ("send not stored cleanly", "orders", "broker-b", 1),
        ("consumption: exception", "orders", "g1", 1),
        ("recall refused", "orders", "shop", 1),
        ("trace line not understood", None, "192.168.0.5", 2),
    }


def test_an_unknown_outcome_that_a_check_decided_is_no_error(spark: SparkSession) -> None:
    """Errors counted each report of an unknown outcome, and the table of transactions the last."""
    records = [
        *(pub(name, 0, 2, topic="pay", message_type=1) for name in ("h1", "h2", "h3")),
        *(end(name, 100, "UNKNOW") for name in ("h1", "h2", "h3")),
        end("h1", 900, "COMMIT_MESSAGE", is_from_check=True),
        end("h2", 900, "UNKNOW", is_from_check=True),
        end("h2", 1900, "UNKNOW", is_from_check=True),
    ]
    rows = [trace_row(records, "T1", 60_000, A)]
    tables = trace_tables(spark.createDataFrame(rows, TRACE_SCHEMA))
    measures = trace_measures(tables)
    counted = row_of(measures.transactions_by_topic)
    assert (counted["committed_count"], counted["unknown_count"], counted["check_count"]) == (
        *(1, 2, 3),
    )
    error = row_of(measures.errors)
    assert (error["what"], error["topic"], error["who"]) == (
        *("transaction: outcome unknown", "pay", "shop"),
    )
    assert error["error_count"] == counted["unknown_count"]
    figures = collect_figures(tables, measures)
    assert figures.totals["transactions_unknown_count"] == 2
    assert figures.totals["transactions_open_count"] == 0


def test_windows_hold_what_happened_in_them(measures: TraceMeasures) -> None:
    found = rows_of(
        measures.send_windows.where("topic = 'pay'"), "window.start", "message_count", "broker"
    )
    assert {(count, broker) for _, count, broker in found} == {(3, "broker-a")}
    counts = [row["delivery_count"] for row in measures.consumption_windows.collect()]
    assert sum(counts) == 9


def test_business_topics_add_queues_and_untraced_messages(spark: SparkSession) -> None:
    found = trace_tables(traces(spark), stored(spark))
    untraced = row_of(found.messages, message_id="u1")
    assert (untraced["message_kind"], untraced["broker"]) == ("not traced", "broker-b")
    assert rows_of(found.unconsumed.where("message_id = 'u1'"), "consumer_group") == {
        ("g1",),
        ("g2",),
    }
    measured = trace_measures(found)
    queues = measured.queue_counts.where("topic = 'orders'")
    assert rows_of(queues, "broker", "queue_id", "message_count") == {
        *(("broker-a", 0, 3), ("broker-a", 1, 1), ("broker-a", 2, 0), ("broker-a", 3, 1)),
        *(("broker-b", 0, 2), ("broker-b", 1, 1), ("broker-b", 2, 0), ("broker-b", 3, 0)),
    }
    over_queues = row_of(measured.balance, topic="orders", level="queue")
    assert (over_queues["place_count"], over_queues["used_count"]) == (8, 5)
    assert over_queues["top_place"] == "broker-a/0"
    assert over_queues["max_over_mean"] == pytest.approx(3.0)


# ---- figures and report --------------------------------------------------------------------------


def test_figures_add_up(figures: Figures) -> None:
    assert figures.span is not None
    assert figures.span.begin_ms == figures.first_ms == T0
    assert (figures.span.end_ms - figures.last_ms) <= figures.span.count
    assert figures.totals["sent_message_count"] == 42
    assert figures.totals["consumed_delivery_count"] == 9
    assert figures.totals["unconsumed_count"] == 8
    assert figures.totals["groupless_count"] == 30
    assert figures.totals["broker_count"] == 2
    assert figures.totals["transactions_open_count"] == 1
    seconds = figures.span.bucket_ms / 1000
    sums = {one.name: sum(value or 0 for value in one.values) * seconds for one in figures.sent}
    assert sums == pytest.approx({"audit": 30.0, "orders": 9.0, "pay": 3.0})
    heat = {one.name: sum(value or 0 for value in one.values) for one in figures.heat}
    assert heat == {"broker-a": 38.0, "broker-b": 4.0}
    assert [line["cost_ms"] for line in figures.tables["slowest_sends"]][:3] == [50, 9, 6]
    slowest = figures.tables["slowest_deliveries"][0]
    assert (slowest["message_id"], slowest["end_to_end_ms"]) == ("m2", 11_000)


def test_tables_of_messages_not_consumed_add_up_to_the_totals(figures: Figures) -> None:
    def sum_of(name: str) -> int:
        return sum(line["unconsumed_count"] for line in figures.tables[name])

    assert sum_of("unconsumed_groups") == figures.totals["unconsumed_count"] == 8
    assert sum_of("groupless_topics") == figures.totals["groupless_count"] == 30
    assert sum(line["unconsumed_count"] or 0 for line in figures.tables["consumers"]) == 8
    assert len(figures.tables["unconsumed"]) == 8
    assert figures.cut == set()


def test_more_rows_than_shown_are_noted(spark: SparkSession) -> None:
    records = [pub(f"m{number}", number, 1, topic=f"t{number:02d}") for number in range(13)]
    rows = [trace_row(records, "T1", 60_000, A)]
    tables = trace_tables(spark.createDataFrame(rows, TRACE_SCHEMA))
    figures = collect_figures(tables, trace_measures(tables))
    assert [line["topic"] for line in figures.tables["topics"]] == [f"t{n:02d}" for n in range(12)]
    assert figures.cut == {"topics", "balance", "groupless_topics", "slowest_sends"}


def test_the_sends_during_an_outage_are_measured(spark: SparkSession) -> None:
    records = [
        *(pub(f"a{n}", n * 100, 4) for n in (*range(40), *range(80, 120))),
        *(pub(f"b{n}", n * 100, 9, address=B) for n in range(120)),
        pub("b50", 5010, 30, address=B, is_success=False),
    ]
    rows = [trace_row(records, "T1", 60_000, A), trace_row([], "T2", 60_000, B)]
    tables = trace_tables(spark.createDataFrame(rows, TRACE_SCHEMA))
    figures = collect_figures(tables, trace_measures(tables))
    assert figures.span is not None
    [outage] = figures.outages
    assert outage.broker == "broker-a"
    step = figures.span.bucket_ms
    assert T0 + 3900 < outage.begin_ms <= T0 + 3900 + step
    assert T0 + 8000 - step <= outage.end_ms <= T0 + 8000
    assert outage.during is not None
    assert outage.otherwise is not None
    assert 38 <= outage.during["message_count"] <= 41
    assert outage.during["message_count"] + outage.otherwise["message_count"] == 201
    assert (outage.during["failed_count"], outage.during["retried_count"]) == (1, 1)
    assert (outage.otherwise["failed_count"], outage.otherwise["retried_count"]) == (0, 0)
    assert (outage.during["p50_ms"], outage.during["max_ms"]) == (9, 30)
    page = render(figures)
    assert "got no message from" in page
    assert page.count('<rect class="outage"') == 3  # the two charts of sends, and the broker's row


def test_the_report_shows_the_figures(tables: TraceTables, folder: Path) -> None:
    page = build_report(folder, folder / "out" / "report.html", title="Shop & <co>").read_text()
    assert "<h1>Shop &amp; &lt;co&gt;</h1>" in page
    assert "All 30 messages of <b>audit</b> are on <b>broker-a</b>" in page
    assert "trace line not understood" in page
    assert "Transactions without a known outcome: 1 without an end." in page


def test_nothing_gives_a_report_that_says_so(spark: SparkSession) -> None:
    nothing = trace_tables(spark.createDataFrame([], TRACE_SCHEMA))
    figures = collect_figures(nothing, trace_measures(nothing))
    assert figures.span is None
    page = render(figures)
    assert "There are no traces yet." in page
    assert "No producer sent a trace" in page


def test_invalid_bodies_are_counted_not_fatal(spark: SparkSession) -> None:
    rubbish = [b"", b"\xff\xfe\x00", b"\x01\x02\x01\x02", b"Pub\x01x\x02", b"Pub" + b"\x01" * 40]
    rows: list[Any] = [
        (bytearray(body), f"R{number}", time_at(0), None, None, None)
        for number, body in enumerate(rubbish)
    ]
    rows.append((None, "R9", time_at(0), None, None, None))
    rows.append(trace_row([], "R10", 0, A))
    found = trace_tables(spark.createDataFrame(rows, TRACE_SCHEMA))
    assert found.sends.count() == 0
    assert found.unknown.count() >= 3
