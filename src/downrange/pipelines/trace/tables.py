"""Rows of records as tables: sends, consumptions, transactions, recalls, messages.

The row tables (`sends_of` and similar functions) work on batches and on streams. Tables of whole
messages, such as those sent and never consumed, need all rows of a message and so a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from downrange.errors import OptionError
from downrange.pipelines.trace.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

#: Java's numbers for the result of a listener -> `outcome` of a consumption.
_OUTCOMES: Final = {
    0: "success",
    1: "timed out",
    2: "exception",
    3: "returned nothing",
    4: "failed",
}
_STATES: Final = {
    "COMMIT_MESSAGE": "committed",
    "ROLLBACK_MESSAGE": "rolled back",
    "UNKNOW": "unknown",
}
#: Columns that are read of a business topic -> type, and whether the column is required.
_STORED: Final = {
    "topic": ("string", True),
    "broker_name": ("string", True),
    "queue_id": ("int", True),
    "msg_id": ("string", True),
    "offset": ("long", False),
    "keys": ("string", False),
    "tags": ("string", False),
    "born_timestamp": ("timestamp", False),
    "store_timestamp": ("timestamp", False),
    "store_host": ("string", False),
}


@dataclass(frozen=True)
class TraceTables:
    """The content of traces, as tables.

    Attributes:
        records: A row for each message of each record, as decoded; the source of the other tables.
            None if it was not kept.
        sends: A row for each message of each send that a broker answered, with the broker's name;
            `attempt` above 1 marks a repeated send.
        consumptions: A row for each delivery to a consumer.
        transactions: A row for each end of a transaction that a producer reported.
        recalls: A row for each attempt to recall a timed message.
        unknown: Lines of trace messages that cannot be decoded.
        messages: A row for each message: time, broker, number of sends; with business topics, also
            messages that were sent without a trace.
        deliveries: Consumptions with the message that was consumed.
        unconsumed: Messages that a group of their topic did not get, or did not consume with
            success.
        stored: The messages of business topics, without bodies; None if no topics were given.
        brokers: Address and name of each broker, as far as known.
        begin: The tables hold rows from this time on; None for all.
        end: The tables hold rows before this time; None for all.
    """

    records: DataFrame | None
    sends: DataFrame
    consumptions: DataFrame
    transactions: DataFrame
    recalls: DataFrame
    unknown: DataFrame
    messages: DataFrame
    deliveries: DataFrame
    unconsumed: DataFrame
    stored: DataFrame | None
    brokers: DataFrame
    begin: datetime | None = None
    end: datetime | None = None

    def frames(self) -> dict[str, DataFrame]:
        """Return the tables by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: table
            for name, table in named.items()
            if name not in ("begin", "end") and table is not None
        }


def trace_tables(
    traces: DataFrame,
    business: DataFrame | None = None,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> TraceTables:
    """Return the content of the trace topic as tables.

    Args:
        traces: Rows of the trace topic from a batch read, with the data source's columns;
            preferably with `includeMetadata`, for clients and the names of brokers.
        business: Rows of the topics that the traces are about; their bodies are not read.
        begin: Leave out earlier events.
        end: Leave out events at this time or later; later consumptions still count for messages
            that were sent before.

    Raises:
        OptionError: A required column is missing, or `end` is not after `begin`.
    """
    return tables_of_records(decode_records(traces), business, begin=begin, end=end)


def tables_of_records(
    records: DataFrame,
    business: DataFrame | None = None,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> TraceTables:
    """Return the tables of decoded records; see `trace_tables`."""
    for name, time in (("begin", begin), ("end", end)):
        if time is not None and time.tzinfo is None:
            raise OptionError(f"{name} {time} has no time zone; give one, for example UTC")
    if begin is not None and end is not None and begin >= end:
        raise OptionError(f"the time range ends at {end}, not after its begin {begin}")
    stored = None if business is None else _stored_of(business)
    return assemble(records, stored, begin, end)


def assemble(
    records: DataFrame,
    stored: DataFrame | None,
    begin: datetime | None,
    end: datetime | None,
    keep: Callable[[str, DataFrame], DataFrame] = lambda _name, table: table,
) -> TraceTables:
    """Derive all tables from records and from the messages of business topics.

    Args:
        records: The result of `decode_records`.
        stored: The messages of business topics, or None.
        begin: See `TraceTables`.
        end: See `TraceTables`.
        keep: Takes the name of a table and the table, and returns the table that others are derived
            from; writes each table to files once.
    """
    in_range = _in_range("time", begin, end)
    records = keep("records", records)
    if stored is not None:
        stored = keep("stored", stored.where(_in_range("stored_at", begin, end)))
    brokers = keep("brokers", _brokers_of(records, stored))
    all_consumptions = pair_consumptions(
        befores_of(records).dropDuplicates(["delivery_id"]),
        afters_of(records).dropDuplicates(["delivery_id"]),
    )
    all_ends, all_recalls = transactions_of(records), recalls_of(records)
    sends = keep("sends", _numbered(_named_brokers(sends_of(records).where(in_range), brokers)))
    messages = keep("messages", _messages_of(sends, stored))
    consumptions = keep("consumptions", all_consumptions.where(in_range))
    deliveries = keep("deliveries", _deliveries_of(consumptions, messages))
    transactions = keep("transactions", all_ends.where(in_range))
    recalls = keep("recalls", all_recalls.where(in_range))
    if end is None:
        met, ends, taken_back = deliveries, transactions, recalls
    else:  # later events still count for a message that was sent before the end
        met = _deliveries_of(all_consumptions, messages)
        ends, taken_back = all_ends, all_recalls
    return TraceTables(
        records=records,
        sends=sends,
        consumptions=consumptions,
        transactions=transactions,
        recalls=recalls,
        unknown=keep("unknown", unknown_of(records).where(in_range)),
        messages=messages,
        deliveries=deliveries,
        unconsumed=keep("unconsumed", _unconsumed_of(messages, met, ends, taken_back)),
        stored=stored,
        brokers=brokers,
        begin=begin,
        end=end,
    )


# ---- rows, of batches and of streams -------------------------------------------------------------


def sends_of(records: DataFrame) -> DataFrame:
    """Return a row for each message of each send."""
    return records.where(F.col("kind") == "send").select(
        *("record_id", "time", "client_time", "store_time", "topic", "message_id"),
        F.col("group_name").alias("producer_group"),
        *("client", "address", "region", "tags", "keys", "body_bytes", "cost_ms"),
        *("message_kind", "offset_id", "is_success", "batch_index", "batch_count"),
    )


def transactions_of(records: DataFrame) -> DataFrame:
    """Return a row for each end of a transaction."""
    return records.where(F.col("kind") == "transaction").select(
        *("record_id", "time", "client_time", "store_time", "topic", "message_id"),
        F.col("group_name").alias("producer_group"),
        *("client", "address", "region", "tags", "keys", "transaction_id"),
        _named(F.col("state"), _STATES, "unknown").alias("state"),
        "is_from_check",
    )


def recalls_of(records: DataFrame) -> DataFrame:
    """Return a row for each recall."""
    return records.where(F.col("kind") == "recall").select(
        *("record_id", "time", "client_time", "store_time", "topic", "message_id"),
        F.col("group_name").alias("producer_group"),
        *("client", "region", "is_success"),
    )


def unknown_of(records: DataFrame) -> DataFrame:
    """Return a row for each line that cannot be decoded."""
    return records.where(F.col("kind") == "unknown").select(
        "record_id", "time", "store_time", "client", "line"
    )


def befores_of(records: DataFrame) -> DataFrame:
    """Return the begins of consumptions, with the column names of `pair_consumptions`."""
    return records.where(F.col("kind") == "before").select(
        "delivery_id",
        F.col("time").alias("begin_time"),
        F.col("client_time").alias("begin_client_time"),
        F.col("message_id").alias("begin_message_id"),
        F.col("group_name").alias("begin_group"),
        F.col("client").alias("begin_client"),
        F.col("keys").alias("begin_keys"),
        *("region", "retry_count"),
    )


def afters_of(records: DataFrame) -> DataFrame:
    """Return the ends of consumptions, with the column names of `pair_consumptions`."""
    return records.where(F.col("kind") == "after").select(
        F.col("delivery_id").alias("end_delivery_id"),
        "delivery_id",
        F.col("time").alias("end_time"),
        F.col("client_time").alias("end_client_time"),
        F.col("message_id").alias("end_message_id"),
        F.col("group_name").alias("end_group"),
        F.col("client").alias("end_client"),
        F.col("keys").alias("end_keys"),
        *("cost_ms", "is_success", "result"),
    )


def pair_consumptions(
    befores: DataFrame, afters: DataFrame, within: Column | None = None
) -> DataFrame:
    """Join the begin and the end of each consumption; a row with only one of them stays.

    In old releases the end has neither time nor group; they come from the begin.

    Args:
        befores: The result of `befores_of`.
        afters: The result of `afters_of`.
        within: How far apart the two may be; streams need it to drop state.
    """
    end_id = F.col("end_delivery_id")
    is_same = befores["delivery_id"] == end_id
    joined = befores.join(
        afters.drop("delivery_id"), is_same if within is None else is_same & within, "full_outer"
    )
    began, ended, cost = F.col("begin_client_time"), F.col("end_client_time"), F.col("cost_ms")
    success = F.col("is_success")
    return joined.select(
        F.coalesce("delivery_id", end_id).alias("delivery_id"),
        F.coalesce("end_time", "begin_time").alias("time"),
        F.coalesce(began, _shifted(ended, -cost)).alias("began_at"),
        F.coalesce(ended, _shifted(began, cost)).alias("ended_at"),
        F.coalesce("begin_message_id", "end_message_id").alias("message_id"),
        F.coalesce("begin_group", "end_group").alias("consumer_group"),
        F.coalesce("begin_client", "end_client").alias("client"),
        "region",
        F.coalesce("begin_keys", "end_keys").alias("keys"),
        *("retry_count", "cost_ms", "is_success"),
        F.when(end_id.isNull(), "not finished")
        .when(success, "success")
        .when(F.col("result") == 0, "failed")
        .otherwise(_named(F.col("result"), _OUTCOMES, "failed"))
        .alias("outcome"),
    )


# ---- messages as a whole, of batches only --------------------------------------------------------


def _stored_of(business: DataFrame) -> DataFrame:
    columns: list[Any] = []
    for name, (kind, is_needed) in _STORED.items():
        if name in business.columns:
            columns.append(F.col(name).cast(kind).alias(name))
        elif is_needed:
            raise OptionError(
                f"business topics have no column {name!r}; give rows as the data source reads them"
            )
        else:
            columns.append(F.lit(None).cast(kind).alias(name))
    return (
        business.select(*columns)
        .withColumnRenamed("msg_id", "message_id")
        .withColumnRenamed("born_timestamp", "born_at")
        .withColumnRenamed("store_timestamp", "stored_at")
    )


def _brokers_of(records: DataFrame, stored: DataFrame | None) -> DataFrame:
    """Return address and name of each broker that stored traces or business messages."""
    known = records.select(
        F.col("trace_host").alias("address"), F.col("trace_broker").alias("broker_name")
    )
    if stored is not None:
        known = known.unionByName(
            stored.select(F.col("store_host").alias("address"), "broker_name")
        )
    named = known.where(F.col("address").isNotNull() & F.col("broker_name").isNotNull())
    return named.groupBy("address").agg(F.min("broker_name").alias("broker_name"))


def _named_brokers(rows: DataFrame, brokers: DataFrame) -> DataFrame:
    """Add the column `broker`: the name of the broker at `address`, or the address itself."""
    return (
        rows.join(F.broadcast(brokers), "address", "left")
        .withColumn("broker", F.coalesce("broker_name", "address"))
        .drop("broker_name")
    )


def _numbered(sends: DataFrame) -> DataFrame:
    """Add the column `attempt`: 1 for the first send of a message, more where it was repeated."""
    order = Window.partitionBy("message_id").orderBy("client_time", "record_id")
    number = F.when(F.col("message_id").isNull(), 1).otherwise(F.row_number().over(order))
    return sends.withColumn("attempt", number)


def _messages_of(sends: DataFrame, stored: DataFrame | None) -> DataFrame:
    # The earliest send gives the message's data, the earliest stored one its position.
    at = F.col("client_time")
    where = F.when(F.col("is_success"), F.col("broker"))
    traced = (
        sends.where(F.col("message_id").isNotNull())
        .groupBy("message_id")
        .agg(
            F.min_by("topic", at).alias("traced_topic"),
            F.min_by("producer_group", at).alias("producer_group"),
            F.min_by("client", at).alias("client"),
            F.min_by("keys", at).alias("traced_keys"),
            F.min_by("tags", at).alias("traced_tags"),
            F.min_by("message_kind", at).alias("message_kind"),
            F.min("time").alias("traced_at"),
            F.min(at).alias("client_sent_at"),
            F.coalesce(
                F.min_by(where, F.when(where.isNotNull(), at)), F.min_by("broker", at)
            ).alias("traced_broker"),
            F.max("is_success").alias("is_acknowledged"),
            F.count(F.lit(1)).alias("send_count"),
        )
    )
    if stored is None:
        none = F.lit(None)
        return _as_messages(
            traced.withColumns(
                {
                    **{name: none.cast("string") for name in ("stored_topic", "broker_name")},
                    **{name: none.cast("string") for name in ("stored_keys", "stored_tags")},
                    "queue_id": none.cast("int"),
                    "stored_count": none.cast("long"),
                    **{name: none.cast("timestamp") for name in ("stored_at", "born_at")},
                }
            )
        )
    position = F.struct("stored_at", "broker_name", "queue_id", "offset")
    held = (
        stored.where(F.col("message_id").isNotNull())
        .groupBy("message_id")
        .agg(
            F.min_by("topic", position).alias("stored_topic"),
            F.min_by("broker_name", position).alias("broker_name"),
            F.min_by("queue_id", position).alias("queue_id"),
            F.min_by("keys", position).alias("stored_keys"),
            F.min_by("tags", position).alias("stored_tags"),
            F.min("stored_at").alias("stored_at"),
            F.min("born_at").alias("born_at"),
            F.count(F.lit(1)).alias("stored_count"),
        )
    )
    return _as_messages(traced.join(held, "message_id", "full_outer"))


def _as_messages(joined: DataFrame) -> DataFrame:
    return joined.select(
        "message_id",
        F.coalesce("traced_topic", "stored_topic").alias("topic"),
        *("producer_group", "client"),
        F.coalesce("traced_keys", "stored_keys").alias("keys"),
        F.coalesce("traced_tags", "stored_tags").alias("tags"),
        F.coalesce("message_kind", F.lit("not traced")).alias("message_kind"),
        F.coalesce("traced_at", "stored_at", "born_at").alias("sent_at"),
        F.coalesce("client_sent_at", "born_at", "stored_at").alias("client_sent_at"),
        F.coalesce("broker_name", "traced_broker").alias("broker"),
        "queue_id",
        (F.coalesce("is_acknowledged", F.lit(False)) | F.col("stored_count").isNotNull()).alias(
            "is_stored"
        ),
        F.coalesce("send_count", F.lit(0)).alias("send_count"),
        "stored_count",
    )


def _deliveries_of(consumptions: DataFrame, messages: DataFrame) -> DataFrame:
    """Add the topic, which consumer traces lack, and the time from send to end."""
    sent = messages.select(
        "message_id",
        "topic",
        "producer_group",
        F.col("client_sent_at").alias("sent_at"),
        "broker",
    )
    elapsed_ms = F.unix_millis("ended_at") - F.unix_millis("sent_at")
    return consumptions.join(sent, "message_id", "left").withColumn("end_to_end_ms", elapsed_ms)


def _unconsumed_of(
    messages: DataFrame, deliveries: DataFrame, transactions: DataFrame, recalls: DataFrame
) -> DataFrame:
    """Return the messages that a group of their topic did not get, or did not finish.

    The groups of a topic are those with a trace of a consumption from it. Without any, a message
    has one row with a null group.
    """
    committed = transactions.where(F.col("state") == "committed").select("message_id").distinct()
    recalled = recalls.where(F.col("is_success")).select("message_id").distinct()
    known = messages.where(F.col("is_stored"))
    halves = known.where(F.col("message_kind") == "half").join(committed, "message_id", "left_semi")
    visible = (
        known.where(F.col("message_kind") != "half")
        .unionByName(halves)
        .join(recalled, "message_id", "left_anti")
    )
    groups = (
        deliveries.where(F.col("topic").isNotNull() & F.col("consumer_group").isNotNull())
        .select("topic", "consumer_group")
        .distinct()
    )
    met = deliveries.groupBy("message_id", "consumer_group").agg(
        F.count(F.lit(1)).alias("delivery_count"),
        F.max(F.coalesce("is_success", F.lit(False))).alias("is_done"),
        F.max_by("outcome", "time").alias("last_outcome"),
    )
    expected = visible.join(F.broadcast(groups), "topic", "left")
    return (
        expected.join(met, ["message_id", "consumer_group"], "left")
        .where(~F.coalesce("is_done", F.lit(False)))
        .select(
            *("message_id", "topic", "consumer_group", "keys", "tags", "message_kind"),
            *("sent_at", "broker", "queue_id", "producer_group"),
            F.coalesce("delivery_count", F.lit(0)).alias("delivery_count"),
            F.coalesce("last_outcome", F.lit("never delivered")).alias("last_outcome"),
        )
    )


# ---- expressions ---------------------------------------------------------------------------------


def _in_range(name: str, begin: datetime | None, end: datetime | None) -> Column:
    column = F.col(name)
    kept = F.lit(True)
    if begin is not None:
        kept = kept & (column >= F.lit(begin))
    if end is not None:
        kept = kept & (column < F.lit(end))
    return kept


def _shifted(time: Column, milliseconds: Column) -> Column:
    return F.timestamp_millis(F.unix_millis(time) + milliseconds)


def _named(value: Column, names: dict[Any, str], otherwise: str) -> Column:
    chosen = F.lit(otherwise)
    for key, name in names.items():
        chosen = F.when(value == key, name).otherwise(chosen)
    return chosen
