"""The data of the report as plain Python: series of at most 60 points, and tables of a few rows.

Only aggregates and the top of sorted tables are collected, so memory does not grow with the topic.
From here on times are milliseconds since 1970, independent of Spark's time zone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark import inheritable_thread_target
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from downrange.pipelines.trace.measures import all_brokers, measure_deliveries, measure_sends
from downrange.pipelines.trace.outages import find_outages, longest, measure_outage, with_sends

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from downrange.pipelines.trace.measures import TraceMeasures
    from downrange.pipelines.trace.outages import Outage
    from downrange.pipelines.trace.tables import TraceTables

#: A row of a small table, by column.
Line: TypeAlias = dict[str, Any]

BUCKETS_MAX: Final = 60
SERIES_MAX: Final = 6
BROKERS_MAX: Final = 24
#: With fewer messages per broker or queue, a topic looks uneven by chance.
MESSAGES_PER_PLACE_MIN: Final = 10
LINES_MAX: Final = 12
_QUEUES_MAX: Final = 2048
_JOBS_AT_ONCE: Final = 4
#: The lengths of buckets in seconds, before they are fitted to the range; longer ones are days.
_BUCKET_SECONDS: Final = (
    *(0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 14400, 21600, 43200, 86400),
)
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class Series:
    """A line of a chart: a value for each time bucket, None if there is none."""

    name: str
    values: list[float | None]


@dataclass(frozen=True)
class Span:
    """The time range of a report, divided into buckets of equal length."""

    begin_ms: int
    bucket_ms: int
    count: int

    @property
    def end_ms(self) -> int:
        """The end of the last bucket."""
        return self.begin_ms + self.bucket_ms * self.count

    @classmethod
    def over(cls, first_ms: int, last_ms: int) -> Span:
        """Return the span from the first to the last millisecond, both included.

        The buckets divide it without a rest: one that began before the range, or ended after it,
        would show fewer messages and a lower rate than there were. In a range of a round length,
        such as an hour, buckets have a round length too.
        """
        length = last_ms - first_ms + 1
        round_ms = next(
            (round(s * 1000) for s in _BUCKET_SECONDS if length <= s * 1000 * BUCKETS_MAX),
            -(-length // (_DAY_MS * BUCKETS_MAX)) * _DAY_MS,
        )
        count = -(-length // round_ms)
        return cls(first_ms, -(-length // count), count)


@dataclass
class Figures:
    """The data of a report.

    Attributes:
        span: The time range; None without any event.
        first_ms: The time of the first event, or the start of the range.
        last_ms: The time of the last event, or the end of the range.
        totals: Single numbers by name.
        sent: Messages sent per second: the largest topics, and the others.
        consumed: Deliveries per second: the largest groups, and the others.
        send_latency: Percentiles of the send latency.
        end_to_end: Percentiles of the time from a send to the end of the consumption.
        heat: Messages of each broker and bucket.
        outages: Times in which a broker got no message while others did.
        tables: Small tables by name, the largest values first.
        cut: The names of tables that have more rows than are shown.
        balance: The distribution of each topic over brokers and queues, the worst first.
        queues: Messages of the queues of each topic in `balance`.
        has_queues: Whether business topics were given, so that queues are known.
    """

    span: Span | None
    first_ms: int = 0
    last_ms: int = 0
    totals: Line = field(default_factory=dict[str, Any])
    sent: list[Series] = field(default_factory=list[Series])
    consumed: list[Series] = field(default_factory=list[Series])
    send_latency: list[Series] = field(default_factory=list[Series])
    end_to_end: list[Series] = field(default_factory=list[Series])
    heat: list[Series] = field(default_factory=list[Series])
    outages: list[Outage] = field(default_factory=list["Outage"])
    tables: dict[str, list[Line]] = field(default_factory=dict[str, list[Line]])
    cut: set[str] = field(default_factory=set[str])
    balance: list[Line] = field(default_factory=list[Line])
    queues: dict[str, list[Line]] = field(default_factory=dict[str, list[Line]])
    has_queues: bool = False


def collect_figures(tables: TraceTables, measures: TraceMeasures) -> Figures:
    """Collect the data of a report.

    Args:
        tables: The tables; preferably read from files, as each is used several times.
        measures: Their measures.
    """
    sends = tables.sends
    sent, delivered, counts, unconsumed, transactions = (
        lines[0]
        for lines in _run_concurrently(
            sends.sparkSession,
            [
                lambda: _lines(measure_sends(sends, [])),
                lambda: _lines(measure_deliveries(tables.deliveries, [])),
                lambda: _lines(_counts(tables)),
                lambda: _lines(_unconsumed_totals(tables.unconsumed)),
                lambda: _lines(_transaction_totals(measures.transactions_by_topic)),
            ],
        )
    )
    times = [
        line[name]
        for line in (sent, delivered, counts)
        for name in ("first_at", "last_at")
        if line[name] is not None
    ]
    if tables.begin is not None:
        times.append(round(tables.begin.timestamp() * 1000))
    if tables.end is not None:
        times.append(round(tables.end.timestamp() * 1000) - 1)
    figures = Figures(None, has_queues=tables.stored is not None)
    figures.totals = {
        **{f"sent_{name}": value for name, value in sent.items()},
        **{f"consumed_{name}": value for name, value in delivered.items()},
        **counts,
        **unconsumed,
        **transactions,
    }
    if times:
        figures.first_ms, figures.last_ms = min(times), max(times)
        figures.span = Span.over(figures.first_ms, figures.last_ms)
        _collect_lines(figures, tables, measures, sends)
        _collect_series(figures, figures.span, tables, sends)
        _collect_outages(figures, figures.span, sends)
    return figures


def _collect_lines(
    figures: Figures, tables: TraceTables, measures: TraceMeasures, sends: DataFrame
) -> None:
    """Collect the small tables."""
    slow_sends = sends.where((F.col("batch_index") == 0) & F.col("cost_ms").isNotNull())
    has_group = F.col("consumer_group").isNotNull()
    expected, groupless = tables.unconsumed.where(has_group), tables.unconsumed.where(~has_group)
    unconsumed = [
        F.count(F.lit(1)).alias("unconsumed_count"),
        F.count_if(F.col("delivery_count") == 0).alias("undelivered_count"),
        F.count_if(F.col("message_kind") == "delay").alias("delayed_count"),
        F.min("sent_at").alias("oldest_at"),
    ]
    top_tables: dict[str, tuple[DataFrame, str, int]] = {
        "topics": (measures.sends_by_topic, "message_count", LINES_MAX),
        "producer_groups": (measures.sends_by_group, "message_count", LINES_MAX),
        "brokers": (measures.sends_by_broker, "message_count", BROKERS_MAX),
        "clients": (measures.sends_by_client, "message_count", LINES_MAX),
        "consumers": (measures.consumptions_by_group, "delivery_count", LINES_MAX),
        "consumer_clients": (measures.consumptions_by_client, "delivery_count", LINES_MAX),
        "transactions": (measures.transactions_by_topic, "transaction_count", LINES_MAX),
        "errors": (measures.errors, "error_count", LINES_MAX),
        "unconsumed_groups": (
            expected.groupBy("topic", "consumer_group").agg(*unconsumed),
            "unconsumed_count",
            LINES_MAX,
        ),
        "groupless_topics": (
            groupless.groupBy("topic").agg(*unconsumed),
            "unconsumed_count",
            LINES_MAX,
        ),
        "slowest_sends": (slow_sends, "cost_ms", LINES_MAX),
        "slowest_deliveries": (
            tables.deliveries.where(F.col("end_to_end_ms").isNotNull()),
            "end_to_end_ms",
            LINES_MAX,
        ),
        "balance": (
            measures.balance.where(F.col("level") == "broker").withColumn("rank", _balance_rank()),
            "rank",
            LINES_MAX,
        ),
    }
    found = _run_concurrently(
        sends.sparkSession, [partial(_top, *one) for one in top_tables.values()]
    )
    for (name, (_rows, _column, count)), lines in zip(top_tables.items(), found, strict=True):
        figures.tables[name] = lines[:count]
        if len(lines) > count:
            figures.cut.add(name)
    oldest = expected.orderBy("sent_at", "message_id", "consumer_group").limit(LINES_MAX)
    figures.tables["unconsumed"] = _lines(oldest)
    figures.balance = figures.tables.pop("balance")
    topics = [line["topic"] for line in figures.balance]
    # Both are small: a row for each queue of a few topics.
    over_queues = _lines(
        measures.balance.where((F.col("level") == "queue") & F.col("topic").isin(topics))
    )
    by_topic = {line["topic"]: line for line in over_queues}
    for line in figures.balance:
        line["over_queues"] = by_topic.get(line["topic"])
    queues = measures.queue_counts.where(F.col("topic").isin(topics))
    found_queues = _lines(queues.orderBy("topic", "broker", "queue_id").limit(_QUEUES_MAX + 1))
    for line in found_queues:
        figures.queues.setdefault(line["topic"], []).append(line)
    if len(found_queues) > _QUEUES_MAX:  # some of the last topic's are missing
        del figures.queues[found_queues[-1]["topic"]]


def _collect_series(figures: Figures, span: Span, tables: TraceTables, sends: DataFrame) -> None:
    """Collect the lines of the charts."""
    at = F.floor((F.unix_millis("time") - span.begin_ms) / span.bucket_ms).alias("bucket")
    per_second = 1000 / span.bucket_ms
    topics = [line["topic"] for line in figures.tables["topics"][:SERIES_MAX]]
    groups = list(dict.fromkeys(line["consumer_group"] for line in figures.tables["consumers"]))[
        :SERIES_MAX
    ]
    brokers = [line["broker"] for line in figures.tables["brokers"]]
    count = F.count(F.lit(1)).alias("count")

    def counts(rows: DataFrame, column: str, names: Sequence[str | None]) -> list[Line]:
        known = F.coalesce(column, F.lit(_NAMELESS))
        kept = [_NAMELESS if name is None else name for name in names]
        shown = F.when(known.isin(kept), known).otherwise(_OTHERS).alias("name")
        return _lines(rows.groupBy(at, shown).agg(count))

    by_topic, by_group, by_broker, sent, delivered = _run_concurrently(
        sends.sparkSession,
        [
            lambda: counts(sends, "topic", topics),
            lambda: counts(tables.deliveries, "consumer_group", groups),
            lambda: counts(sends, "broker", brokers),
            lambda: _lines(measure_sends(sends, [at], with_retries=False)),
            lambda: _lines(measure_deliveries(tables.deliveries, [at])),
        ],
    )
    figures.sent = _series(span, by_topic, topics, per_second)
    figures.consumed = _series(span, by_group, groups, per_second)
    figures.heat = _series(span, by_broker, brokers)
    figures.send_latency = _percentile_series(span, sent, "")
    figures.end_to_end = _percentile_series(span, delivered, "end_to_end_")


def _collect_outages(figures: Figures, span: Span, sends: DataFrame) -> None:
    """Find the outages, and count the sends during the longest ones."""
    named = [one for one in figures.heat if one.name not in (_NAMELESS, _OTHERS)]
    found = list(find_outages(span, named))
    counted = longest(found)
    lines = _run_concurrently(
        sends.sparkSession,
        [partial(_lines, measure_outage(sends, one)) for one in counted],
    )
    measured = {
        (one.broker, one.begin_ms): with_sends(one, of_one)
        for one, of_one in zip(counted, lines, strict=True)
    }
    figures.outages = [measured.get((one.broker, one.begin_ms), one) for one in found]


#: Stand for a missing name, and for all names that are not shown separately.
_NAMELESS: Final = "(not named)"
_OTHERS: Final = "(others)"


def _series(
    span: Span,
    lines: list[Line],
    names: Sequence[str | None],
    factor: float = 1.0,
) -> list[Series]:
    """Return counts as a line for each name, with 0 for buckets without a count.

    Args:
        span: The time range.
        lines: Counts by name and bucket.
        names: The names, in the order of the lines.
        factor: The factor of each count, to get a rate for example.
    """
    order = [_NAMELESS if name is None else name for name in names]
    if any(line["name"] == _OTHERS for line in lines) and _OTHERS not in order:
        order.append(_OTHERS)
    values: dict[str, list[float | None]] = {name: [0.0] * span.count for name in order}
    for line in lines:
        if 0 <= line["bucket"] < span.count:
            values[line["name"]][line["bucket"]] = line["count"] * factor
    return [Series(name, values[name]) for name in order]


def _percentile_series(span: Span, lines: list[Line], prefix: str) -> list[Series]:
    found: list[Series] = []
    for name in ("p50", "p90", "p99"):
        values: list[float | None] = [None] * span.count
        for line in lines:
            if 0 <= line["bucket"] < span.count:
                values[line["bucket"]] = line[f"{prefix}{name}_ms"]
        found.append(Series(name, values))
    return found if any(value is not None for one in found for value in one.values) else []


def _counts(tables: TraceTables) -> DataFrame:
    """Return one row with the counts that sends and deliveries do not give."""
    halves = F.count_if(F.col("message_kind") == "half").alias("half_count")
    sends = tables.sends.agg(
        F.count_distinct("topic").alias("topic_count"),
        F.count_distinct("client").alias("client_count"),
        halves,
    )
    deliveries = tables.deliveries.agg(
        F.count_distinct("consumer_group").alias("group_count"),
        F.count_if(F.col("end_to_end_ms") < 0).alias("backward_count"),
        F.count_if(F.col("topic").isNull()).alias("unknown_topic_count"),
    )
    recalls = tables.recalls.agg(
        F.count(F.lit(1)).alias("recall_count"),
        F.count_if(~F.col("is_success")).alias("recall_failed_count"),
    )
    unknown = tables.unknown.agg(F.count(F.lit(1)).alias("unknown_line_count"))
    brokers = all_brokers(tables).agg(F.count(F.lit(1)).alias("broker_count"))
    times = (
        tables.transactions.select("time")
        .unionByName(tables.recalls.select("time"))
        .unionByName(tables.unknown.select("time"))
    )
    if tables.stored is not None:
        times = times.unionByName(tables.stored.select(F.col("stored_at").alias("time")))
    edges = times.agg(F.min("time").alias("first_at"), F.max("time").alias("last_at"))
    found = sends
    for part in (deliveries, recalls, unknown, brokers, edges):
        found = found.crossJoin(part)
    return found


def _unconsumed_totals(unconsumed: DataFrame) -> DataFrame:
    has_group = F.col("consumer_group").isNotNull()
    return unconsumed.agg(
        F.count_if(has_group).alias("unconsumed_count"),
        F.count_if(has_group & (F.col("delivery_count") == 0)).alias("undelivered_count"),
        F.count_if(~has_group).alias("groupless_count"),
    )


def _transaction_totals(transactions: DataFrame) -> DataFrame:
    return transactions.agg(
        *(
            F.coalesce(F.sum(f"{name}_count"), F.lit(0)).alias(f"transactions_{name}_count")
            for name in ("unknown", "open")
        )
    )


def _balance_rank() -> Column:
    """Rank the least even topics first, and topics with too few messages last."""
    is_enough = F.col("message_count") >= F.col("place_count") * MESSAGES_PER_PLACE_MIN
    return F.when(is_enough, F.col("gini")).otherwise(F.col("gini") - 1)


def _top(rows: DataFrame, column: str, count: int) -> list[Line]:
    """Return the rows with the largest values, in a stable order, and one more if there is one."""
    texts = [name for name, kind in rows.dtypes if kind == "string"]
    order: list[Column] = [F.col(column).desc_nulls_last(), *(F.col(name) for name in texts)]
    return _lines(rows.orderBy(*order).limit(count + 1))


def _run_concurrently(
    spark: SparkSession, jobs: Sequence[Callable[[], list[Line]]]
) -> list[list[Line]]:
    """Run jobs concurrently, so that Spark plans one while the tasks of another run."""
    with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
        # The threads inherit the job group, so that cancelling it cancels these jobs.
        inherit: Any = inheritable_thread_target(spark)
        return [one.result() for one in [pool.submit(inherit(job)) for job in jobs]]


def _lines(rows: DataFrame) -> list[Line]:
    """Collect rows; times become milliseconds since 1970."""
    columns = [
        F.unix_millis(field.name).alias(field.name)
        if isinstance(field.dataType, TimestampType)
        else F.col(field.name)
        for field in rows.schema.fields
    ]
    return [row.asDict() for row in rows.select(*columns).collect()]
