"""The targets of the fuzzer: every reader of the wire layer, and the check of its results.

A reader refuses input with a `WireError`; any other exception is a bug. A value that it accepts
must be written by our writer, and read again as the same value. Targets named `both` feed a native
function and its twin, and compare them.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.errors import Unencodable, WireError
from downrange.model import ReceivedMessage
from downrange.wire import fastjson
from downrange.wire.bodies import Body, RegisterBrokerBody, _plain, decode_body
from downrange.wire.codes import HeaderCodec, ReleaseVersion, SysFlag
from downrange.wire.command import Command, decode, encode
from downrange.wire.compression import Compression, decompress
from downrange.wire.frames import Frame, FrameSplitter, join_frame
from downrange.wire.ids import OffsetId, UniqueId, parse_offset_id, parse_unique_id
from downrange.wire.link import Link, LinkBroken
from downrange.wire.properties import decode_properties, encode_properties
from downrange.wire.records import (
    BatchItem,
    Record,
    body_crc,
    decode_batch,
    decode_record,
    decode_records,
    encode_batch,
    encode_record,
    scan_segment,
)
from downrange.wire.registration import decode_registration, encode_registration
from downrange.wire.reply_messages import messages_in
from tests.fuzz import corpus
from tests.fuzz.pairs import pairs
from tests.support.plain_messages import received

if TYPE_CHECKING:
    from collections.abc import Callable

#: Frames and bodies larger than this are refused, so that no input can make a run slow.
_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """A reader, the check of its results, and input that it accepts."""

    name: str
    read: Callable[[bytes], Any]
    check: Callable[[Any], None]
    seeds: tuple[bytes, ...]

    def run(self, data: bytes) -> bool:
        """Feed the reader; return whether it accepted the input."""
        try:
            value = self.read(data)
        except WireError as error:
            return not _says_where_and_what(error)
        self.check(value)
        return True


def _says_where_and_what(error: WireError) -> bool:
    assert error.where
    assert error.problem
    return True


# ---- frames and commands -----------------------------------------------------------------------


def _read_frames(data: bytes) -> tuple[bytes, list[Frame]]:
    splitter = FrameSplitter(_BYTES_MAX)
    splitter.receive(data)
    frames: list[Frame] = []
    while (frame := splitter.next_frame()) is not None:
        frames.append(frame)
    return data, frames


def _check_frames(value: tuple[bytes, list[Frame]]) -> None:
    data, frames = value
    joined = b"".join(
        join_frame(frame.codec, frame.header, frame.body, _BYTES_MAX) for frame in frames
    )
    assert data.startswith(joined)


def _read_link(data: bytes) -> tuple[list[str], list[str]]:
    """Pass the bytes to a link at once, and to another one in three parts."""
    events: list[list[str]] = []
    third = len(data) // 3
    for chunks in ((data,), (data[:third], data[third : 2 * third], data[2 * third :])):
        link: Link[int] = Link(frame_bytes_max=_BYTES_MAX)
        for waiter in range(20):
            link.request(Command(1), waiter)
        seen = [event for chunk in chunks for event in link.receive(chunk)]
        assert not any(isinstance(event, LinkBroken) for event in seen[:-1])
        assert link.is_closed == any(isinstance(event, LinkBroken) for event in seen)
        events.append([repr(event) for event in seen])
    return events[0], events[1]


def _check_link(events: tuple[list[str], list[str]]) -> None:
    assert events[0] == events[1]


def _read_command(codec: HeaderCodec, header: bytes) -> Command:
    return decode(Frame(codec, header, b"body"))


def _check_command(command: Command) -> None:
    (frame,) = _read_frames(encode(command))[1]
    again = decode(frame)
    if command.language is None:  # a binary header cannot express it
        again.language = None
    assert again == command
    for kind in corpus.header_kinds():
        try:
            header = kind.from_fields(command.fields)
        except WireError:
            continue
        assert kind.from_fields(header.to_fields()) == header


# ---- JSON ----------------------------------------------------------------------------------------


def _is_plain(value: Any) -> bool:
    """Whether a value has one JSON form: finite numbers, no two keys with the same text."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        texts = {str(key) for key in value}
        return (
            len(texts) == len(value)
            and not any(isinstance(key, float) for key in value)
            and all(_is_plain(key) for key in value)
            and all(map(_is_plain, value.values()))
        )
    return True


def _with_text_keys(value: Any) -> Any:
    """Return a value as it is read back: number keys become strings."""
    if isinstance(value, dict):
        return type(value)((_key(key), _with_text_keys(item)) for key, item in value.items())
    return list(map(_with_text_keys, value)) if isinstance(value, list) else value


def _key(key: Any) -> Any:
    return _with_text_keys(key) if isinstance(key, dict) else str(key)


def _check_json(value: Any) -> None:
    if _is_plain(value):
        assert fastjson.loads(fastjson.dumps(value)) == _with_text_keys(value)


def _read_body(kind: type[Body], data: bytes) -> tuple[Body, bool]:
    return decode_body(kind, data), _is_plain(fastjson.loads(data))


def _check_body(value: tuple[Body, bool]) -> None:
    body, is_plain = value
    again = decode_body(type(body), body.encode())
    if is_plain:
        assert _with_text_keys(_plain(again)) == _with_text_keys(_plain(body))


def _read_registration(version: int, data: bytes) -> tuple[RegisterBrokerBody, int]:
    return decode_registration(data, version), version


def _read_unpacked(version: int, data: bytes) -> tuple[RegisterBrokerBody, int]:
    return _read_registration(version, zlib.compress(data, 1))


def _check_registration(value: tuple[RegisterBrokerBody, int]) -> None:
    body, version = value
    try:
        packed = encode_registration(body, version)
    except Unencodable:
        return  # an escape became a blank
    again = decode_registration(packed, version)
    for topic in body.topic_config_serialize_wrapper.topic_config_table.values():
        # 4.9 has no attributes; from 5.0 on there are always some.
        topic.attributes = (topic.attributes or {}) if version >= ReleaseVersion.V5_0_0 else None
    if _is_plain(_plain(body)):
        assert _with_text_keys(_plain(again)) == _with_text_keys(_plain(body))


# ---- messages ------------------------------------------------------------------------------------


def _check_records(records: list[Record]) -> None:
    for record in records:
        again = decode_record(encode_record(record))
        assert again == msgspec.structs.replace(record, body_crc=body_crc(record.body))
        assert len(record.offset_id) in (32, 56)
        assert ":" in record.born_host
        assert ":" in record.store_host
        assert isinstance(record.topic, str)


def _check_segment(records: list[Record]) -> None:
    assert all(record.is_intact for record in records)
    _check_records(records)


def _check_batch(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


def _read_messages(data: bytes) -> tuple[bytes, list[ReceivedMessage]]:
    return data, messages_in(data, "broker", ReceivedMessage, body_bytes_max=_BYTES_MAX)


def _check_messages(value: tuple[bytes, list[ReceivedMessage]]) -> None:
    data, messages = value
    assert all(len(message.body) <= _BYTES_MAX for message in messages)
    assert all(message.message_id for message in messages)
    assert messages == [
        message
        for record in decode_records(data)
        for message in received(record, "broker", body_bytes_max=_BYTES_MAX)
    ]


def _check_unpacked(body: bytes) -> None:
    assert len(body) <= _BYTES_MAX


def _check_offset_id(value: OffsetId) -> None:
    assert parse_offset_id(str(value)) == value


def _check_unique_id(value: UniqueId) -> None:
    assert 0 <= value.process_id <= 0xFFFF
    assert 0 <= value.counter <= 0xFFFF


def _check_properties(properties: dict[str, str]) -> None:
    try:
        text = encode_properties(properties)
    except Unencodable:
        assert any("\x01" in value for value in properties.values())
        return
    assert decode_properties(text) == properties


def _targets() -> tuple[Target, ...]:
    general = [
        Target("frames", _read_frames, _check_frames, corpus.FRAMES),
        Target("link", _read_link, _check_link, corpus.FRAMES),
        Target("fastjson", fastjson.loads, _check_json, corpus.BODIES),
        Target("records", decode_records, _check_records, corpus.RECORDS),
        Target("segment", lambda d: list(scan_segment(d)), _check_segment, corpus.SEGMENTS),
        Target("messages", _read_messages, _check_messages, corpus.RECORDS),
        Target("batch", decode_batch, _check_batch, corpus.BATCHES),
        Target("offset id", lambda d: parse_offset_id(_text(d)), _check_offset_id, corpus.IDS),
        Target("unique id", lambda d: parse_unique_id(_text(d)), _check_unique_id, corpus.IDS),
        Target(
            "properties",
            lambda d: decode_properties(_text(d)),
            _check_properties,
            corpus.PROPERTIES,
        ),
    ]
    for codec in HeaderCodec:
        seeds = tuple(corpus.HEADERS[codec])
        read_command = partial(_read_command, codec)
        general.append(Target(f"{codec.name} header", read_command, _check_command, seeds))
    for compression in Compression:
        flag = int(SysFlag.COMPRESSED | compression)
        unpack = partial(decompress, sys_flag=flag, bytes_max=_BYTES_MAX)
        packed_bodies = (corpus.COMPRESSED[flag], *corpus.COMPRESSED.values())
        general.append(Target(compression.name, unpack, _check_unpacked, packed_bodies))
    for version, packed in corpus.REGISTRATIONS.items():
        read = partial(_read_registration, version)
        unpacked = corpus.UNPACKED_REGISTRATIONS[version]
        general += [
            Target(f"registration {version.name}", read, _check_registration, packed),
            Target(
                f"unpacked registration {version.name}",
                partial(_read_unpacked, version),
                _check_registration,
                unpacked,
            ),
        ]
    twins = [Target(name, read, lambda _: None, seeds) for name, read, seeds in pairs()]
    return (*general, *twins, *_body_targets())


def _body_targets() -> list[Target]:
    return [
        Target(f"body {kind.__name__}", partial(_read_body, kind), _check_body, (*seeds,))
        for kind, own in corpus.BODY_SAMPLES.items()
        for seeds in [(own, own, own, own, *corpus.BODIES)]
    ]


def _text(data: bytes) -> str:
    return data.decode("latin-1")


TARGETS: Final = _targets()
