"""A broker's registration in its compressed form, of 4.9 and of 5.x."""

from __future__ import annotations

import zlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedBody, Unencodable
from downrange.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicTableBody
from downrange.wire.codes import ReleaseVersion
from downrange.wire.registration import (
    UNPACKED_BYTES_MAX,
    decode_registration,
    encode_registration,
    registration_crc,
)
from tests.unit.wire.strategies import int32s, json_values, structs, texts, words

V4, V5 = ReleaseVersion.V4_9_8, ReleaseVersion.V5_0_0


def sized(*parts: bytes) -> bytes:
    return b"".join(pack(">i", len(part)) + part for part in parts)


@st.composite
def registrations(draw: st.DrawFn, version: int) -> RegisterBrokerBody:
    """Draw a registration of a release."""
    topics: dict[str, TopicConfig] = {}
    for name in draw(st.lists(words, max_size=3)):
        topics[name] = TopicConfig(
            topic_name=name,
            read_queue_nums=draw(int32s),
            write_queue_nums=draw(int32s),
            perm=draw(st.integers(0, 7)),
            topic_filter_type=draw(st.sampled_from(["SINGLE_TAG", "MULTI_TAG"])),
        )
        if version >= V5:
            topics[name].attributes = draw(st.dictionaries(words, words, max_size=2))
    table = TopicTableBody(topic_config_table=topics, data_version=draw(structs(DataVersion)))
    if version >= V5:
        mapped = draw(st.lists(st.tuples(texts, json_values), max_size=2))
        table.topic_queue_mapping_info_map = {
            name: {"topic": name, "currIdMap": value} for name, value in mapped
        }
    servers = draw(st.lists(texts, max_size=2))
    return RegisterBrokerBody(topic_config_serialize_wrapper=table, filter_server_list=servers)


@pytest.mark.parametrize("version", [V4, V5, ReleaseVersion.V5_5_0])
@given(st.data())
def test_a_registration_survives_packing_and_unpacking(version: int, data: st.DataObject) -> None:
    body = data.draw(registrations(version))
    assert decode_registration(encode_registration(body, version), version) == body


def full_body() -> RegisterBrokerBody:
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicTableBody(
            topic_config_table={
                "T": TopicConfig(topic_name="T", read_queue_nums=4, attributes={"+k": "v"})
            },
            data_version=DataVersion(timestamp=17, counter=1),
            topic_queue_mapping_info_map={"T": {"topic": "T", "bname": "b"}},
        ),
        filter_server_list=["10.0.0.1:1"],
    )


def test_a_4_9_registration_is_laid_out_as_java_does() -> None:
    unpacked = zlib.decompress(encode_registration(full_body(), V4))
    assert unpacked == (
        sized(b'{"counter":1,"timestamp":17}')
        + pack(">i", 1)
        + sized(b"T 4 16 6 SINGLE_TAG", b'["10.0.0.1:1"]')
    )


def test_a_5_registration_adds_attributes_and_queue_mappings() -> None:
    unpacked = zlib.decompress(encode_registration(full_body(), V5))
    assert unpacked == (
        sized(b'{"counter":1,"timestamp":17}')
        + pack(">i", 1)
        + sized(b'T 4 16 6 SINGLE_TAG {"+k":"v"}', b'["10.0.0.1:1"]')
        + pack(">i", 1)
        + sized(b'{"bname":"b","topic":"T"}')
    )


def test_topics_of_either_release_are_read_in_either_registration() -> None:
    for version, text in ((V4, b'T 1 2 3 F {"a":"b"}'), (V5, b"T 1 2 3 F")):
        data = sized(b"{}") + pack(">i", 1) + sized(text, b"[]") + pack(">i", 0)
        body = decode_registration(zlib.compress(data), version)
        topic = body.topic_config_serialize_wrapper.topic_config_table["T"]
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 2, 3)
        assert topic.topic_filter_type == "F"


def test_the_checksum_of_a_registration_has_31_bits() -> None:
    assert registration_crc(b"hello") == 907060870
    assert all(registration_crc(bytes([n])) < 2**31 for n in range(256))


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (TopicConfig(topic_name="T", attributes={"a": "b c"}), "topic 'T': a blank within"),
        (TopicConfig(topic_name="a b"), "topic 'a b': a blank within"),
        (TopicConfig(topic_name="T", topic_filter_type="A B"), "topic 'T': a blank within"),
        (TopicConfig(topic_name="\ud800"), "topic '\\ud800': half a surrogate pair"),
    ],
)
def test_a_topic_that_its_text_form_cannot_carry_is_not_written(
    topic: TopicConfig, message: str
) -> None:
    table = TopicTableBody(topic_config_table={topic.topic_name: topic})
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table)
    with pytest.raises(Unencodable) as caught:
        encode_registration(body, V5)
    assert message in str(caught.value)


HEAD = sized(b"{}")


@pytest.mark.parametrize(
    ("unpacked", "message"),
    [
        (b"", "registration byte 0: ends before the data version"),
        (pack(">i", 5) + b"{}", "registration byte 4: data version of 5 bytes where 2 follow"),
        (pack(">i", -1), "registration byte 4: data version of -1 bytes where 0 follow"),
        (pack(">i", 2**31 - 1), "data version of 2147483647 bytes where 0 follow"),
        (sized(b"5"), "DataVersion: Expected `object`, got `int`"),
        (sized(b"{"), "JSON character 1: the text ends too early"),
        (HEAD, "registration byte 6: ends before the topic"),
        (HEAD + pack(">i", -1), "registration byte 10: -1 times topic"),
        (HEAD + pack(">i", 2**31 - 1), "registration byte 10: 2147483647 times topic"),
        (HEAD + pack(">i", 1) + sized(b"T 1 2 3"), "are not five or six words"),
        (HEAD + pack(">i", 1) + sized(b"T 1 2 3 F {} x"), "are not five or six words"),
        (HEAD + pack(">i", 1) + sized(b"T x 2 3 F"), "TopicConfig: Expected `int`, got `str`"),
        (HEAD + pack(">i", 1) + sized(b"T 1 2 3 F []"), "TopicConfig: Expected `object | null`"),
        (HEAD + pack(">i", 1) + sized(b"T 1 2 3 F {"), "JSON character 1"),
        (HEAD + pack(">i", 0), "registration byte 10: ends before the filter servers"),
        (
            HEAD + pack(">i", 0) + sized(b"5") + pack(">i", 0),
            "RegisterBrokerBody: Expected `array`, got `int`",
        ),
        (HEAD + pack(">i", 0) + sized(b"[]"), "ends before the queue mapping"),
        (HEAD + pack(">i", 0) + sized(b"[]") + pack(">i", 1), "1 times queue mapping"),
        (
            HEAD + pack(">i", 0) + sized(b"[]") + pack(">i", 1) + sized(b"[]"),
            "registration queue mapping: has no topic",
        ),
        (
            HEAD + pack(">i", 0) + sized(b"[]") + pack(">i", 1) + sized(b'{"topic":1}'),
            "registration queue mapping: has no topic",
        ),
    ],
)
def test_a_registration_whose_parts_are_wrong_is_refused_with_their_place(
    unpacked: bytes, message: str
) -> None:
    with pytest.raises(MalformedBody) as caught:
        decode_registration(zlib.compress(unpacked), V5)
    assert message in str(caught.value)


def test_a_registration_that_is_not_compressed_is_refused() -> None:
    with pytest.raises(MalformedBody, match="registration: is not zlib data"):
        decode_registration(b"{}", V5)


def test_a_registration_that_ends_too_early_is_refused() -> None:
    packed = encode_registration(full_body(), V5)
    for size in (0, 1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(MalformedBody, match="registration: ends too early or decompresses"):
            decode_registration(packed[:size], V5)


def test_a_registration_that_unpacks_to_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert UNPACKED_BYTES_MAX == 64 * 1024 * 1024
    monkeypatch.setattr("downrange.wire.registration.UNPACKED_BYTES_MAX", 1000)
    with pytest.raises(MalformedBody, match="decompresses to more than 1000 bytes"):
        decode_registration(zlib.compress(bytes(1001)), V5)
