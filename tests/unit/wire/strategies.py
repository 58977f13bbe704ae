"""Hypothesis strategies for all values of the wire layer."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from downrange.wire.codes import HeaderCodec, Language, SysFlag
from downrange.wire.command import Command
from downrange.wire.records import MAGIC_V1, MAGIC_V2, BatchItem, Record, body_crc, encode_record

StructT = TypeVar("StructT", bound=msgspec.Struct)

#: For a property test that runs for each of a hundred classes.
few_examples = settings(max_examples=settings().max_examples // 10)

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
#: Any string that UTF-8 can encode, up to a size.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
some_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs"]), min_size=1, max_size=12)

#: JSON without nulls, which bodies drop.
json_values: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | int64s | texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the type of a header or body member."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return int32s if arguments[1] == "int32" else int64s
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(values_of(part) for part in arguments))
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        key, value = (values_of(part) for part in arguments)
        return st.dictionaries(key, value, max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    return {
        str: texts,
        int: int64s,
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        type(None): st.none(),
        Any: json_values,
    }[kind]


@cache
def structs(kind: type[StructT]) -> st.SearchStrategy[StructT]:
    """Return a strategy for a header or body class with all members."""
    members = msgspec.structs.fields(kind)
    return st.builds(kind, **{member.name: values_of(member.type) for member in members})


json_commands = st.builds(
    Command,
    code=int32s,
    fields=st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=50),
    remark=st.none() | texts,
    request_id=int32s,
    flags=int32s,
    language=st.none() | st.sampled_from(Language),
    version=int32s,
    codec=st.just(HeaderCodec.JSON),
)
#: A binary header cannot hold empty strings.
binary_commands = st.builds(
    Command,
    code=int16s,
    fields=st.dictionaries(some_text, some_text, max_size=5),
    body=st.binary(max_size=50),
    remark=st.none() | some_text,
    request_id=int32s,
    flags=int32s,
    language=st.sampled_from(Language),
    version=int16s,
    codec=st.just(HeaderCodec.BINARY),
)
commands = json_commands | binary_commands

batch_items = st.builds(
    BatchItem, flag=int32s, body=st.binary(max_size=40), property_bytes=st.binary(max_size=40)
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Draw a record with its size and CRC set, as after reading."""
    is_v2 = draw(st.booleans())
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    hosts = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    sys_flag = draw(int32s) & ~hosts
    sys_flag |= born_v6 * SysFlag.BORN_HOST_V6 | store_v6 * SysFlag.STORE_HOST_V6
    body = draw(st.binary(max_size=60))
    record = Record(
        magic=MAGIC_V2 if is_v2 else MAGIC_V1,
        body_crc=body_crc(body),
        queue_id=draw(int32s),
        flag=draw(int32s),
        queue_offset=draw(int64s),
        log_offset=draw(int64s),
        sys_flag=int(sys_flag),
        born_ms=draw(int64s),
        born_ip=draw(st.binary(min_size=16, max_size=16))[: 16 if born_v6 else 4],
        born_port=draw(int32s),
        store_ms=draw(int64s),
        store_ip=draw(st.binary(min_size=16, max_size=16))[: 16 if store_v6 else 4],
        store_port=draw(int32s),
        reconsume_times=draw(int32s),
        prepared_offset=draw(int64s),
        body=body,
        topic_bytes=draw(st.binary(max_size=300 if is_v2 else 127)),
        property_bytes=draw(st.binary(max_size=60)),
    )
    record.size = len(encode_record(record))
    return record


@st.composite
def chunked(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Draw a division of bytes into reads; some may be empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=10)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@st.composite
def damaged(draw: st.DrawFn, originals: tuple[bytes, ...]) -> bytes:
    """Draw an original with bytes overwritten, removed or inserted; it shrinks well."""
    data = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        gone = draw(st.sampled_from((0, 1, 2, 4, 8, len(data))))
        new = draw(st.binary(max_size=8) | int32s.map(lambda n: n.to_bytes(4, "big", signed=True)))
        data = data[:at] + new + data[at + gone :]
    return data
