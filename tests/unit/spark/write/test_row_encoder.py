"""Rows as messages: every column and every rule, without a server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import InvalidMessage
from downrange.spark.write import rows as rows_module
from downrange.spark.write.row_encoder import batch_items, encode_rows, item_sizes
from downrange.spark.write.row_ids import RowIds, producer_ids
from downrange.spark.write.row_properties import DROPPED_PROPERTIES
from downrange.spark.write.rows import Rows, in_chunks
from downrange.spark.write.write_options import WriteOptions, parse_write
from downrange.wire.ids import UniqueIdMaker, parse_unique_id
from downrange.wire.properties import decode_properties
from downrange.wire.records import BatchItem, decode_batch, encode_batch

MAP = pa.map_(pa.string(), pa.string())
TYPES = {
    "body": pa.binary(),
    "keys": pa.string(),
    "tags": pa.string(),
    "topic": pa.string(),
    "sharding_key": pa.string(),
    "msg_id": pa.string(),
    "properties": MAP,
    "delay_time_ms": pa.int64(),
}


def options(**settings: str) -> WriteOptions:
    return parse_write({"nameServer": "127.0.0.1:1", "topic": "orders", **settings})


def batch_of(**columns: Any) -> Any:
    columns.setdefault("body", [b"1"] * len(next(iter(columns.values()), [1])))
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values, TYPES[name])
        for name, values in columns.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


def encoded(batch: Any, *, first_row: int = 0, **settings: Any) -> Any:
    return encode_rows(Rows(batch, first_row, 3), options(**settings), None, RowIds("me").of)


def properties_of(batch: Any, **settings: Any) -> list[dict[str, str]]:
    found = [
        decode_properties(text.as_py().decode()) for text in encoded(batch, **settings).properties
    ]
    for one in found:
        assert one.pop("WAIT") == "true"
        if settings.get("dedup") != "column":
            assert len(one.pop("UNIQ_KEY")) == 32
    return found


# ---- items ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.binary(max_size=50)), max_size=9))
def test_items_are_those_of_the_wire(pairs: list[tuple[bytes, bytes]]) -> None:
    bodies = pa.array([body for body, _ in pairs], pa.binary())
    properties = pa.array([text for _, text in pairs], pa.binary())
    items = b"".join(batch_items(bodies, properties).to_pylist())
    assert items == encode_batch(BatchItem(0, body, text) for body, text in pairs)


def test_any_slice_of_the_items_is_a_batch_and_sizes_tell_where_to_cut() -> None:
    rows = encoded(batch_of(body=[b"one", b"two", b"three"], tags=["a", None, "b"]))
    items = batch_items(rows.bodies, rows.properties).to_pylist()
    assert [len(item) for item in items] == item_sizes(rows).tolist()
    assert [item.body for item in decode_batch(b"".join(items[1:]))] == [b"two", b"three"]


def test_text_is_sent_as_utf8() -> None:
    rows = encoded(batch_of(body=pa.array(["grün", "x"])))
    assert rows.bodies.to_pylist() == ["grün".encode(), b"x"]


def test_large_types_are_read_as_well() -> None:
    batch = batch_of(
        body=pa.array([b"1", b"2"], pa.large_binary()),
        tags=pa.array(["a", "b"], pa.large_string()),
        keys=pa.array([["k", "l"], []], pa.list_(pa.large_string())),
        properties=pa.array([[("p", "q")], None], pa.map_(pa.large_string(), pa.large_string())),
    )
    assert properties_of(batch) == [{"TAGS": "a", "KEYS": "k l", "p": "q"}, {"TAGS": "b"}]


def test_a_large_batch_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(
        body=[bytes([number]) * 100 for number in range(10)],
        keys=pa.array([[f"k{number}"] for number in range(10)]),
        properties=pa.array([None, *([[("n", str(number))] for number in range(1, 10)])], MAP),
    )
    assert list(in_chunks(batch)) == [batch]
    monkeypatch.setattr(rows_module, "_CHUNK_BYTES", 400)
    parts = list(in_chunks(batch))
    assert len(parts) > 2
    assert pa.Table.from_batches(parts).to_pylist() == pa.Table.from_batches([batch]).to_pylist()
    found = [one for part in parts for one in properties_of(part)]
    assert found == [{"KEYS": "k0"}, *({"KEYS": f"k{n}", "n": str(n)} for n in range(1, 10))]


# ---- properties ----------------------------------------------------------------------------------


def test_columns_become_properties_and_nulls_and_blanks_become_nothing() -> None:
    batch = batch_of(
        keys=["a b", None, " ", " c "],
        tags=["new", None, "", "old"],
        sharding_key=["s", None, "", "t"],
        properties=[[("x", "1"), ("y", None)], None, [], [("z", "grün")]],
    )
    assert properties_of(batch) == [
        {"x": "1", "KEYS": "a b", "TAGS": "new", "__SHARDINGKEY": "s"},
        {},
        {},
        {"z": "grün", "KEYS": "c", "TAGS": "old", "__SHARDINGKEY": "t"},
    ]


def test_columns_without_any_value_are_as_if_they_were_not_there() -> None:
    batch = batch_of(keys=[None], tags=[None], properties=pa.array([None], MAP))
    assert properties_of(batch) == [{}]


@pytest.mark.parametrize("is_nullable", [True, False])
def test_a_list_of_keys_is_joined_by_blanks(is_nullable: bool) -> None:
    kind = pa.list_(pa.field("element", pa.string(), nullable=is_nullable))
    batch = batch_of(keys=pa.array([["a", "b"], [], None, ["c"]], kind))
    assert properties_of(batch) == [{"KEYS": "a b"}, {}, {}, {"KEYS": "c"}]


def test_what_the_protocol_owns_is_dropped_from_properties_that_were_read() -> None:
    """The map of a message that was read holds many such properties; brokers set them again."""
    owned = {
        *("UNIQ_KEY", "WAIT", "MIN_OFFSET", "MAX_OFFSET", "MSG_REGION", "TRACE_ON", "CLUSTER"),
        *("INSTANCE_ID", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"),
        *("RECONSUME_TIME", "CONSUME_START_TIME", "TRAN_MSG", "PGROUP", "DELAY", "TIMER_DELAY_MS"),
        *("TIMER_DELIVER_MS", "TIMER_OUT_MS", "POP_CK", "1ST_POP_TIME", "__transactionId__"),
        *("INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "TRANSACTION_CHECK_TIMES"),
        *("BORN_TIMESTAMP", "__BORNHOST", "__CRC32#", "DLQ_ORIGIN_TOPIC", "CORRELATION_ID"),
    }
    assert owned <= DROPPED_PROPERTIES
    assert not {"KEYS", "TAGS", "__SHARDINGKEY"} & DROPPED_PROPERTIES
    entries = [*((name, "x") for name in sorted(DROPPED_PROPERTIES)), ("mine", "1")]
    batch = batch_of(properties=[entries, [("UNIQ_KEY", "x")], [("KEYS", "k"), ("TAGS", "t")]])
    assert properties_of(batch) == [{"mine": "1"}, {}, {"KEYS": "k", "TAGS": "t"}]


def test_a_column_counts_more_than_a_property_of_its_meaning() -> None:
    entries = [("KEYS", "old"), ("TAGS", "old"), ("__SHARDINGKEY", "old"), ("mine", "1")]
    batch = batch_of(properties=[entries] * 2, keys=["new", None], tags=[None, "new"])
    assert properties_of(batch) == [
        {"mine": "1", "KEYS": "new", "__SHARDINGKEY": "old"},
        {"mine": "1", "TAGS": "new", "__SHARDINGKEY": "old"},
    ]


def test_entries_behind_a_null_map_are_not_sent() -> None:
    entries = pa.array([[("a", "1")], [("b", "2")]], MAP)
    _, offsets, *children = entries.buffers()
    mask = pa.array([True, False]).buffers()[1]
    hidden = pa.Array.from_buffers(MAP, 2, [mask, offsets], children=[entries.values])
    assert hidden.null_count == 1
    assert children
    assert properties_of(batch_of(properties=hidden)) == [{"a": "1"}, {}]


# ---- ids -----------------------------------------------------------------------------------------


def test_ids_are_the_same_for_the_same_row_and_no_other() -> None:
    first = RowIds("query 1 batch 7 partition 0").of(0, 70_000).to_pylist()
    again = RowIds("query 1 batch 7 partition 0").of(65_530, 10).to_pylist()
    other = RowIds("query 1 batch 7 partition 1").of(0, 70_000).to_pylist()
    assert first[65_530:65_540] == again
    assert len({*first, *other}) == 140_000
    # Pinned: later releases must make the same ids, or a restart sends rows under new ones.
    assert first[65_537] == b"C4442F057CAC0E940001000000000001"


def test_ids_have_the_form_that_tools_expect() -> None:
    for number in (0, 65_535, 65_536, 2**32 - 1):
        text = RowIds("x").of(number, 1)[0].as_py().decode()
        assert text == text.upper()
        parts = parse_unique_id(text)
        assert parts.month_ms == 0
        assert (int(text[16:20], 16) << 16) + parts.counter == number


def test_a_partition_with_more_rows_than_ids_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="repartition, or set dedup=column"):
        RowIds("x").of(2**32 - 1, 2)


def test_producer_ids_are_those_of_producers() -> None:
    maker = UniqueIdMaker(b"\x0a\x00\x00\x01", 7, 1, lambda _: (0, 1 << 60))
    ids = producer_ids(maker, 1000, 3).to_pylist()
    assert len(set(ids)) == 3
    assert parse_unique_id(ids[0].decode()).host == "10.0.0.1"


def test_ids_of_a_column_are_taken_as_they_are() -> None:
    found = properties_of(batch_of(msg_id=["order-1", "A/b:3"]), dedup="column")
    assert [one["UNIQ_KEY"] for one in found] == ["order-1", "A/b:3"]


# ---- rows that cannot be sent --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "settings", "problem"),
    [
        ({"body": [b"1", None]}, {}, r"row 11 of partition 3: its body is null; filter"),
        ({"body": [b"1", b""]}, {}, r"row 11 .*\(body of 0 bytes\): its body is empty"),
        (
            {"body": [b"1", b"x" * 101], "keys": [None, "o-1"]},
            {"maxMessageBytes": "100"},
            r"row 11 of partition 3 \(keys 'o-1', body of 101 bytes\): its body has 101 bytes, "
            "100 are allowed; send less, or raise the option maxMessageBytes",
        ),
        ({"tags": ["a", "b\x01"]}, {}, "row 11 .*tags contains byte 1 or 2"),
        ({"keys": ["a", "b\x02"]}, {}, "row 11 .*keys contains byte 1 or 2"),
        ({"sharding_key": ["a", "\x02"]}, {}, "row 11 .*sharding_key contains byte 1 or 2"),
        ({"keys": pa.array([["a"], ["b", "c d"]])}, {}, "row 11 .*key 'c d' is null, empty or"),
        ({"keys": pa.array([["a"], ["b", None]])}, {}, "row 11 .*key None is null"),
        ({"keys": pa.array([["a"], [""]])}, {}, "row 11 .*key '' is null, empty"),
        ({"keys": pa.array([["a"], ["b\x01"]])}, {}, "row 11 .*keys contains byte 1 or 2"),
        ({"properties": [[], [("a", " ")]]}, {}, "row 11 .*property 'a' = ' ' is invalid"),
        ({"properties": [[], [("", "b")]]}, {}, "row 11 .*property '' = 'b' is invalid"),
        ({"properties": [[], [("a\x01", "b")]]}, {}, "row 11 .*is invalid"),
        ({"properties": [[], [("a", "b\x02")]]}, {}, "row 11 .*is invalid"),
        (
            {"properties": [[], [("a", "b" * 40_000)]]},
            {},
            r"row 11 .*take 400\d\d bytes, 32767 are allowed; move some data into the body",
        ),
        ({"delay_time_ms": [1, -1]}, {}, "row 11 .*delay_time_ms is -1"),
        ({"msg_id": ["a", None]}, {"dedup": "column"}, "row 11 .*msg_id is None; an id has"),
        ({"msg_id": ["a", ""]}, {"dedup": "column"}, "row 11 .*msg_id is ''"),
        ({"msg_id": ["a", "b c"]}, {"dedup": "column"}, "row 11 .*msg_id is 'b c'"),
        ({"msg_id": ["a", "é"]}, {"dedup": "column"}, "row 11 .*msg_id is 'é'"),
        ({"msg_id": ["a", "b" * 129]}, {"dedup": "column"}, "row 11 .*msg_id is 'bbb"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(
    columns: dict[str, Any], settings: dict[str, str], problem: str
) -> None:
    with pytest.raises(InvalidMessage, match=problem):
        encoded(batch_of(**columns), first_row=10, **settings)


@pytest.mark.parametrize("name", ["tags", "keys", "sharding_key"])
def test_a_text_that_is_not_utf8_is_named(name: str) -> None:
    broken = pa.array([b"a", None, b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(InvalidMessage, match=f"row 12 .*{name} is not UTF-8"):
        encoded(batch_of(body=[b"1", b"2", b"3"], **{name: broken}), first_row=10)


@pytest.mark.parametrize("place", ["names", "values"])
def test_a_property_that_is_not_utf8_is_named(place: str) -> None:
    good = pa.array(["a", "b"])
    broken = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    names, values = (broken, good) if place == "names" else (good, broken)
    entries = pa.MapArray.from_arrays([0, 1, 2], names, values)
    with pytest.raises(InvalidMessage, match=r"row 1 .*is invalid: name and value must be"):
        encoded(batch_of(properties=entries))


@pytest.mark.parametrize(
    ("topics", "problem"),
    [
        ([b"a", b"\xff"], "row 1 .*not UTF-8.*topic"),
        (["a", None], "row 1 .*its topic is null; name one, or set the option topic"),
        (["a", "b c"], r"row 1 of partition 3 \(topic 'b c', .*contains ' '"),
        (["a", "SELF_TEST_TOPIC"], "row 1 .*'SELF_TEST_TOPIC' "),
    ],
)
def test_an_invalid_topic_is_named(topics: list[Any], problem: str) -> None:
    column = pa.array(topics, pa.binary()).view(pa.string())
    rows = Rows(batch_of(topic=column, body=[b"1"] * 2), 0, 3)
    parsed = parse_write({"nameServer": "127.0.0.1:1"})
    with pytest.raises(InvalidMessage, match=problem):
        encode_rows(rows, parsed, None, RowIds("me").of)


def test_the_option_topic_counts_more_than_the_column() -> None:
    rows = encoded(batch_of(topic=["a", None]))
    assert (rows.topics, rows.topic_codes.tolist(), len(rows)) == (["orders"], [0, 0], 2)


def test_delays_are_there_only_if_one_is() -> None:
    assert encoded(batch_of(delay_time_ms=[None, None])).delays_ms is None
    assert encoded(batch_of(delay_time_ms=[0, None])).delays_ms is None
    assert encoded(batch_of(delay_time_ms=[5, None])).delays_ms.tolist() == [5, 0]


# ---- any rows ------------------------------------------------------------------------------------

_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=8
).filter(lambda text: text.strip(" \t\n\r\v\f") == text and text != "")
_NAMES = _TEXT.filter(lambda name: name not in DROPPED_PROPERTIES | {"KEYS", "TAGS"})
_ROW = st.tuples(
    st.binary(min_size=1, max_size=30),
    st.none() | _TEXT,
    st.none() | _TEXT,
    st.none() | st.dictionaries(_NAMES, st.none() | _TEXT, max_size=4),
)


@given(st.lists(_ROW, min_size=1, max_size=12), st.integers(0, 3))
def test_any_rows_become_the_messages_that_one_would_write_by_hand(
    rows: list[tuple[bytes, str | None, str | None, dict[str, str | None] | None]], skipped: int
) -> None:
    batch = batch_of(
        body=[row[0] for row in rows],
        keys=[row[1] for row in rows],
        tags=[row[2] for row in rows],
        properties=[None if row[3] is None else list(row[3].items()) for row in rows],
    ).slice(skipped)
    if not batch.num_rows:
        return
    found = encoded(batch)
    items = decode_batch(b"".join(batch_items(found.bodies, found.properties).to_pylist()))
    for item, unique_id, (body, keys, tags, properties) in zip(
        items, found.ids.to_pylist(), rows[skipped:], strict=True
    ):
        expected = {name: value for name, value in (properties or {}).items() if value is not None}
        expected |= {"UNIQ_KEY": unique_id.decode(), "WAIT": "true"}
        expected |= {} if keys is None else {"KEYS": keys}
        expected |= {} if tags is None else {"TAGS": tags}
        assert item.body == body
        assert decode_properties(item.property_bytes.decode()) == expected


@given(
    st.lists(st.text("ab \t\n\x00\x03\x7fé\u3000", max_size=4) | st.none(), min_size=1, max_size=6),
    st.integers(0, 2),
)
def test_texts_are_trimmed_whatever_the_others_are(texts: list[str | None], skipped: int) -> None:
    """Columns of usual texts take a short way, which must not be seen."""
    whole = pa.array(["x"] * skipped + texts, pa.string()).slice(skipped)
    found = [row.get("TAGS") for row in properties_of(batch_of(tags=whole))]
    assert found == [(text or "").strip(" \t\n\v\f\r") or None for text in texts]
