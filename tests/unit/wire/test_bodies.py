"""Typed JSON bodies: every form that Java writes is read, and strict JSON is written."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedBody, Unencodable
from downrange.model import QueueId
from downrange.wire import bodies
from downrange.wire.bodies import Body, decode_body
from downrange.wire.hashes import java_hash
from tests.fuzz.corpus import body_kinds, sample
from tests.unit.wire import vectors
from tests.unit.wire.strategies import few_examples, structs

each_kind = pytest.mark.parametrize("kind", body_kinds(), ids=lambda kind: str(kind.__name__))
QUEUE = QueueId("T", "b", 3)


@each_kind
@few_examples
@given(st.data())
def test_a_body_survives_writing_and_reading(kind: type[Body], data: st.DataObject) -> None:
    body: Body = data.draw(structs(kind))
    assert decode_body(kind, body.encode()) == body


@each_kind
@pytest.mark.parametrize(
    ("data", "got"), [(b"[]", "array"), (b"5", "int"), (b'"x"', "str"), (b"null", "null")]
)
def test_a_body_that_is_not_an_object_is_refused(kind: type[Body], data: bytes, got: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        decode_body(kind, data)
    assert str(caught.value) == f"{kind.__name__}: Expected `object`, got `{got}`"


@each_kind
def test_unknown_members_of_a_body_are_passed_over(kind: type[Body]) -> None:
    body = sample(kind)
    data = body.encode()[:-1] + b',"unknownToUs":{"x":[1,{0:2}]}}'
    assert decode_body(kind, data) == body


@each_kind
def test_a_null_member_of_a_body_is_its_default(kind: type[Body]) -> None:
    for member in msgspec.structs.fields(kind):
        data = sample(kind).encode()[:-1] + f',"{member.encode_name}":null}}'.encode()
        if member.required:
            with pytest.raises(MalformedBody, match=f"required field `{member.encode_name}`"):
                decode_body(kind, data)
            continue
        default = member.default
        if member.default_factory is not msgspec.NODEFAULT:
            default = member.default_factory()
        assert getattr(decode_body(kind, data), member.name) == default


# ---- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [vectors.ROUTE_STANDARD, vectors.ROUTE_UNQUOTED])
def test_a_route_is_read_in_both_forms(data: bytes) -> None:
    route = decode_body(bodies.RouteBody, data)
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
    assert route.queue_datas[0].write_queue_nums == 4


@pytest.mark.parametrize(
    "key",
    [
        '{"brokerName":"b","queueId":3,"topic":"T"}',
        "{topic:'T',brokerName:'b',queueId:\"3\",unknown:[1]}",
    ],
)
def test_a_queue_as_map_key_is_read(key: str) -> None:
    data = f'{{"offsetTable":{{{key}:5}}}}'.encode()
    assert decode_body(bodies.ResetOffsetBody, data).offset_table == {QUEUE: 5}


@pytest.mark.parametrize(
    "data", [b'{"offsetTable":{0:10,1:20}}', b'{"offsetTable":{"0":10,"1":20}}']
)
def test_numbers_as_map_keys_are_read_with_and_without_quotes(data: bytes) -> None:
    assert decode_body(bodies.DelayOffsetsBody, data).offset_table == {0: 10, 1: 20}


def test_numbers_and_booleans_are_read_from_text() -> None:
    data = b'{"topicName":"T","readQueueNums":"4","order":"true"}'
    topic = decode_body(bodies.TopicConfig, data)
    assert (topic.read_queue_nums, topic.order) == (4, True)


def test_an_unknown_enumeration_name_is_kept() -> None:
    data = b'{"groupName":"g","consumeType":"CONSUME_BY_MAGIC"}'
    assert decode_body(bodies.ConsumerMember, data).consume_type == "CONSUME_BY_MAGIC"


def test_a_repeated_object_is_read_through_its_reference() -> None:
    data = b'{"connectionSet":[{"clientId":"c","clientAddr":"a"},{"$ref":"$.connectionSet[0]"}]}'
    connection = bodies.ClientConnection(client_id="c", client_addr="a")
    body = decode_body(bodies.ProducerConnectionsBody, data)
    assert body.connection_set == [connection, connection]


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (bodies.RouteBody, b"{", "JSON character 1: the text ends too early"),
        (
            bodies.RouteBody,
            b'{"queueDatas":[{"brokerName":"b"}]}',
            "RouteBody: Object missing required field `readQueueNums` - at `$.queueDatas[0]`",
        ),
        (
            bodies.RouteBody,
            b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"a"}}]}',
            "at `key` in `$.brokerDatas[0].brokerAddrs`",
        ),
        (
            bodies.TopicStatsBody,
            b'{"offsetTable":{"not a queue":{}}}',
            "TopicStatsBody: Expected `object`, got `str` - at `key` in `$.offsetTable`",
        ),
        (
            bodies.HeartbeatBody,
            b'{"clientID":"c","consumerDataSet":[{"groupName":7}]}',
            "Expected `str`, got `int` - at `$.consumerDataSet[0].groupName`",
        ),
        (
            bodies.TopicConfig,
            b'{"topicName":"T","perm":"six"}',
            "TopicConfig: Expected `int`, got `str` - at `$.perm`",
        ),
        (
            bodies.KeyValueBody,
            b'{"table":{{"a":1}:"b"}}',
            "KeyValueBody: Expected `str`",
        ),
    ],
)
def test_a_member_of_the_wrong_type_is_refused_with_its_path(
    kind: type[Body], data: bytes, message: str
) -> None:
    with pytest.raises(MalformedBody) as caught:
        decode_body(kind, data)
    assert message in str(caught.value)


@pytest.mark.parametrize("depth", [101, 600, 990, 100_000])
def test_a_body_nested_too_deep_is_refused(depth: int) -> None:
    with pytest.raises(MalformedBody, match="nested deeper than 100"):
        decode_body(bodies.RouteBody, b'{"x":' + b"[" * depth + b"]" * depth + b"}")


# ---- writing -------------------------------------------------------------------------------------


def test_a_body_is_written_in_alphabetical_order_without_nulls() -> None:
    assert decode_body(bodies.RouteBody, vectors.ROUTE_STANDARD).encode() == vectors.ROUTE_STANDARD
    assert decode_body(bodies.HeartbeatBody, vectors.HEARTBEAT).encode() == vectors.HEARTBEAT


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (bodies.RouteBody(), '{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'),
        (
            bodies.BrokerQueues(broker_name="b", read_queue_nums=4, write_queue_nums=4, perm=6),
            '{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}',
        ),
        (bodies.DataVersion(), '{"counter":0,"timestamp":0}'),
        (
            bodies.TopicConfig(topic_name="T"),
            '{"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG",'
            '"topicName":"T","topicSysFlag":0,"writeQueueNums":16}',
        ),
        (
            bodies.Subscription(topic="T"),
            '{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",'
            '"subVersion":0,"tagsSet":[],"topic":"T"}',
        ),
        (
            bodies.ConsumerMember(group_name="g"),
            '{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY",'
            '"groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":[],'
            '"unitMode":false}',
        ),
        (
            bodies.ClientConnection(client_id="c", client_addr="a"),
            '{"clientAddr":"a","clientId":"c","version":0}',
        ),
        (
            bodies.ConsumeDirectlyBody(),
            '{"autoCommit":true,"order":false,"spentTimeMills":0}',
        ),
        (
            bodies.GroupConfig(group_name="g"),
            '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
            '"consumeFromMinEnable":true,"groupName":"g","notifyConsumerIdsChangedEnable":true,'
            '"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}',
        ),
        (bodies.TopicOffset(), '{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}'),
        (bodies.ConsumeOffset(), '{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0}'),
        (bodies.ConsumeStatsBody(), '{"consumeTps":0.0,"offsetTable":{}}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_minimal_body_has_java_defaults(body: Body, text: str) -> None:
    assert body.encode().decode() == text


def test_a_queue_as_map_key_is_written_as_an_object() -> None:
    """The one form that fastjson of all releases reads."""
    body = bodies.ConsumerStatusBody(
        message_queue_table={QUEUE: 5}, consumer_table={"c@1": {QUEUE: 6}}
    )
    key = b'{"brokerName":"b","queueId":3,"topic":"T"}'
    assert body.encode() == (
        b'{"consumerTable":{"c@1":{%b:6}},"messageQueueTable":{%b:5}}' % (key, key)
    )


def test_the_fingerprint_of_a_heartbeat_is_that_of_java() -> None:
    heartbeat = decode_body(bodies.HeartbeatBody, vectors.HEARTBEAT)
    heartbeat.client_id = ""
    heartbeat.heartbeat_fingerprint = 0
    for member in heartbeat.consumer_data_set:
        for subscription in member.subscription_data_set:
            subscription.sub_version = 0
    assert java_hash(heartbeat.encode().decode()) == vectors.HEARTBEAT_FINGERPRINT


def test_a_set_is_written_as_an_array() -> None:
    body = bodies.TopicTableBody(topic_queue_mapping_info_map={"T": {"queues": {7}}})
    assert b'{"T":{"queues":[7]}}' in body.encode()


@pytest.mark.parametrize(
    "body",
    [
        bodies.KeyValueBody(table={"a": "\ud800"}),
        bodies.ResetOffsetBody(offset_table={QueueId("\ud800", "b", 0): 1}),
    ],
)
def test_half_a_surrogate_pair_cannot_be_written(body: Body) -> None:
    with pytest.raises(Unencodable, match="JSON text: "):
        body.encode()
