"""Rows of stored records: which ones, their content, and errors."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import MalformedBody, MalformedRecord, WireError
from downrange.spark.read import column_decoder, record_decoder
from downrange.spark.read.column_decoder import decode
from downrange.spark.read.record_decoder import Decoded, DecodeSpec, decode_each
from downrange.spark.schema import arrow_schema
from downrange.wire.codes import SysFlag
from downrange.wire.compression import Compression
from downrange.wire.records import MAGIC_V2, Record, scan_segment
from tests.golden.capture import FOLDER, SEGMENT
from tests.support.plain_messages import received
from tests.unit.spark.read.replies import (
    ALL_COLUMNS,
    INNER,
    UNIQUE_ID,
    compressed,
    encoded,
    inner_batch,
    property_bytes,
    record,
    spec,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Decoder = Callable[[Sequence[bytes], DecodeSpec], Decoded]

EPOCH = datetime.fromtimestamp(0, UTC)


@pytest.fixture(params=["each", "columns"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """Both decoders; the column decoder also for few records."""
    if request.param == "each":
        return decode_each
    monkeypatch.setattr(column_decoder, "CROSSOVER", 0)
    monkeypatch.setattr(column_decoder, "CROSSOVER_OF_NUMBERS", 0)
    # The column decoder must not fall back to the loop.
    monkeypatch.setattr(column_decoder, "decode_each", _reject)
    return decode


def _reject(chunks: Sequence[bytes], wanted: DecodeSpec) -> Decoded:
    decode_each(chunks, wanted)  # gives the error its text
    pytest.fail("the columns gave up on records that are sound")


def rows_of(decoded: Decoded) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decoded.batch.to_pylist(maps_as_pydicts="strict")
    return rows


def row_of(decoder: Decoder, one: Record, **changes: Any) -> dict[str, Any]:
    (row,) = rows_of(decoder([encoded(one)], spec(**changes)))
    return row


# ---- columns -------------------------------------------------------------------------------------


def test_a_record_is_a_row_of_all_columns(decoder: Decoder) -> None:
    decoded = decoder([encoded(record(7, reconsume_times=2, flag=-5))], spec())
    assert decoded.batch.schema.equals(arrow_schema(ALL_COLUMNS), check_metadata=True)
    assert decoded.damaged == 0
    assert rows_of(decoded) == [
        {
            "topic": "orders",
            "broker_name": "broker-a",
            "queue_id": 3,
            "offset": 7,
            "msg_id": f"{UNIQUE_ID}0007",
            "keys": "order-7",
            "tags": "paid",
            "body": b"body 7",
            "properties": {
                "KEYS": "order-7",
                "UNIQ_KEY": f"{UNIQUE_ID}0007",
                "WAIT": "true",
                "TAGS": "paid",
            },
            "born_timestamp": EPOCH + timedelta(milliseconds=1_794_775_023_398),
            "store_timestamp": EPOCH + timedelta(milliseconds=1_794_775_023_399),
            "born_host": "10.0.0.1:40000",
            "store_host": "10.0.0.2:10911",
            "reconsume_times": 2,
            "flag": -5,
            "sys_flag": 0,
        }
    ]


def test_columns_come_in_the_order_that_was_asked_for(decoder: Decoder) -> None:
    batch = decoder([encoded(record(7))], spec(columns=("tags", "offset", "topic"))).batch
    assert batch.schema == arrow_schema(("tags", "offset", "topic"))
    assert batch.to_pylist() == [{"tags": "paid", "offset": 7, "topic": "orders"}]


def test_no_records_are_no_rows(decoder: Decoder) -> None:
    for chunks in ([], [b""], [b"", b""]):
        batch = decoder(chunks, spec()).batch
        assert (batch.num_rows, batch.schema) == (0, arrow_schema(ALL_COLUMNS))


def test_rows_keep_the_order_of_the_records_over_all_replies(decoder: Decoder) -> None:
    chunks = [encoded(record(1), record(2)), b"", encoded(record(3)), encoded(record(9))]
    assert [row["offset"] for row in rows_of(decoder(chunks, spec()))] == [1, 2, 3, 9]


def test_only_the_range_becomes_rows(decoder: Decoder) -> None:
    chunks = [encoded(*(record(offset) for offset in range(10)))]
    rows = rows_of(decoder(chunks, spec(begin=3, end=6)))
    assert [(row["offset"], row["body"]) for row in rows] == [
        (3, b"body 3"),
        (4, b"body 4"),
        (5, b"body 5"),
    ]


def test_only_the_chosen_tags_become_rows(decoder: Decoder) -> None:
    tags = [b"TAGS\x01paid", b"TAGS\x01sent\x02", b"KEYS\x01paid\x02", b"", b"TAGS\x01paid x\x02"]
    chunks = [encoded(*(record(at, property_bytes=tag) for at, tag in enumerate(tags)))]
    rows = rows_of(decoder(chunks, spec(tags=frozenset(("paid", "open")))))
    assert [row["offset"] for row in rows] == [0]


def test_ipv6_hosts_and_long_topics_are_read(decoder: Decoder) -> None:
    chunks = [
        encoded(
            record(0),
            record(1, sys_flag=0x10, born_ip=bytes(15) + b"\x01"),
            record(2, sys_flag=0x20, store_ip=bytes(range(16)), magic=MAGIC_V2),
            record(
                3,
                sys_flag=0x30,
                born_ip=bytes(15) + b"\x01",
                store_ip=bytes(15) + b"\x02",
                magic=MAGIC_V2,
                topic_bytes=b"t" * 300,
                property_bytes=b"",
            ),
        )
    ]
    rows = rows_of(decoder(chunks, spec()))
    assert [row["born_host"] for row in rows] == [
        "10.0.0.1:40000",
        "::1:40000",
        "10.0.0.1:40000",
        "::1:40000",
    ]
    assert [row["store_host"] for row in rows] == [
        "10.0.0.2:10911",
        "10.0.0.2:10911",
        "1:203:405:607:809:a0b:c0d:e0f:10911",
        "::2:10911",
    ]
    assert [row["body"] for row in rows] == [b"body 0", b"body 1", b"body 2", b"body 3"]
    assert rows[3]["msg_id"] == f"{2:032X}{10911:08X}{3000:016X}"


def test_a_message_without_unique_id_has_the_id_of_its_place(decoder: Decoder) -> None:
    one = record(5, property_bytes=property_bytes(KEYS="a"))
    row = row_of(decoder, one)
    assert row["msg_id"] == one.offset_id == "0A00000200002A9F0000000000001388"


@pytest.mark.parametrize(
    ("time_ms", "year"),
    [
        (-62_135_596_800_000, 1),
        (253_402_300_799_999, 9999),
        (-62_135_596_800_001, None),
        (253_402_300_800_000, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_time_outside_the_calendar_is_null(
    decoder: Decoder, time_ms: int, year: int | None
) -> None:
    row = row_of(decoder, record(1, born_ms=time_ms, store_ms=0))
    born = row["born_timestamp"]
    assert (born and born.year) == year
    assert row["store_timestamp"] == EPOCH


# ---- properties ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "properties"),
    [
        (b"", {}),
        (b"a\x011", {"a": "1"}),
        (b"a\x011\x02", {"a": "1"}),
        (b"a\x011\x02b\x012", {"a": "1", "b": "2"}),
        (b"\x02\x02a\x011\x02\x02", {"a": "1"}),
        (b"a\x01\x02\x01b\x02c\x02d\x013\x02", {"d": "3"}),
        (b"a\x011\x012\x02b\x01\x01\x02", {"a": "1\x012", "b": "\x01"}),
        (b"a\x011\x02b\x012\x02a\x013\x02", {"a": "3", "b": "2"}),
        (b"a\x01\x00\x02\x00\x01b\x02", {"a": "\x00", "\x00": "b"}),
        ("größe\x01µ€\x02".encode(), {"größe": "µ€"}),
        (b"a\xff\x01\xe2\x82\x02b\x01\xc3", {"a\ufffd": "\ufffd", "b": "\ufffd"}),
        (b"no marks at all", {}),
        # Each breaks exactly one rule of the regular form.
        (b"aa\x02bb", {}),
        (b"aa\x01b\x00c\x01dd", {"aa": "b\x00c\x01dd"}),
        (b"aa\x01\x02bb\x012\x02", {"bb": "2"}),
        (b"\x01aa\x02bb\x012\x02", {"bb": "2"}),
        (b"aa\x011\x02bb\x01", {"aa": "1"}),
    ],
)
def test_properties_are_read_as_java_reads_them(
    decoder: Decoder, raw: bytes, properties: dict[str, str]
) -> None:
    one = record(1, property_bytes=raw)
    assert one.properties() == properties
    # Neighbours must stay unchanged.
    chunks = [encoded(record(0), one, record(2, property_bytes=b"z\x019"), record(3))]
    rows = rows_of(decoder(chunks, spec()))
    assert list(rows[1]["properties"].items()) == list(properties.items())
    assert [rows[at]["properties"] for at in (0, 2, 3)] == [
        record(0).properties(),
        {"z": "9"},
        record(3).properties(),
    ]


def test_the_last_of_two_properties_counts(decoder: Decoder) -> None:
    raw = b"TAGS\x01a\x02KEYS\x01b\x02UNIQ_KEY\x01c\x02TAGS\x01d\x02KEYS\x01e\x02UNIQ_KEY\x01f"
    row = row_of(decoder, record(1, property_bytes=raw), tags=frozenset("d"))
    assert (row["tags"], row["keys"], row["msg_id"]) == ("d", "e", "f")
    assert list(row["properties"].items()) == [("TAGS", "d"), ("KEYS", "e"), ("UNIQ_KEY", "f")]


def test_many_different_names_are_kept_apart(decoder: Decoder) -> None:
    """With this many names, pairs of row and name are sorted, not counted."""
    names = [[f"n{row}-{number}" for number in range(20)] for row in range(250)]
    names[17][3] = names[17][9]
    chunks = [
        encoded(
            *(
                record(row, property_bytes="\x02".join(f"{n}\x01{n}!" for n in some).encode())
                for row, some in enumerate(names)
            )
        )
    ]
    rows = rows_of(decoder(chunks, spec(columns=("properties",))))
    assert [list(row["properties"]) for row in rows] == [list(dict.fromkeys(s)) for s in names]


# ---- bodies --------------------------------------------------------------------------------------


def test_compressed_bodies_are_decompressed_among_plain_ones(decoder: Decoder) -> None:
    body = b"to be packed " * 50
    packed = [compressed(at, kind, body) for at, kind in enumerate(Compression, 1)]
    old = compressed(4, Compression.ZLIB, body)
    old.sys_flag = SysFlag.COMPRESSED  # from old senders
    chunks = [encoded(record(0), *packed, old, record(5, body=b""), record(6))]
    rows = rows_of(decoder(chunks, spec()))
    assert [row["body"] for row in rows] == [b"body 0", *[body] * 4, b"", b"body 6"]


BROKEN_BODIES = [
    pytest.param(record(1, sys_flag=0x301), id="zlib"),
    pytest.param(record(1, sys_flag=0x101), id="lz4"),
    pytest.param(record(1, sys_flag=0x201), id="zstd"),
    pytest.param(record(1, sys_flag=0x501), id="unknown compression"),
    pytest.param(compressed(1, Compression.ZLIB, b"x" * 2000), id="unpacks to too much"),
    pytest.param(inner_batch(1, 2, body=b"no batch"), id="batch"),
    pytest.param(
        inner_batch(1, 2, property_bytes=property_bytes(INNER_BASE="x")), id="base of a batch"
    ),
]


@pytest.mark.parametrize("broken", BROKEN_BODIES)
def test_a_broken_body_is_an_error_that_names_the_place(decoder: Decoder, broken: Record) -> None:
    chunks = [encoded(record(0), broken)]
    with pytest.raises(MalformedBody) as caught:
        decoder(chunks, spec(body_bytes_max=1999))
    text = str(caught.value)
    assert "topic 'orders', broker 'broker-a', queue 3, offset 1" in text
    assert "failOnDataLoss=false" in text


@pytest.mark.parametrize("broken", BROKEN_BODIES)
def test_a_broken_body_is_null_where_reading_goes_on(decoder: Decoder, broken: Record) -> None:
    chunks = [encoded(record(0), broken, record(2))]
    decoded = decoder(chunks, spec(body_bytes_max=1999, is_strict=False))
    rows = rows_of(decoded)
    assert [row["body"] for row in rows] == [b"body 0", None, b"body 2"]
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert (rows[1]["sys_flag"], rows[1]["properties"]) == (broken.sys_flag, broken.properties())
    assert decoded.damaged == 1


def test_a_broken_body_that_is_not_read_is_not_an_error(decoder: Decoder) -> None:
    chunks = [encoded(*(record(at, sys_flag=0x301) for at in range(4)))]
    assert rows_of(decoder(chunks, spec(columns=("offset",), end=1))) == [{"offset": 0}]
    assert rows_of(decoder(chunks, spec(begin=9, end=10))) == []
    assert rows_of(decoder(chunks, spec(tags=frozenset(["none"])))) == []


def test_bodies_too_large_for_one_batch_are_refused(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_decoder, "_BODIES_BYTES_MAX", 1000)
    fits = [encoded(record(0, body=b"x" * 500), compressed(1, Compression.ZSTD, b"y" * 500))]
    assert len(rows_of(decoder(fits, spec()))) == 2
    with pytest.raises(WireError, match=r"bodies of topic 'orders'.*lower batchBytes"):
        decoder([*fits, encoded(compressed(2, Compression.LZ4, b"z"))], spec(is_strict=False))


def test_replies_too_large_for_one_batch_are_refused(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = encoded(record(0))
    monkeypatch.setattr(record_decoder, "_INPUT_BYTES_MAX", 2 * len(chunk))
    assert len(rows_of(decoder([chunk, chunk], spec()))) == 2
    with pytest.raises(WireError, match="too many for one batch"):
        decoder([chunk, chunk, b"x"], spec())


# ---- inner batches -------------------------------------------------------------------------------


def test_an_inner_batch_is_as_many_rows_as_it_holds(decoder: Decoder) -> None:
    chunks = [encoded(record(9), inner_batch(10, 3), record(13)), encoded(inner_batch(14, 0))]
    rows = rows_of(decoder(chunks, spec()))
    assert [(row["offset"], row["body"], row["tags"]) for row in rows] == [
        (9, b"body 9", "paid"),
        (10, b"inner 0", "t0"),
        (11, b"inner 1", "t1"),
        (12, b"inner 2", "t2"),
        (13, b"body 13", "paid"),
    ]
    assert {row["sys_flag"] for row in rows} == {0}
    assert rows[1]["msg_id"] == rows[2]["msg_id"] == inner_batch(10, 3).offset_id


def test_ranges_and_tags_cut_through_an_inner_batch(decoder: Decoder) -> None:
    chunks = [encoded(inner_batch(10, 5))]
    assert [row["offset"] for row in rows_of(decoder(chunks, spec(begin=12, end=14)))] == [12, 13]
    rows = rows_of(decoder(chunks, spec(tags=frozenset(("t1", "t4")))))
    assert [row["offset"] for row in rows] == [11, 14]


def test_bodies_in_a_compressed_inner_batch_are_unpacked(decoder: Decoder) -> None:
    packed = compressed(0, Compression.LZ4, b"inside")
    one = inner_batch(0, 0)
    item = b"\x00" * 12 + b"\x00\x00\x00\x07" + len(packed.body).to_bytes(4, "big") + packed.body
    item += b"\x00\x00"
    one.body = (len(item)).to_bytes(4, "big") + item[4:]
    one.sys_flag = INNER | packed.sys_flag
    row = row_of(decoder, one)
    assert (row["body"], row["flag"], row["sys_flag"]) == (b"inside", 7, packed.sys_flag)


def test_an_inner_batch_beyond_all_offsets_has_no_rows(decoder: Decoder) -> None:
    base = property_bytes(INNER_BASE="9" * 19)
    chunks = [encoded(record(0), inner_batch(1, 2, property_bytes=base))]
    assert [row["offset"] for row in rows_of(decoder(chunks, spec()))] == [0]


def test_valid_and_damaged_inner_batches_keep_their_order(decoder: Decoder) -> None:
    chunks = [
        encoded(record(0), inner_batch(1, 2), inner_batch(3, 2, body=b"x"), record(5)),
        encoded(inner_batch(6, 2), record(8), inner_batch(9, 2, body=b"y"), record(11)),
    ]
    decoded = decoder(chunks, spec(begin=1, is_strict=False))
    assert [(row["offset"], row["body"]) for row in rows_of(decoded)] == [
        (1, b"inner 0"),
        (2, b"inner 1"),
        (3, None),
        (5, b"body 5"),
        (6, b"inner 0"),
        (7, b"inner 1"),
        (8, b"body 8"),
        (9, None),
        (11, b"body 11"),
    ]
    assert decoded.damaged == 2


def test_a_damaged_inner_batch_belongs_to_the_range_it_begins_in(decoder: Decoder) -> None:
    chunks = [encoded(record(0), inner_batch(1, 2, body=b"x"), record(3))]
    for begin, end, damaged in ((0, 2, 1), (2, 4, 0), (0, 1, 0)):
        decoded = decoder(chunks, spec(begin=begin, end=end, is_strict=False))
        assert decoded.damaged == damaged
    # A strict reader cannot tell whether one that begins before its range reaches into it.
    with pytest.raises(MalformedBody):
        decoder(chunks, spec(begin=2, end=4))
    assert len(rows_of(decoder(chunks, spec(begin=0, end=1)))) == 1


# ---- damage --------------------------------------------------------------------------------------


def test_a_damaged_record_is_an_error_that_names_the_place(decoder: Decoder) -> None:
    whole = encoded(record(4))
    with pytest.raises(MalformedRecord) as caught:
        decoder([whole, whole + whole[:-1]], spec(begin=4, end=9, is_strict=False))
    error = caught.value
    assert error.position == len(whole)
    assert f"record at byte {len(whole)}: " in str(error)
    assert "reply 2 of 2 for topic 'orders', broker 'broker-a', queue 3, offsets 4 to 9" in str(
        error
    )


def test_a_record_never_reaches_into_the_next_reply(decoder: Decoder) -> None:
    whole = encoded(record(1), record(2), record(3))
    with pytest.raises(MalformedRecord, match="reply 1 of 2"):
        decoder([whole[:200], whole[200:]], spec())


def test_errors_and_specs_pickle(decoder: Decoder) -> None:
    chosen = spec(tags=frozenset("a"))
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    with pytest.raises(MalformedBody) as caught:
        decoder([encoded(record(1, sys_flag=0x301))], spec())
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (MalformedBody, str(caught.value))


# ---- commit logs of Apache brokers ---------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.4", "5.5.0"])
def test_recorded_commit_logs_are_read_as_the_client_reads_them(
    decoder: Decoder, version: str
) -> None:
    segment = (FOLDER / version / SEGMENT).read_bytes()
    messages = [
        message
        for one in scan_segment(segment)
        for message in received(one, "broker-a", body_bytes_max=1 << 20)
    ]
    rows = rows_of(decoder([segment], spec()))
    assert len(rows) == len(messages) > 40
    for row, message in zip(rows, messages, strict=True):
        assert row["msg_id"] == message.message_id
        assert row["body"] == message.body
        assert row["properties"] == dict(message.properties)
        assert row["keys"] == message.properties.get("KEYS")
        assert row["tags"] == message.properties.get("TAGS")
        assert (row["queue_id"], row["offset"]) == (message.queue.number, message.offset)
        assert row["born_timestamp"] == EPOCH + timedelta(milliseconds=message.born_at_ms)
        assert row["store_timestamp"] == EPOCH + timedelta(milliseconds=message.stored_at_ms)
        assert (row["born_host"], row["flag"]) == (message.born_host, message.flag)
        assert row["reconsume_times"] == message.delivery_attempts
