"""Replies to sends, native and in Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downrange.wire.send_answers import ANSWER_LENGTH_MAX, pure_stored_answers
from tests.unit.native.pairs import assert_same, native
from tests.unit.wire.strategies import damaged
from tests.unit.wire.test_send_answers import ORIGINALS, framed, reply

#: Members and values that a header may have, for headers that no client writes.
TOKENS = [
    *('"code":0', '"code":1', '"flag":1', '"flag":0', '"opaque":7', '"opaque":-1', '"opaque":07'),
    *('"version":515', '"version":5150000000', '"language":"JAVA"', '"remark":"no"'),
    *('"extFields":{}', '"extFields":{"msgId":"A"}', '"flag":1.0', '"serializeTypeCurrentRPC":"X"'),
    '"extFields":{"queueId":"1","msgId":"7F","queueOffset":"2"}',
    '"extFields":{"queueId":"1","msgId":"7F","queueOffset":"2","queueOffset":"3"}',
    '"extFields":{"queueId":"1","msgId":"","queueOffset":"02","TRACE_ON":"false"}',
]
HEADERS = st.lists(st.sampled_from(TOKENS), max_size=7).map(
    lambda members: framed(
        ('{"code":0,"extFields":{"msgId":"7F","queueId":"1","queueOffset":"2"},%s}')
        .replace("%s", ",".join(members))
        .encode()
    )
)


@given(st.sampled_from(ORIGINALS) | damaged(ORIGINALS) | st.binary(max_size=60))
def test_streams(data: bytes) -> None:
    assert_same(pure_stored_answers, native.stored_answers, data, 0, ANSWER_LENGTH_MAX)


@given(HEADERS)
def test_headers(data: bytes) -> None:
    # Duplicate fields: Python reads the last one, the native part leaves the reply to Python.
    found, _ = native.stored_answers(data, 0, ANSWER_LENGTH_MAX)
    expected, _ = pure_stored_answers(data, 0, ANSWER_LENGTH_MAX)
    assert found in ([], expected)


@given(st.integers(0, 400), st.integers(0, 400))
def test_positions_and_limits(at: int, length_max: int) -> None:
    data = reply(1) + reply(2)
    assert_same(pure_stored_answers, native.stored_answers, data, at, length_max)
