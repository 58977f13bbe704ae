"""Valid input for every reader: captured frames, the Java vectors, a sample of each type."""

from __future__ import annotations

import types
import typing
import zlib
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from downrange.wire import headers
from downrange.wire.bodies import Body, RegisterBrokerBody, TopicConfig, TopicTableBody
from downrange.wire.codes import HeaderCodec, ReleaseVersion, SysFlag
from downrange.wire.command import Command, encode
from downrange.wire.compression import Compression, compress
from downrange.wire.fields import REPLY_HEADERS, REQUEST_HEADERS, Header
from downrange.wire.frames import FrameSplitter
from downrange.wire.records import (
    MAGIC_V2,
    BatchItem,
    Record,
    blank_record,
    encode_batch,
    encode_record,
)
from downrange.wire.registration import encode_registration
from tests.unit.wire import vectors


@cache
def header_kinds() -> tuple[type[Header], ...]:
    """Return every header class that is registered for a request or a reply."""
    kinds = {*REQUEST_HEADERS.values(), *REPLY_HEADERS.values()}
    assert headers.SendRequest in kinds, "importing the module declares them"
    return tuple(sorted(kinds, key=lambda kind: kind.__name__))


@cache
def body_kinds() -> tuple[type[Body], ...]:
    """Return every typed body."""
    import_module("downrange.wire.consumer_bodies")
    return tuple(sorted(Body.__subclasses__(), key=lambda kind: kind.__name__))


def sample(kind: Any) -> Any:
    """Return a value for the type of a header or body member, with all optional parts."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return sample(arguments[0])
    if origin in (types.UnionType, typing.Union):
        return sample(next(part for part in arguments if part is not type(None)))
    if origin is list:
        return [sample(arguments[0])] * 2
    if origin is dict:
        return {sample(arguments[0]): sample(arguments[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        members = msgspec.structs.fields(kind)
        return kind(**{member.name: sample(member.type) for member in members})
    return _SCALARS[kind]


_SCALARS: Final[dict[Any, Any]] = {
    str: "text/ü€😀",
    int: 4096,
    bool: True,
    float: 1.5,
    Any: {"topic": "T", "numbers": [0, -1], "deep": {"0": 5}},
}

#: Bodies in forms that only Java writes.
_JAVA_FORMS: Final = (
    vectors.ROUTE_UNQUOTED,
    b"{'table': {'a': 'b',}, /* why not */ unknown: [1, 2.5e3, true, null],} // end",
    b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:5}}',
    b'{"offsetTable":{"T@g":{0:10,1:20}},"dataVersion":{"counter":1,"timestamp":"17"}}',
    b'{"offsetTable":{1:5,2:6}}',
    b'{"a":{"x":[1,2]},"b":{"$ref":"$.a"},"c":[{"$ref":"$.a.x"},{"$ref":"$[\'b\'].x[0]"}]}',
    b'{"consumerTable":{"c@1":{{"brokerName":"b","queueId":3,"topic":"T"}:5}}}',
)


def _frames() -> tuple[bytes, ...]:
    samples: list[bytes] = []
    for kind in header_kinds():
        command = Command(7, sample(kind).to_fields(), b"body", "remark é", 9, 1)
        for codec in HeaderCodec:
            command.codec = codec
            samples.append(encode(command))
    return (vectors.BINARY_REQUEST, *vectors.FRAMES.values(), *samples)


def _cut(frames: tuple[bytes, ...]) -> dict[HeaderCodec, list[bytes]]:
    splitter = FrameSplitter()
    splitter.receive(b"".join(frames))
    parts: dict[HeaderCodec, list[bytes]] = {codec: [] for codec in HeaderCodec}
    while (frame := splitter.next_frame()) is not None:
        parts[frame.codec].append(frame.header)
    return parts


def _bodies() -> tuple[bytes, ...]:
    splitter = FrameSplitter()
    splitter.receive(b"".join(vectors.FRAMES.values()))
    captured: list[bytes] = []
    while (frame := splitter.next_frame()) is not None:
        if frame.body.startswith(b"{"):
            captured.append(frame.body)
    return (*captured, vectors.HEARTBEAT, vectors.ROUTE_STANDARD, *_JAVA_FORMS)


def _records() -> tuple[bytes, ...]:
    splitter = FrameSplitter()
    splitter.receive(vectors.FRAMES["pull-answer-5.5.0"] + vectors.FRAMES["pull-answer-4.9.4"])
    pulled: list[bytes] = []
    while (frame := splitter.next_frame()) is not None:
        pulled.append(frame.body)
    made = [
        Record(body=body, sys_flag=flag, topic_bytes=b"T", property_bytes=b"TAGS\x01a\x02")
        for body, flag in (compress(b"text " * 40, kind) for kind in Compression)
    ]
    made += [
        Record(
            body=vectors.BATCH,
            sys_flag=int(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP),
            topic_bytes=b"T",
            property_bytes=b"INNER_NUM\x012\x02INNER_BASE\x0140\x02",
        ),
        Record(
            sys_flag=int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
            born_ip=bytes(range(16)),
            store_ip=b"\xfe\x80" + bytes(14),
            magic=MAGIC_V2,
            topic_bytes=b"T" * 200,
        ),
    ]
    return (vectors.RECORD, vectors.RECORD_V2, *pulled, *map(encode_record, made))


def _registrations(version: int) -> tuple[bytes, ...]:
    table: TopicTableBody = sample(TopicTableBody)
    table.topic_config_table = {
        name: TopicConfig(topic_name=name, attributes={"+a": "b"}) for name in ("T", "%RETRY%g")
    }
    table.topic_queue_mapping_info_map = {"T": {"topic": "T", "currIdMap": {"0": 1}}}
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table, filter_server_list=["a:1"])
    return (encode_registration(body, version), encode_registration(RegisterBrokerBody(), version))


FRAMES: Final = _frames()
HEADERS: Final = _cut(FRAMES)
BODIES: Final = _bodies()
BODY_SAMPLES: Final = {kind: sample(kind).encode() for kind in body_kinds()}
RECORDS: Final = _records()
SEGMENTS: Final = (vectors.RECORD * 2 + blank_record(64) + b"\xff" * 56, vectors.RECORD + bytes(99))
BATCHES: Final = (vectors.BATCH, encode_batch([BatchItem(0, b"", b"")]))
REGISTRATIONS: Final = {
    version: _registrations(version) for version in (ReleaseVersion.V4_9_8, ReleaseVersion.V5_0_0)
}
UNPACKED_REGISTRATIONS: Final = {
    version: tuple(map(zlib.decompress, packed)) for version, packed in REGISTRATIONS.items()
}
COMPRESSED: Final = {int(flag): body for flag, body in vectors.COMPRESSED_BODIES.items()}
IDS: Final = (
    vectors.RECORD_OFFSET_ID.encode(),
    b"7F000001000100000000000000000001",
    b"FD000000000000000000000000000002248930946E094C85971F0000",
)
PROPERTIES: Final = (b"TAGS\x01a\x02KEYS\x01k1 k2\x02", b"A\x01b\x02\x02C\x01\x02\x01d", b"")
