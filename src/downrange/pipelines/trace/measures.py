"""Measures of the tables: percentiles, failures, balance. All are small, also for large topics.

Percentiles are Spark's `percentile_approx` with an accuracy of 10,000: bounded memory, a rank error
of at most 0.01 %, and always a value that occurs (so exact for small groups). The latency of a send
counts once per request; a batch is one request with many messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from downrange.pipelines.trace.tables import TraceTables

_ACCURACY: Final = 10_000
_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class TraceMeasures:
    """Aggregates of the trace tables.

    Attributes:
        sends_by_topic: Sends of each topic.
        sends_by_group: Sends of each producer group.
        sends_by_broker: Sends to each broker.
        sends_by_client: Sends of each client host.
        consumptions_by_group: Deliveries of each topic to each group.
        consumptions_by_client: Deliveries to each client host.
        transactions_by_topic: Half messages of each topic and producer group, and their outcomes.
        queue_counts: Messages of each queue, or of each broker if queues are not known.
        balance: How evenly each topic is distributed over brokers, and over queues.
        errors: Failures and their counts.
        send_windows: Sends of each topic and broker, minute by minute.
        consumption_windows: Deliveries to each group, minute by minute.
    """

    sends_by_topic: DataFrame
    sends_by_group: DataFrame
    sends_by_broker: DataFrame
    sends_by_client: DataFrame
    consumptions_by_group: DataFrame
    consumptions_by_client: DataFrame
    transactions_by_topic: DataFrame
    queue_counts: DataFrame
    balance: DataFrame
    errors: DataFrame
    send_windows: DataFrame
    consumption_windows: DataFrame


def trace_measures(tables: TraceTables, *, window: str = "1 minute") -> TraceMeasures:
    """Return the measures of the tables.

    Args:
        tables: The result of `trace_tables`.
        window: The length of a window in `send_windows` and `consumption_windows`.
    """
    sends = tables.sends
    counts = queue_counts(tables)
    return TraceMeasures(
        sends_by_topic=measure_sends(sends, ["topic"]),
        sends_by_group=measure_sends(sends, ["producer_group"]),
        sends_by_broker=measure_sends(sends, ["broker"]),
        sends_by_client=measure_sends(sends, ["client"]),
        consumptions_by_group=measure_deliveries(
            tables.deliveries, ["topic", "consumer_group"]
        ).join(_unconsumed_counts(tables.unconsumed), ["topic", "consumer_group"], "left"),
        consumptions_by_client=measure_deliveries(tables.deliveries, ["client"]),
        transactions_by_topic=measure_transactions(tables),
        queue_counts=counts,
        balance=measure_balance(counts, all_brokers(tables)),
        errors=measure_errors(sends, tables),
        send_windows=measure_sends(sends, [_window(window), "topic", "broker"], with_retries=False),
        consumption_windows=measure_deliveries(
            tables.deliveries, [_window(window), "topic", "consumer_group"]
        ),
    )


# ---- sends and deliveries ------------------------------------------------------------------------


def percentiles(column: Column, prefix: str = "") -> list[Column]:
    """Return the columns p50, p90, p99 and max of a duration in milliseconds."""
    found = [
        F.percentile_approx(column, share, _ACCURACY).alias(f"{prefix}{name}_ms")
        for name, share in _PERCENTILES.items()
    ]
    return [*found, F.max(column).alias(f"{prefix}max_ms")]


def measure_sends(
    sends: DataFrame, by: Sequence[str | Column], *, with_retries: bool = True
) -> DataFrame:
    """Return counts and latencies of sends, grouped.

    Args:
        sends: Rows of sends; in a batch read they have `attempt`.
        by: The columns to group by.
        with_retries: Whether to count repeated sends, which a stream cannot detect.
    """
    is_request = F.col("batch_index") == 0
    failed = F.count_if(~F.col("is_success"))
    retried = F.count_if(F.col("attempt") > 1)
    count = F.count(F.lit(1))
    measured = [
        count.alias("message_count"),
        F.count_if(is_request).alias("request_count"),
        failed.alias("failed_count"),
        F.try_divide(failed, count).alias("failed_share"),
        F.sum(F.when(is_request, F.col("body_bytes"))).alias("body_bytes"),
        *percentiles(F.when(is_request, F.col("cost_ms"))),
        F.min("time").alias("first_at"),
        F.max("time").alias("last_at"),
    ]
    if with_retries:
        measured += [
            retried.alias("retried_count"),
            F.try_divide(retried, count).alias("retried_share"),
        ]
    return sends.groupBy(*by).agg(*measured)


def measure_deliveries(deliveries: DataFrame, by: Sequence[str | Column]) -> DataFrame:
    """Return counts and durations of deliveries, grouped; an unfinished one is not a failure."""
    count = F.count(F.lit(1))
    failed = F.count_if(~F.col("is_success"))
    retried = F.count_if(F.col("retry_count") > 0)
    end_to_end: list[Column] = []
    if "end_to_end_ms" in deliveries.columns:
        end_to_end = percentiles(
            F.when(F.col("is_success"), F.col("end_to_end_ms")), prefix="end_to_end_"
        )
    return deliveries.groupBy(*by).agg(
        count.alias("delivery_count"),
        failed.alias("failed_count"),
        F.try_divide(failed, count).alias("failed_share"),
        retried.alias("retried_count"),
        F.try_divide(retried, count).alias("retried_share"),
        F.count_if(F.col("outcome") == "not finished").alias("unfinished_count"),
        *percentiles(F.col("cost_ms")),
        *end_to_end,
        F.min("time").alias("first_at"),
        F.max("time").alias("last_at"),
    )


def _window(length: str) -> Column:
    return F.window("time", length).alias("window")


def _unconsumed_counts(unconsumed: DataFrame) -> DataFrame:
    return unconsumed.groupBy("topic", "consumer_group").agg(
        F.count(F.lit(1)).alias("unconsumed_count")
    )


# ---- transactions --------------------------------------------------------------------------------


def measure_transactions(tables: TraceTables) -> DataFrame:
    """Count half messages and their outcomes by topic and producer group.

    The last outcome that a producer reported counts; `open` means that none is known.
    """
    last = _last_ends(tables.transactions)
    halves = tables.messages.where(F.col("message_kind") == "half").select(
        "message_id", "topic", "producer_group", "client_sent_at"
    )
    lasted_ms = F.unix_millis("ended_at") - F.unix_millis("client_sent_at")
    return (
        halves.join(last, "message_id", "full_outer")
        .select(
            F.coalesce("topic", "end_topic").alias("topic"),
            F.coalesce("producer_group", "end_group").alias("producer_group"),
            F.coalesce("state", F.lit("open")).alias("state"),
            F.coalesce("check_count", F.lit(0)).alias("check_count"),
            lasted_ms.alias("lasted_ms"),
        )
        .groupBy("topic", "producer_group")
        .agg(
            F.count(F.lit(1)).alias("transaction_count"),
            *(
                F.count_if(F.col("state") == state).alias(f"{state.replace(' ', '_')}_count")
                for state in ("committed", "rolled back", "unknown", "open")
            ),
            F.sum("check_count").alias("check_count"),
            *percentiles(F.col("lasted_ms")),
        )
    )


def _last_ends(transactions: DataFrame) -> DataFrame:
    """Return a row for each transaction: the last outcome that its producer reported.

    An outcome may be unknown at first and be decided by a later check.
    """
    return transactions.groupBy("message_id").agg(
        F.max_by("topic", "client_time").alias("end_topic"),
        F.max_by("producer_group", "client_time").alias("end_group"),
        F.max_by("state", "client_time").alias("state"),
        F.max_by("time", "client_time").alias("time"),
        F.max("client_time").alias("ended_at"),
        F.count_if(F.col("is_from_check")).alias("check_count"),
    )


# ---- balance -------------------------------------------------------------------------------------


def queue_counts(tables: TraceTables) -> DataFrame:
    """Count the messages of each queue, with 0 for empty queues below the highest used one.

    Only business topics have the queue of a message. Topics known from traces only have queue None.
    """
    traced = (
        tables.messages.where(F.col("topic").isNotNull() & F.col("broker").isNotNull())
        .where(F.col("send_count") > 0)
        .groupBy("topic", "broker")
        .agg(F.count(F.lit(1)).alias("message_count"))
        .withColumn("queue_id", F.lit(None).cast("int"))
    )
    if tables.stored is None:
        return traced.select("topic", "broker", "queue_id", "message_count")
    counted = tables.stored.groupBy("topic", F.col("broker_name").alias("broker"), "queue_id").agg(
        F.count(F.lit(1)).alias("message_count")
    )
    # Every broker of a topic normally has the same number of queues.
    last = counted.groupBy("topic").agg(F.max("queue_id").alias("last"))
    every = (
        counted.select("topic", "broker")
        .distinct()
        .join(F.broadcast(last), "topic")
        .select("topic", "broker", F.explode(F.sequence(F.lit(0), F.col("last"))).alias("queue_id"))
    )
    filled = every.join(counted, ["topic", "broker", "queue_id"], "left").fillna(
        0, ["message_count"]
    )
    return filled.unionByName(traced.join(F.broadcast(last), "topic", "left_anti"))


def measure_balance(counts: DataFrame, brokers: DataFrame) -> DataFrame:
    """Measure how evenly topics are distributed over brokers and over queues.

    Brokers without a message of the topic count as 0: a topic that was created by its first send
    is on one broker only, and only the empty brokers show that.

    Args:
        counts: The result of `queue_counts`.
        brokers: All brokers of the cluster, in the column `broker`.

    Returns:
        For each topic and `level` (`broker` or `queue`): the number of places and of used places,
        messages, the largest share and its place, maximum and minimum over mean, the coefficient
        of variation (0 is even) and the Gini coefficient (0 is even, near 1 is all in one place).
    """
    by_broker = counts.groupBy("topic", "broker").agg(F.sum("message_count").alias("message_count"))
    topics = by_broker.select("topic").distinct()
    over_brokers = (
        topics.crossJoin(F.broadcast(brokers))
        .join(by_broker, ["topic", "broker"], "left")
        .fillna(0, ["message_count"])
        .select(
            "topic", F.lit("broker").alias("level"), F.col("broker").alias("place"), "message_count"
        )
    )
    over_queues = counts.where(F.col("queue_id").isNotNull()).select(
        "topic",
        F.lit("queue").alias("level"),
        F.concat_ws("/", "broker", "queue_id").alias("place"),
        "message_count",
    )
    n, total = F.count(F.lit(1)), F.sum("message_count")
    most, least, mean = F.max("message_count"), F.min("message_count"), F.avg("message_count")
    # Gini of sorted counts: sum((2i - n - 1) x_i) / (n sum(x)), with i from 1.
    sorted_counts = F.sort_array(F.collect_list("message_count"))
    ranked = F.aggregate(
        F.transform(sorted_counts, lambda x, i: x * (2 * i + 1)),
        F.lit(0).cast("long"),
        lambda sum_, x: sum_ + x,
    )
    return (
        over_brokers.unionByName(over_queues)
        .groupBy("topic", "level")
        .agg(
            n.alias("place_count"),
            F.count_if(F.col("message_count") > 0).alias("used_count"),
            total.alias("message_count"),
            F.max_by("place", "message_count").alias("top_place"),
            F.try_divide(most, total).alias("top_share"),
            F.try_divide(most, mean).alias("max_over_mean"),
            F.try_divide(least, mean).alias("min_over_mean"),
            F.try_divide(F.stddev_pop("message_count"), mean).alias("variation"),
            (F.try_divide(ranked, n * total) - 1).alias("gini"),
        )
    )


def all_brokers(tables: TraceTables) -> DataFrame:
    """Return every known broker: sent to, named in traces, or with stored messages."""
    seen = tables.sends.select("broker").unionByName(
        tables.brokers.select(F.col("broker_name").alias("broker"))
    )
    if tables.stored is not None:
        seen = seen.unionByName(tables.stored.select(F.col("broker_name").alias("broker")))
    return seen.where(F.col("broker").isNotNull()).distinct()


# ---- errors --------------------------------------------------------------------------------------


def measure_errors(sends: DataFrame, tables: TraceTables) -> DataFrame:
    """Count failures by kind, by topic, and by broker, group or client."""
    parts = [
        _error_rows(
            sends.where(~F.col("is_success")),
            F.lit("send not stored cleanly"),
            who=F.col("broker"),
        ),
        _error_rows(
            tables.deliveries.where(~F.col("is_success")),
            F.concat(F.lit("consumption: "), F.col("outcome")),
            who=F.col("consumer_group"),
        ),
        _error_rows(
            # As in `measure_transactions`: an outcome that a check has decided is no error.
            _last_ends(tables.transactions)
            .where(F.col("state") == "unknown")
            .withColumnRenamed("end_topic", "topic"),
            F.lit("transaction: outcome unknown"),
            who=F.col("end_group"),
        ),
        _error_rows(
            tables.recalls.where(~F.col("is_success")),
            F.lit("recall refused"),
            who=F.col("producer_group"),
        ),
        _error_rows(
            tables.unknown.withColumn("topic", F.lit(None).cast("string")),
            F.lit("trace line not understood"),
            who=F.col("client"),
            example="line",
        ),
    ]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    return rows.groupBy("what", "topic", "who").agg(
        F.count(F.lit(1)).alias("error_count"),
        F.min("time").alias("first_at"),
        F.max("time").alias("last_at"),
        F.min("example").alias("example"),
    )


def _error_rows(
    rows: DataFrame, what: Column, *, who: Column, example: str = "message_id"
) -> DataFrame:
    return rows.select(
        what.alias("what"), "topic", who.alias("who"), "time", F.col(example).alias("example")
    )
