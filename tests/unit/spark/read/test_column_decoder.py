"""The column decoder gives the same rows as the loop over records, for any bytes."""

from __future__ import annotations

from struct import pack_into
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import WireError
from downrange.spark.read import column_decoder, record_decoder
from downrange.spark.read.column_decoder import (
    CROSSOVER,
    CROSSOVER_OF_NUMBERS,
    decode,
    decode_columns,
)
from downrange.spark.read.record_decoder import Decoded, decode_each
from downrange.spark.read.record_table import find_records
from downrange.spark.schema import arrow_schema
from downrange.wire.compression import Compression
from downrange.wire.records import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, Record
from tests.unit.spark.read.replies import (
    ALL_COLUMNS,
    compressed,
    encoded,
    inner_batch,
    record,
    records,
    replies,
    spec,
    specs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from downrange.spark.read.record_decoder import DecodeSpec


def at_once(chunks: Sequence[bytes], chosen: DecodeSpec) -> Decoded:
    """Decode by columns, also for few records, and without the loop after an error."""
    return decode_columns(*find_records(chunks), chosen)


def outcome(
    decoder: Callable[[Sequence[bytes], DecodeSpec], Decoded],
    chunks: Sequence[bytes],
    chosen: DecodeSpec,
) -> Decoded | WireError:
    try:
        decoded = decoder(chunks, chosen)
    except WireError as error:
        return error
    decoded.batch.validate(full=True)
    assert decoded.batch.schema.equals(arrow_schema(chosen.columns), check_metadata=True)
    return decoded


def assert_alike(chunks: Sequence[bytes], chosen: DecodeSpec) -> None:
    """Compare the two decoders, and the one that chooses between them."""
    plain = outcome(decode_each, chunks, chosen)
    by_columns = outcome(at_once, chunks, chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_decoder, "CROSSOVER", 0)
        patch.setattr(column_decoder, "CROSSOVER_OF_NUMBERS", 0)
        by_choice = outcome(decode, chunks, chosen)
    if isinstance(plain, WireError):
        assert isinstance(by_columns, WireError)
        assert (type(by_choice), str(by_choice)) == (type(plain), str(plain))
        return
    for other in (by_columns, by_choice):
        assert isinstance(other, Decoded)
        assert other.batch.to_pylist() == plain.batch.to_pylist()
        assert other.batch.equals(plain.batch, check_metadata=True)
        assert other.damaged == plain.damaged


# ---- the same rows as the loop -------------------------------------------------------------------


@given(replies(), specs())
def test_columns_are_what_the_loop_makes(chunks: list[bytes], chosen: DecodeSpec) -> None:
    assert_alike(chunks, chosen)


@given(replies(), st.data(), specs())
def test_damaged_replies_are_read_or_refused_alike(
    chunks: list[bytes], data: st.DataObject, chosen: DecodeSpec
) -> None:
    whole = b"".join(chunks)
    at = data.draw(st.integers(0, len(whole)))
    gone = data.draw(st.sampled_from((0, 1, 2, 4, len(whole))))
    new = data.draw(st.binary(max_size=6))
    cut = data.draw(st.integers(0, len(whole)))
    broken = whole[:at] + new + whole[at + gone :]
    assert_alike([broken[:cut], broken[cut:]], chosen)


#: Field -> its position in a record with IPv4 hosts, its format, and wrong values.
LIES: dict[str, tuple[int, str, tuple[int, ...]]] = {
    "size": (0, ">i", (-(2**31), -1, 0, 4, 90, 91, 100, 2**31 - 1)),
    "magic": (4, ">i", (0, MAGIC_V1, MAGIC_V2, BLANK_MAGIC)),
    "sys_flag": (36, ">i", (0x10, 0x20, 0x30)),
    "body_size": (84, ">i", (-(2**31), -90, -1, 0, 3, 7, 2**31 - 1)),
}


def with_wrong_fields() -> Iterator[bytes]:
    """Yield records of both versions, each with one wrong field."""
    for magic, topic_head in ((MAGIC_V1, 1), (MAGIC_V2, 2)):
        for changes in ({}, {"body": b"", "property_bytes": b""}):
            one = record(1, magic=magic, **changes)
            data = encoded(one)
            topic_at = 88 + len(one.body)
            properties_at = topic_at + topic_head + len(one.topic_bytes)
            lies = LIES | {
                "topic_size": (
                    topic_at,
                    ">b" if topic_head == 1 else ">h",
                    (-128, -1, 0, 5, 7, 8, 9, 127),
                ),
                "property_size": (properties_at, ">h", (-(2**15), -1, 0, 1, 2**15 - 1)),
            }
            for at, form, numbers in lies.values():
                for number in numbers:
                    lying = bytearray(data)
                    pack_into(form, lying, at, number)
                    yield bytes(lying)
            # Wrong body sizes with which the record would end within the next fields.
            for size in range(len(one.body), len(data) - 86):
                lying = bytearray(data)
                pack_into(">i", lying, 84, size)
                yield bytes(lying)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 0), (0, 2)])
def test_records_with_wrong_lengths_are_read_or_refused_alike(before: int, after: int) -> None:
    sound = encoded(record(0))
    refused = 0
    for lying in with_wrong_fields():
        chunks = [sound * before + lying + sound * after]
        assert_alike(chunks, spec(columns=("offset", "body", "tags")))
        refused += isinstance(outcome(decode_each, chunks, spec()), WireError)
    assert refused > 100


def unsigned_property_size() -> bytes:
    data = bytearray(encoded(record(1, property_bytes=b"x" * 32767)) + b"x")
    pack_into(">i", data, 0, len(data))
    pack_into(">H", data, len(data) - 32770, 32768)
    return bytes(data)


def unsigned_topic_size() -> bytes:
    data = bytearray(encoded(record(1, topic_bytes=b"t" * 127)))
    topic_at = 88 + len(record(1).body)
    data[topic_at + 1 : topic_at + 1] = b"t" * 73
    pack_into(">i", data, 0, len(data))
    data[topic_at] = 200
    return bytes(data)


def negative_topic_size() -> bytes:
    """The topic points back into the body, which holds a matching length of the properties."""
    data = bytearray(encoded(record(1, body=b"b" * 150)))
    topic_at = 88 + 150
    pack_into(">b", data, topic_at, -100)
    pack_into(">h", data, topic_at + 1 - 100, len(data) - (topic_at + 3 - 100))
    return bytes(data)


@pytest.mark.parametrize(
    "wrong", [unsigned_property_size, unsigned_topic_size, negative_topic_size]
)
def test_lengths_are_signed(wrong: Callable[[], bytes]) -> None:
    """Each would be valid if its sign were ignored."""
    assert_alike([wrong()], spec())
    assert isinstance(outcome(decode_each, [wrong()], spec()), WireError)


@given(st.binary(max_size=300), specs())
def test_any_bytes_are_read_or_refused_alike(data: bytes, chosen: DecodeSpec) -> None:
    assert_alike([data], chosen)


@given(st.lists(records(), min_size=1, max_size=4), specs(), st.integers(2, 60))
def test_many_records_are_what_the_loop_makes(
    some: list[Record], chosen: DecodeSpec, repeats: int
) -> None:
    assert_alike([encoded(*some), encoded(*some * repeats)], chosen)


def test_a_full_batch_of_all_kinds_is_what_the_loop_makes() -> None:
    kinds = [
        lambda at: record(at),
        lambda at: record(at, property_bytes=b"TAGS\x01sent\x02KEYS\x01k"),
        lambda at: record(at, sys_flag=0x30, born_ip=bytes(16), store_ip=bytes(range(16))),
        lambda at: compressed(at, Compression.ZSTD, b"packed %d" % at * 40),
        lambda at: record(at, sys_flag=0x101),
        lambda at: inner_batch(at, 3),
        lambda at: record(at, property_bytes=b"TAGS\x01\xff\x02TAGS\x01paid\x02\x02"),
        lambda at: record(at, born_ms=-(2**63), body=b""),
    ]
    whole = [encoded(kinds[at * at % 7 % 5](at)) for at in range(1000)]
    whole += [encoded(kinds[at % 8](at)) for at in range(1000, 2000)]
    chunks = [b"".join(whole[at : at + 32]) for at in range(0, 2000, 32)]
    for chosen in (
        spec(is_strict=False),
        spec(is_strict=False, begin=700, end=1300),
        spec(is_strict=False, tags=frozenset(("paid", "t1"))),
        *(spec(columns=(name,), is_strict=False) for name in ALL_COLUMNS),
    ):
        assert_alike(chunks, chosen)


# ---- the choice of decoder -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "crossover"),
    [(ALL_COLUMNS, CROSSOVER), (("offset", "body"), CROSSOVER_OF_NUMBERS)],
)
def test_few_records_go_through_the_loop(
    names: tuple[str, ...], crossover: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_loop: list[int] = []

    def counting(chunks: Sequence[bytes], chosen: DecodeSpec) -> Decoded:
        decoded = decode_each(chunks, chosen)
        by_loop.append(decoded.batch.num_rows)
        return decoded

    monkeypatch.setattr(column_decoder, "decode_each", counting)
    some = [encoded(record(at)) for at in range(crossover)]
    chosen = spec(columns=names)
    assert decode(some[1:], chosen).batch.num_rows == crossover - 1
    assert by_loop == [crossover - 1]
    assert decode(some, chosen).batch.num_rows == crossover
    assert by_loop == [crossover - 1]


@pytest.mark.parametrize("decoder", [decode_each, at_once])
def test_columns_that_are_not_chosen_are_not_decoded(
    decoder: Callable[[Sequence[bytes], DecodeSpec], Decoded], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: object) -> None:
        pytest.fail("it was decoded")

    monkeypatch.setattr(record_decoder, "decompress", reject)
    monkeypatch.setattr(Record, "properties", reject)
    monkeypatch.setattr(column_decoder, "PropertyTable", reject)
    chunks = [encoded(compressed(1, Compression.ZLIB, b"x"), record(2))]
    names = tuple({*ALL_COLUMNS} - {"body", "msg_id", "keys", "tags", "properties"})
    assert decoder(chunks, spec(columns=names)).batch.num_rows == 2
