"""Bodies of what brokers ask of a consumer; tests/apache compares them with Java's classes."""

from __future__ import annotations

import pytest

from downrange.errors import MalformedBody
from downrange.model import QueueId
from downrange.wire.bodies import ConsumeDirectlyBody, Subscription, decode_body
from downrange.wire.consumer_bodies import (
    ConsumeRates,
    ConsumeResult,
    PopQueueRunningState,
    QueueRunningState,
    RunningProperty,
    RunningStateBody,
    decode_reset,
)

QUEUE = QueueId("T", "broker-a", 3)
#: Request 220 of a 4.9.4 broker after a reset by mqadmin, and by a tool with the language CPP.
MAP_FORM = b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"T"}:9}}'
LIST_FORM = b'{"offsetTable":[{"brokerName":"broker-a","offset":9,"queueId":3,"topic":"T"}]}'


@pytest.mark.parametrize("data", [MAP_FORM, LIST_FORM], ids=["map", "list"])
def test_new_offsets_are_read_in_both_forms(data: bytes) -> None:
    assert decode_reset(data) == {QUEUE: 9}


@pytest.mark.parametrize("data", [b"{}", b'{"offsetTable":null}', b'{"offsetTable":[]}'])
def test_a_reset_of_no_queue_is_empty(data: bytes) -> None:
    assert decode_reset(data) == {}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "ends too early"),
        (b"[]", "ResetOffsetBody: it is not an object"),
        (b'{"offsetTable":5}', "Expected `object`, got `int`"),
        (b'{"offsetTable":{"T":5}}', "Expected `object`, got `str`"),
        (b'{"offsetTable":[{"topic":"T","queueId":3,"offset":9}]}', "brokerName"),
        (LIST_FORM.replace(b":9", b':"nine"'), "Expected `int`"),
    ],
)
def test_wrong_offsets_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(MalformedBody, match=problem):
        decode_reset(data)


def test_a_running_state_is_written_with_objects_as_keys() -> None:
    state = RunningStateBody(
        properties={RunningProperty.ORDERLY: "true"},
        subscription_set=[Subscription(topic="T")],
        mq_table={QUEUE: QueueRunningState(cached_msg_size_mib=2)},
        mq_pop_table={QUEUE: PopQueueRunningState(wait_ack_count=4)},
        status_table={"T": ConsumeRates(consume_ok_rate=1.5)},
    )
    data = state.encode()
    key = b'{"brokerName":"broker-a","queueId":3,"topic":"T"}'
    assert b'"mqTable":{%b:{' % key in data
    assert b'"cachedMsgSizeInMiB":2' in data
    assert b'"mqPopTable":{%b:{"droped":false' % key in data
    assert b'"consumeOKTPS":1.5' in data
    assert b'"properties":{"PROP_CONSUMEORDERLY":"true"}' in data
    assert b"jstack" not in data
    assert decode_body(RunningStateBody, data) == state


def test_the_result_of_a_message_consumed_directly_is_written_by_its_name() -> None:
    body = ConsumeDirectlyBody(consume_result=ConsumeResult.THREW, remark="why")
    assert b'"consumeResult":"CR_THROW_EXCEPTION"' in body.encode()
    assert decode_body(ConsumeDirectlyBody, body.encode()) == body
