"""Messages by key and by id, and the units of a queue."""

from __future__ import annotations

import pytest

from downrange.wire.bodies import QueueUnitsBody, decode_body
from downrange.wire.codes import ResponseCode
from downrange.wire.headers import QueryByKeyRequest, QueryReply, QueueUnitsRequest, ViewRequest
from downrange.wire.records import decode_records
from tests.unit.server.broker.broker_stage import NOW_MS
from tests.unit.server.broker.handlers.handler_stage import TOOL, HandlerStage

LAST_MS = 2**63 - 1


def find(broker: HandlerStage, key: str, **changes: object) -> list[bytes]:
    fields: dict[str, object] = {
        "topic": "T",
        "key": key,
        "max_num": 10,
        "begin_timestamp": 0,
        "end_timestamp": LAST_MS,
    }
    reply = broker.request(QueryByKeyRequest(**(fields | changes)))  # type: ignore[arg-type]
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        assert QueryReply.from_fields(reply.fields).index_last_update_phyoffset == 0
        return []
    return [record.body for record in decode_records(reply.body)]


def test_messages_are_found_by_each_key_in_the_order_of_the_log() -> None:
    broker = HandlerStage()
    for number in range(3):
        broker.store(b"%d" % number, KEYS=f"common k-{number}", UNIQ_KEY=f"U{number}")
    assert find(broker, "common") == [b"0", b"1", b"2"]
    assert find(broker, "common", max_num=2) == [b"1", b"2"]
    assert find(broker, "k-1") == [b"1"]
    assert find(broker, "U2") == find(broker, "U2", is_unique_key=True, max_num=0) == [b"2"]
    assert find(broker, "k-1", index_type="K") == [b"1"]


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("none", {}),
        ("k", {"topic": "U"}),
        ("k", {"max_num": 0}),
        ("k", {"max_num": -1}),
        ("k", {"end_timestamp": NOW_MS - 3_600_000}),
        ("k", {"index_type": "T"}),
    ],
)
def test_what_does_not_match_is_not_found(key: str, changes: dict[str, object]) -> None:
    broker = HandlerStage()
    broker.store(b"x", KEYS="k", TAGS="k")
    assert find(broker, "k") == [b"x"]
    assert find(broker, key, **changes) == []


def test_messages_whose_key_only_has_the_same_hash_are_left_out() -> None:
    broker = HandlerStage()
    broker.store(b"1", KEYS="Aa")
    broker.store(b"2", KEYS="BB")  # Java's classic collision
    assert find(broker, "Aa") == [b"1"]
    broker.create("TT")
    broker.store(b"3", topic="TT", KEYS="T#red", TAGS="red")
    assert find(broker, "red", topic="TT", index_type="T") == [b"3"]


def test_a_topic_with_the_same_hash_is_left_out() -> None:
    broker = HandlerStage()
    broker.create("Aa")
    broker.store(b"1", topic="Aa", KEYS="k")
    assert find(broker, "k", topic="BB") == []
    assert find(broker, "k", topic="Aa") == [b"1"]


def test_a_query_says_how_current_the_index_is() -> None:
    broker = HandlerStage()
    record = broker.store(b"x", KEYS="k")
    last = broker.store(b"y", KEYS="l")
    request = QueryByKeyRequest(
        topic="T", key="k", max_num=1, begin_timestamp=0, end_timestamp=LAST_MS
    )
    header = QueryReply.from_fields(broker.request(request).fields)
    assert record.log_offset == 0
    assert header.index_last_update_phyoffset == last.log_offset
    assert header.index_last_update_timestamp == NOW_MS


def test_a_message_is_viewed_by_its_position_only() -> None:
    broker = HandlerStage()
    broker.store(b"first")
    record = broker.store(b"second")
    reply = broker.request(ViewRequest(offset=record.log_offset))
    assert [found.body for found in decode_records(reply.body)] == [b"second"]
    assert broker.request(ViewRequest(offset=record.log_offset, topic=record.topic)).code == 0
    reply = broker.request(ViewRequest(offset=record.log_offset, topic="another"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    for offset in (-1, 1, 10, 30, record.log_offset + 1, record.log_offset + record.size, 10**15):
        reply = broker.request(ViewRequest(offset=offset))
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert f"by the offset, {offset}" in (reply.remark or "")


def test_bytes_in_a_body_that_look_like_a_record_cannot_be_viewed() -> None:
    broker = HandlerStage()
    inner = broker.store(b"forged")
    forged = broker.state.store.log.read(inner.log_offset, inner.size)
    outer = broker.store(forged)
    whole = broker.state.store.log.read(outer.log_offset, outer.size)
    reply = broker.request(ViewRequest(offset=outer.log_offset + whole.index(forged)))
    assert reply.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("size", [2**30, 2**31 - 1, 200, 3])
def test_a_forged_size_is_never_read(size: int) -> None:
    broker = HandlerStage()
    body_at = broker.store(b"x" * 500).size - 500 - len("T") - 3
    end = broker.state.store.log.end
    position = end + body_at
    forged = size.to_bytes(4, "big") + bytes(24) + position.to_bytes(8, "big") + b"x" * 400
    broker.store(forged)
    found = broker.state.store.log.read(position, len(forged))
    assert found == forged
    assert broker.request(ViewRequest(offset=position)).code == ResponseCode.SYSTEM_ERROR


def test_a_queues_units_are_shown_with_what_the_group_takes() -> None:
    broker = HandlerStage()
    for tag in ("a", "b", "a"):
        broker.store(b"x", TAGS=tag)

    def units(**changes: object) -> QueueUnitsBody:
        fields: dict[str, object] = {"topic": "T", "queue_id": 0, "index": 1, "count": 10}
        reply = broker.request(QueueUnitsRequest(**(fields | changes)))  # type: ignore[arg-type]
        return decode_body(QueueUnitsBody, reply.body)

    found = units(count=1)
    assert [unit.tags_code for unit in found.queue_data] == [ord("b")]
    assert (found.min_queue_index, found.max_queue_index) == (0, 3)
    assert found.filter_data is None
    offline = units(consumer_group="G")
    assert offline.filter_data == "G@T is not online!"
    assert [unit.eval for unit in offline.queue_data] == [False, False]
    broker.beat(TOOL, "a")
    assert [unit.eval for unit in units(consumer_group="G").queue_data] == [True, True]
    group = broker.state.clients.consumer_group("G")
    assert group is not None
    subscription = group.subscription("T")
    assert subscription is not None
    subscription.code_set = [ord("a")]
    assert [unit.eval for unit in units(consumer_group="G", index=-5).queue_data] == [
        *(True, False, True),
    ]


def test_units_of_an_unknown_queue_are_refused() -> None:
    header = QueueUnitsRequest(topic="T", queue_id=9, index=0, count=1)
    assert HandlerStage().request(header).code == ResponseCode.SYSTEM_ERROR
