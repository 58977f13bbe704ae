"""The compressed form of a broker's registration.

One zlib stream of: i32 length + data version as JSON; i32 count of topics, each i32 length + text
`name read write perm filter` (5.x appends a blank and the attributes as JSON, without blanks); i32
length + filter servers as JSON array; from 5.0 on i32 count of queue mappings, each i32 length +
JSON. The other settings of a topic (order, sysFlag) are not part of it.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Any, Final

from downrange.errors import MalformedBody, Unencodable
from downrange.wire import fastjson
from downrange.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicTableBody,
    convert_body,
    decode_body,
)
from downrange.wire.codes import ReleaseVersion

#: The largest registration after decompression; 100,000 topics take about 10 MB.
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
_I32: Final = Struct(">i")
_TOPIC_WORDS: Final = (
    *("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "attributes"),
)


def registration_crc(body: bytes) -> int:
    """Return the value of header field `bodyCrc32` for the body of a registration."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_registration(body: RegisterBrokerBody, version: int) -> bytes:
    """Encode a compressed registration as a broker of this release does.

    Raises:
        Unencodable: A topic's name or attribute contains a blank, which separates the parts.
    """
    table = body.topic_config_serialize_wrapper
    topics = [_encode_topic(topic, version) for topic in table.topic_config_table.values()]
    parts = [_sized(table.data_version.encode()), _I32.pack(len(topics)), *map(_sized, topics)]
    parts.append(_sized(fastjson.dumps(body.filter_server_list)))
    if version >= ReleaseVersion.V5_0_0:
        mappings = list((table.topic_queue_mapping_info_map or {}).values())
        parts.append(_I32.pack(len(mappings)))
        parts.extend(_sized(fastjson.dumps(mapping)) for mapping in mappings)
    return zlib.compress(b"".join(parts), 9)


def decode_registration(data: bytes, version: int) -> RegisterBrokerBody:
    """Read a compressed registration of a broker of this release.

    Raises:
        MalformedBody: The stream or a part of it cannot be read, or is larger than 64 MiB.
    """
    parts = _Parts(_unpack(data))
    data_version = decode_body(DataVersion, parts.take("data version"))
    topics = [_decode_topic(part) for part in parts.take_all("topic")]
    servers = fastjson.loads(parts.take("filter servers"))
    table = TopicTableBody(
        topic_config_table={topic.topic_name: topic for topic in topics}, data_version=data_version
    )
    if version >= ReleaseVersion.V5_0_0:
        mappings = [fastjson.loads(part) for part in parts.take_all("queue mapping")]
        table.topic_queue_mapping_info_map = {_mapped_topic(item): item for item in mappings}
    body = convert_body(RegisterBrokerBody, {"filterServerList": servers})
    body.topic_config_serialize_wrapper = table
    return body


def _encode_topic(topic: TopicConfig, version: int) -> bytes:
    text = (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
        f"{topic.topic_filter_type}"
    )
    blanks = 4
    if version >= ReleaseVersion.V5_0_0:
        text = f"{text} {fastjson.dumps(topic.attributes or {}).decode()}"
        blanks = 5
    where = f"registration topic {topic.topic_name!r}"
    if text.count(" ") != blanks:
        raise Unencodable(where, f"a blank within a part of {text[:200]!r}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Unencodable(where, "half a surrogate pair") from error


def _decode_topic(part: bytes) -> TopicConfig:
    words: list[Any] = part.decode(errors="replace").split(" ")
    if not 5 <= len(words) <= 6:
        raise MalformedBody("registration topic", f"{words[:7]!r} are not five or six words")
    if len(words) == 6:
        words[5] = fastjson.loads(words[5].encode())
    return convert_body(TopicConfig, dict(zip(_TOPIC_WORDS, words, strict=False)))


def _mapped_topic(mapping: Any) -> str:
    topic = mapping.get("topic") if isinstance(mapping, dict) else None
    if not isinstance(topic, str):
        raise MalformedBody("registration queue mapping", "has no topic")
    return topic


def _unpack(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, UNPACKED_BYTES_MAX + 1)
    except zlib.error as error:
        raise MalformedBody("registration", f"is not zlib data: {error}") from error
    if len(unpacked) > UNPACKED_BYTES_MAX or not unpacker.eof:
        problem = f"ends too early or decompresses to more than {UNPACKED_BYTES_MAX} bytes"
        raise MalformedBody("registration", problem)
    return unpacked


def _sized(part: bytes) -> bytes:
    return _I32.pack(len(part)) + part


class _Parts:
    """Reads parts with a length before them from the decompressed stream."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, what: str) -> bytes:
        size = self._number(what)
        end = self._at + size
        if size < 0 or end > len(self._data):
            problem = f"{what} of {size} bytes where {len(self._data) - self._at} follow"
            raise MalformedBody(f"registration byte {self._at}", problem)
        part = self._data[self._at : end]
        self._at = end
        return part

    def take_all(self, what: str) -> list[bytes]:
        count = self._number(what)
        if not 0 <= count <= (len(self._data) - self._at) // _I32.size:
            raise MalformedBody(f"registration byte {self._at}", f"{count} times {what}")
        return [self.take(what) for _ in range(count)]

    def _number(self, what: str) -> int:
        if self._at + _I32.size > len(self._data):
            raise MalformedBody(f"registration byte {self._at}", f"ends before the {what}")
        (number,) = _I32.unpack_from(self._data, self._at)
        self._at += _I32.size
        return int(number)
