"""Messages of a reply: decoded when they are used, and equal to those of the plain way."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedBody, MalformedRecord, WireError
from downrange.model import QueueId, ReceivedMessage
from downrange.wire.codes import SysFlag
from downrange.wire.compression import Compression, compress
from downrange.wire.properties import PropertyKey, decode_properties, find_property
from downrange.wire.records import BatchItem, Record, decode_records, encode_batch, encode_record
from downrange.wire.reply_messages import messages_in, place
from tests.support.plain_messages import received, received_as_stored
from tests.unit.wire import vectors
from tests.unit.wire.strategies import batch_items, damaged, records

if TYPE_CHECKING:
    from collections.abc import Callable

FIELDS = [field.name for field in dataclasses.fields(ReceivedMessage)]
INNER = int(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP)
BODY_BYTES_MAX = 5000
PROPERTIES = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01ID\x02WAIT\x01true\x02TAGS\x01paid\x02mine\x01yes\x02"


def plain(data: bytes, body_bytes_max: int | None) -> list[ReceivedMessage]:
    return [
        message
        for record in decode_records(data)
        for message in (
            received_as_stored(record, "b")
            if body_bytes_max is None
            else received(record, "b", body_bytes_max=body_bytes_max)
        )
    ]


def split(data: bytes, body_bytes_max: int | None = BODY_BYTES_MAX) -> list[ReceivedMessage]:
    return messages_in(data, "b", ReceivedMessage, body_bytes_max=body_bytes_max)


def encoded(number: int = 0, **fields: Any) -> bytes:
    given: dict[str, Any] = {
        "queue_id": 3,
        "queue_offset": number,
        "log_offset": 1000 * number,
        "flag": 5,
        "born_ms": 1_700_000_000_000,
        "born_ip": bytes([10, 0, 0, 1]),
        "born_port": 50_000,
        "store_ms": 1_700_000_000_123,
        "store_ip": bytes([10, 0, 0, 2]),
        "store_port": 10_911,
        "reconsume_times": 2,
        "body": b"body %d" % number,
        "topic_bytes": b"orders",
        "property_bytes": PROPERTIES,
    }
    return encode_record(Record(**given | fields))


def one(**fields: Any) -> ReceivedMessage:
    (message,) = split(encoded(**fields))
    return message


# ---- both ways -----------------------------------------------------------------------------------

both = pytest.mark.parametrize("read", [plain, split])


@both
def test_a_record_becomes_a_message(read: Callable[..., list[ReceivedMessage]]) -> None:
    (message,) = read(vectors.RECORD, 100)
    assert message.message_id == "7F000001000100000000000000000000"
    assert message.offset_id == vectors.RECORD_OFFSET_ID
    assert message.queue == QueueId("TopicTest", "b", 2)
    assert (message.topic, message.tags, message.keys) == ("TopicTest", "TagA", [])
    assert (message.offset, message.log_offset, message.flag) == (5, 1024, 0)
    assert (message.born_at_ms, message.stored_at_ms) == (1700000000000, 1700000000123)
    assert (message.born_host, message.delivery_attempts) == ("10.0.0.1:50000", 0)
    assert (message.body, message.compression) == (b"hello", None)


@both
def test_a_record_with_a_long_topic_becomes_a_message(
    read: Callable[..., list[ReceivedMessage]],
) -> None:
    (message,) = read(vectors.RECORD_V2, 100)
    assert len(message.topic) == 154


@both
def test_a_message_without_a_unique_id_is_known_by_its_offset_id(
    read: Callable[..., list[ReceivedMessage]],
) -> None:
    record = Record(store_ip=bytes([10, 0, 0, 2]), store_port=10911, log_offset=1024)
    (message,) = read(encode_record(record), 0)
    assert message.message_id == message.offset_id == vectors.RECORD_OFFSET_ID


@both
@pytest.mark.parametrize(("sys_flag", "packed"), vectors.COMPRESSED_BODIES.items())
def test_a_compressed_body_is_given_unpacked(
    read: Callable[..., list[ReceivedMessage]], sys_flag: int, packed: bytes
) -> None:
    data = encoded() + encoded(1, body=packed, sys_flag=int(sys_flag)) + encoded(2)
    first, message, last = read(data, 5000)
    assert (message.body, message.compression) == (vectors.COMPRESSIBLE_BODY, None)
    assert (first.body, last.body) == (b"body 0", b"body 2")
    with pytest.raises(MalformedBody, match="cannot be decompressed to at most 4999 bytes"):
        read(data, 4999)


@both
@pytest.mark.parametrize(
    ("sys_flag", "name"),
    [(0, None), (0x1, "zlib"), (0x301, "zlib"), (0x101, "lz4"), (0x201, "zstd")],
)
def test_a_body_can_stay_as_it_is_stored(
    read: Callable[..., list[ReceivedMessage]], sys_flag: int, name: str | None
) -> None:
    (message,) = read(encoded(body=b"packed", sys_flag=sys_flag), None)
    assert (message.body, message.compression) == (b"packed", name)


@both
@pytest.mark.parametrize("body_bytes_max", [10, None])
def test_a_body_with_an_unknown_compression_is_refused(
    read: Callable[..., list[ReceivedMessage]], body_bytes_max: int | None
) -> None:
    body, _ = compress(b"x", Compression.ZLIB)
    with pytest.raises(MalformedBody, match="unknown compression type 7"):
        read(encoded(body=body, sys_flag=0x701), body_bytes_max)


@both
def test_an_inner_batch_becomes_its_messages(
    read: Callable[..., list[ReceivedMessage]],
) -> None:
    batch = encoded(
        sys_flag=INNER,
        body=vectors.BATCH,
        topic_bytes=b"T",
        property_bytes=b"INNER_NUM\x012\x02INNER_BASE\x0140\x02",
    )
    before, first, second, after = read(encoded(1) + batch + encoded(2), 0)
    assert (first.body, first.offset, first.tags) == (b"a", 40, None)
    assert (second.body, second.offset, second.tags) == (b"bc", 41, "TagA")
    assert (second.keys, second.flag, second.topic) == (["k1"], 9, "T")
    assert (second.log_offset, second.born_host) == (0, "10.0.0.1:50000")
    assert (before.offset, after.offset, after.topic) == (1, 2, "orders")


# ---- the same as the plain way -------------------------------------------------------------------

Outcome = list[dict[str, Any]] | tuple[type[WireError], str]


def outcome(
    read: Callable[[bytes, int | None], list[ReceivedMessage]],
    data: bytes,
    body_bytes_max: int | None,
) -> Outcome:
    try:
        messages = read(data, body_bytes_max)
    except WireError as error:
        return type(error), str(error)
    names = [*FIELDS, "topic", "tags", "keys", "born_at", "stored_at"]
    return [{name: getattr(message, name) for name in names} for message in messages]


@st.composite
def stored(draw: st.DrawFn) -> bytes:
    """Draw a record: usual, compressed, an inner batch, or with any flags."""
    record = draw(records())
    hosts = record.sys_flag & int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    kind = draw(st.sampled_from(["usual", "usual", "zlib", "inner", "any"]))
    if kind != "any":
        record.sys_flag = hosts
    if kind == "zlib":
        record.sys_flag |= int(SysFlag.COMPRESSED)
        if draw(st.integers(0, 3)):
            record.body = vectors.COMPRESSED_BODIES[SysFlag.COMPRESSED | Compression.ZLIB]
    if kind == "inner":
        record.sys_flag |= INNER
        record.body = encode_batch(draw(st.lists(batch_items, max_size=3)))
        base = draw(st.sampled_from([b"7", b"9999999999999999999", b"x", b""]))
        record.property_bytes = b"INNER_BASE\x01" + base
    if draw(st.booleans()):
        names = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"", b"xTAGS", b"a\xff"])
        items = st.tuples(names, st.sampled_from([b"\x01", b""]), st.binary(max_size=4))
        record.property_bytes += draw(st.sampled_from([b"\x02", b""])) + b"\x02".join(
            b"".join(item) for item in draw(st.lists(items, max_size=5))
        )
    return encode_record(record)


#: Records of one queue come together; the others differ in all fields.
replies = st.lists(stored() | st.sampled_from([encoded(1), encoded(2)]), max_size=6).map(b"".join)


@given(data=replies, body_bytes_max=st.sampled_from([None, 0, 5000]))
def test_messages_equal_those_of_the_plain_way(data: bytes, body_bytes_max: int | None) -> None:
    assert outcome(split, data, body_bytes_max) == outcome(plain, data, body_bytes_max)


@given(data=replies.flatmap(lambda data: damaged((data,))), body_bytes_max=st.just(5000))
def test_damaged_bytes_raise_the_same_error_as_the_plain_way(
    data: bytes, body_bytes_max: int
) -> None:
    assert outcome(split, data, body_bytes_max) == outcome(plain, data, body_bytes_max)


@pytest.mark.parametrize("number", [-(2**31), -1, 0, 1, 90, 91, 2**31 - 1])
def test_a_lying_length_raises_the_same_error_as_the_plain_way(number: int) -> None:
    data = encoded() + encoded(1) + encoded(2)
    for at in range(len(encoded()), len(data)):
        lying = data[:at] + number.to_bytes(4, "big", signed=True) + data[at + 4 :]
        assert outcome(split, lying, 100) == outcome(plain, lying, 100)


def test_a_reply_that_is_cut_off_raises_the_same_error_as_the_plain_way() -> None:
    data = encoded() + encoded(1, body=bytes(200))
    for end in range(len(data)):
        assert outcome(split, data[:end], 100) == outcome(plain, data[:end], 100)


def test_a_damaged_record_is_named_before_a_body_that_cannot_be_decompressed() -> None:
    data = encoded(sys_flag=1) + encoded(1)
    with pytest.raises(MalformedRecord, match=f"byte {len(encoded())}"):
        split(data[:-1])
    with pytest.raises(MalformedBody):
        split(data)


@pytest.mark.parametrize("size", [128, 255])
def test_a_topic_whose_length_is_negative_is_refused(size: int) -> None:
    data = bytearray(encoded(topic_bytes=bytes(127), property_bytes=bytes(300)))
    data[data.index(b"\x7f" + bytes(127))] = size
    data += encoded()
    with pytest.raises(MalformedRecord, match=f"a topic of {size - 256} bytes"):
        split(bytes(data))


def test_properties_whose_length_is_negative_are_refused() -> None:
    data = encoded(property_bytes=b"")
    longer = len(data) + 0x8000
    data = longer.to_bytes(4, "big") + data[4:-2] + b"\x80\x00" + bytes(0x8000)
    assert outcome(split, data, 10) == outcome(plain, data, 10)
    with pytest.raises(MalformedRecord, match="properties of -32768 bytes"):
        split(data)


@given(
    data=st.lists(
        st.sampled_from([b"TAGS", b"KEYS", b"\x01", b"\x02", b"x", b"\xff", b"\xe4\xb8"]),
        max_size=12,
    ).map(b"".join),
    key=st.sampled_from([PropertyKey.TAGS, PropertyKey.KEYS]),
)
def test_one_property_is_found_as_among_all_of_them(data: bytes, key: PropertyKey) -> None:
    assert find_property(data, key) == decode_properties(data.decode(errors="replace")).get(key)


# ---- read when used ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_can_be_read_first_and_again(name: str) -> None:
    message = one()
    (expected,) = plain(encoded(), BODY_BYTES_MAX)
    assert getattr(message, name) == getattr(expected, name)
    assert getattr(message, name) is getattr(message, name)


def test_a_field_that_is_not_used_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("decoded")

    module = "downrange.wire.reply_messages"
    monkeypatch.setattr(f"{module}.decode_properties", refuse)
    monkeypatch.setattr(f"{module}.decode_fixed", refuse)
    message = one()
    assert (message.body, message.offset, message.topic) == (b"body 0", 0, "orders")
    assert (message.message_id, message.tags, message.keys) == ("ID", "paid", ["k1", "k2"])
    for name in ("properties", "born_host"):
        with pytest.raises(AssertionError, match="decoded"):
            getattr(message, name)


def test_a_kept_message_does_not_keep_the_reply() -> None:
    data = b"".join(encoded(number, body=bytes(1000)) for number in range(32))
    references = sys.getrefcount(data)
    messages = split(data)
    assert sys.getrefcount(data) == references
    record: Any = messages[7]._record
    kept = [record.fixed, record.properties, messages[7].body]
    assert sum(map(len, kept)) < len(data) // 32
    assert not any(item is data for item in gc.get_referents(*messages))


def test_a_message_that_is_read_later_behaves_like_a_constructed_one() -> None:
    (expected,) = plain(encoded(), BODY_BYTES_MAX)
    assert one() == expected
    assert hash(one()) == hash(expected)
    assert len({one(), expected}) == 1
    assert one() != one(number=1)
    assert repr(one()) == repr(expected)
    assert dataclasses.asdict(one()) == dataclasses.asdict(expected)


@pytest.mark.parametrize(
    "copied",
    [
        lambda message: pickle.loads(pickle.dumps(message)),
        copy.copy,
        copy.deepcopy,
        dataclasses.replace,
    ],
    ids=["pickle", "copy", "deepcopy", "replace"],
)
def test_a_message_that_is_read_later_can_be_copied(
    copied: Callable[[ReceivedMessage], ReceivedMessage],
) -> None:
    again = copied(one())
    assert (again, again.tags, again.keys) == (one(), "paid", ["k1", "k2"])
    assert copied(again) == again


def test_a_replaced_property_is_what_tags_and_keys_show() -> None:
    other = dataclasses.replace(one(), properties={"TAGS": "new", "KEYS": "a"}, body=b"other")
    assert (other.tags, other.keys, other.body, other.message_id) == ("new", ["a"], b"other", "ID")
    assert one().tags == "paid"


@pytest.mark.parametrize("name", ["offset", "message_id", "tags", "other"])
def test_a_message_that_is_read_later_cannot_be_changed(name: str) -> None:
    message = one()
    with pytest.raises((AttributeError, TypeError)):
        setattr(message, name, "x")
    with pytest.raises((AttributeError, TypeError)):
        delattr(message, name)
    assert (message.offset, message.message_id, message.tags) == (0, "ID", "paid")


def test_a_misspelt_name_is_not_an_attribute() -> None:
    message: Any = one()
    problem = "'ReceivedMessage' object has no attribute 'tag'"
    for each in (message, dataclasses.replace(message)):
        with pytest.raises(AttributeError, match=problem) as caught:
            _ = each.tag
        assert (caught.value.name, caught.value.obj) == ("tag", each)
        assert not hasattr(each, "_message_id")


# ---- queues and classes --------------------------------------------------------------------------


class Linked(ReceivedMessage):
    """A message with a slot of its own."""

    __slots__ = ("link",)
    link: str


def test_messages_can_be_of_a_subclass_with_further_slots() -> None:
    batch = encode_batch([BatchItem(0, b"inner", b"")])
    data = encoded() + encoded(1, sys_flag=INNER, body=batch) + vectors.RECORD_V2
    messages = messages_in(data, "b", Linked, body_bytes_max=100)
    assert [type(message) for message in messages] == [Linked, Linked, Linked]
    message = messages[0]
    assert not hasattr(message, "link")
    object.__setattr__(message, "link", "consumer")
    assert (message.link, message.tags, message.message_id) == ("consumer", "paid", "ID")
    assert not hasattr(message, "__dict__")
    assert isinstance(dataclasses.replace(message, body=b""), Linked)
    assert pickle.loads(pickle.dumps(message)) == message
    for name in ("offset", "link"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(message, name, 1)


def test_equal_queues_of_a_reply_are_one_object_and_shown_once() -> None:
    asked: list[str] = []

    def shown(topic: str) -> str:
        asked.append(topic)
        return topic.removeprefix("prod%")

    topics = [b"prod%a", b"prod%a", b"prod%ab", b"prod%a", b"prod%a"]
    data = b"".join(
        encoded(number, topic_bytes=topic, queue_id=number // 4)
        for number, topic in enumerate(topics)
    )
    messages = messages_in(data, "b", ReceivedMessage, body_bytes_max=100, shown_topic=shown)
    assert [message.topic for message in messages] == ["a", "a", "ab", "a", "a"]
    assert [message.queue.number for message in messages] == [0, 0, 0, 0, 1]
    assert messages[0].queue is messages[1].queue
    assert asked == ["prod%a", "prod%ab", "prod%a", "prod%a"]


def test_a_message_can_be_placed_in_another_queue() -> None:
    message = one()
    place(message, QueueId("logical", "b", 9), 700)
    assert (message.queue, message.offset) == (QueueId("logical", "b", 9), 700)
    assert (message.topic, message.tags) == ("logical", "paid")
