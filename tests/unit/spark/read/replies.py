"""Records for the tests of the decoders: valid ones, and ones that no broker should send."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st

from downrange.spark.read.record_decoder import DecodeSpec
from downrange.spark.schema import COLUMNS, METADATA_COLUMNS
from downrange.wire.codes import SysFlag
from downrange.wire.compression import Compression, compress
from downrange.wire.records import (
    MAGIC_V1,
    MAGIC_V2,
    BatchItem,
    Record,
    encode_batch,
    encode_record,
)
from tests.unit.wire.strategies import int32s, int64s

ALL_COLUMNS: Final = COLUMNS + METADATA_COLUMNS
INNER: Final = int(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP)
UNIQUE_ID: Final = "7F0000010001000000000000000000010001"


def spec(**changes: Any) -> DecodeSpec:
    """Return a spec for all columns of all rows, with changes."""
    everything = DecodeSpec(
        columns=ALL_COLUMNS, topic="orders", broker="broker-a", begin=0, end=1 << 62
    )
    return replace(everything, **changes)


def property_bytes(**properties: str) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def record(offset: int, **changes: Any) -> Record:
    """Return a typical record, with changes."""
    plain: dict[str, Any] = {
        "queue_id": 3,
        "queue_offset": offset,
        "log_offset": 1000 * offset,
        "born_ms": 1_794_775_023_391 + offset,
        "store_ms": 1_794_775_023_392 + offset,
        "born_ip": bytes((10, 0, 0, 1)),
        "born_port": 40_000,
        "store_ip": bytes((10, 0, 0, 2)),
        "store_port": 10_911,
        "body": b"body %d" % offset,
        "topic_bytes": b"orders",
        "property_bytes": property_bytes(
            KEYS=f"order-{offset}", UNIQ_KEY=f"{UNIQUE_ID}{offset:04}", WAIT="true", TAGS="paid"
        ),
    }
    return Record(**plain | changes)


def encoded(*records: Record) -> bytes:
    return b"".join(encode_record(one) for one in records)


def compressed(offset: int, compression: Compression, body: bytes) -> Record:
    packed, bits = compress(body, compression)
    return record(offset, body=packed, sys_flag=bits)


def inner_batch(offset: int, count: int, **changes: Any) -> Record:
    """Return an inner batch of messages, each with its own tag."""
    items = [
        BatchItem(number, b"inner %d" % number, property_bytes(TAGS=f"t{number}", KEYS="k"))
        for number in range(count)
    ]
    whole = record(
        offset,
        body=encode_batch(items),
        sys_flag=INNER,
        property_bytes=property_bytes(INNER_BASE=str(offset), INNER_NUM=str(count)),
    )
    for name, value in changes.items():
        setattr(whole, name, value)
    return whole


# ---- strategies ----------------------------------------------------------------------------------

_NAMES: Final = ("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "INNER_BASE", "a", "é", "region", "KEYS2")
_values = st.sampled_from(
    ("1", "paid", "x y", "true", "größe", "€", "a\x01b", UNIQUE_ID)
) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1, max_size=8
)
#: Some names occur twice, as senders can do that.
_regular_properties = st.builds(
    lambda items, end: (
        "\x02".join(f"{name}\x01{value}" for name, value in items) + (end if items else "")
    ).encode(),
    st.lists(st.tuples(st.sampled_from(_NAMES), _values), max_size=6),
    st.sampled_from(("", "\x02")),
)
_tidy_properties = st.builds(
    lambda offset, tags: property_bytes(UNIQ_KEY=f"{UNIQUE_ID}{offset}", TAGS=tags),
    st.integers(0, 99),
    st.sampled_from(("paid", "sent", "open")),
)
_strange_properties = st.lists(
    st.sampled_from(
        [b"\x00", b"\x01", b"\x02", b"KEYS", b"TAGS", b"a", b"\xc3", b"\xa9", b"\xff", b"\xe2\x82"]
    ),
    max_size=12,
).map(b"".join)
properties = st.one_of(_tidy_properties, _regular_properties, _strange_properties)
_times = st.sampled_from(
    (0, -1, 1_794_775_023_391, -62_135_596_800_000, -62_135_596_800_001, 253_402_300_799_999)
) | st.one_of(st.just(253_402_300_800_000), int64s)
_bodies = st.binary(max_size=60)
_items = st.lists(st.builds(BatchItem, int32s, _bodies, properties), max_size=4)
_compressions = st.sampled_from([None, None, *Compression])


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Draw a record: valid, or unusual in any way that its lengths allow."""
    body, bits = draw(_bodies), 0
    kind = draw(st.sampled_from(("plain", "plain", "packed", "batch", "claims", "random")))
    if kind == "batch":
        body, bits = encode_batch(draw(_items)), INNER
        body = draw(st.sampled_from((body, body, body, body[:-1])))
    compression = draw(_compressions) if kind in ("packed", "batch") else None
    if kind == "packed" and compression is not None:
        body, bits = compress(body, compression)
    elif compression is not None:
        bits |= compression | SysFlag.COMPRESSED
    elif kind == "claims":
        bits = draw(st.sampled_from((1, 0x101, 0x201, 0x301, 0x501, INNER)))
    elif kind == "random":
        bits = draw(int32s) & ~0x30
    hosts = draw(st.sampled_from((0, 0, 0, 0x10, 0x20, 0x30)))
    is_v2 = draw(st.booleans())
    return Record(
        magic=MAGIC_V2 if is_v2 else MAGIC_V1,
        queue_id=draw(st.integers(0, 7) | int32s),
        flag=draw(int32s),
        queue_offset=draw(st.integers(0, 20) | int64s),
        log_offset=draw(int64s),
        sys_flag=int(bits) | hosts,
        born_ms=draw(_times),
        born_ip=draw(st.sampled_from((bytes(16), bytes(range(16)))))[: 16 if hosts & 0x10 else 4],
        born_port=draw(st.integers(0, 3) | int32s),
        store_ms=draw(_times),
        store_ip=draw(st.binary(min_size=16, max_size=16))[: 16 if hosts & 0x20 else 4],
        store_port=draw(int32s),
        reconsume_times=draw(int32s),
        body=body,
        topic_bytes=draw(st.binary(max_size=300 if is_v2 else 127)),
        property_bytes=draw(properties),
    )


@st.composite
def specs(draw: st.DrawFn) -> DecodeSpec:
    """Draw a spec: rows and columns to decode."""
    columns = draw(
        st.just(ALL_COLUMNS)
        | st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True).map(tuple)
    )
    begin, end = draw(
        st.sampled_from(((0, 1 << 62), (-(1 << 63), (1 << 63) - 1)))
        | st.tuples(st.integers(0, 10), st.integers(5, 25))
    )
    tags = draw(st.just(()) | st.sets(st.sampled_from(("paid", "sent", "größe", "a\x01b", "none"))))
    return DecodeSpec(
        columns=columns,
        topic=draw(st.sampled_from(("orders", "bestellungen-größe", ""))),
        broker="broker-a",
        begin=begin,
        end=end,
        tags=frozenset(tags),
        body_bytes_max=draw(st.sampled_from((128 * 2**20, 20))),
        is_strict=draw(st.booleans()),
    )


@st.composite
def replies(draw: st.DrawFn) -> list[bytes]:
    """Draw bodies of pull replies; some are empty."""
    return [encoded(*some) for some in draw(st.lists(st.lists(records(), max_size=6), max_size=4))]
