"""Receipts of popped messages: acknowledgement, invisible time, return (5.x only)."""

from __future__ import annotations

from downrange.wire.codes import RequestCode, ResponseCode
from tests.conversations.popper import NO_TIMES, command, create_group, new_popper, records_of
from tests.conversations.scene import Scene, bare_request, succeed
from tests.conversations.sends import pull
from tests.support.pops import batch_body

# Long enough for a client on a busy machine to acknowledge a message.
INVISIBLE_MS = 6000


def receipts_are_acknowledged_and_checked(scene: Scene) -> None:
    popper = new_popper(scene, count=3)
    pull(scene, popper.broker, popper.topic, count=3)
    found = popper.receipts(popper.pop())
    first = found["0", 0, 0]
    for _ in range(2):  # a repeated one has the same answer
        reply = succeed(popper.ack(first))
        assert (reply.remark, dict(reply.fields), reply.body) == (None, {}, b"")
    words = first.text.split(" ")
    accepted: list[dict[str, str | int]] = [
        {"extraInfo": " ".join(words[:7])},
        {"extraInfo": " ".join(words[:6])},
        {"extraInfo": first.text.replace(first.broker, "another")},
        {"offset": 3},  # where the next message will be
        {"consumerGroup": scene.name("unknown")},
    ]
    for changes in accepted:
        succeed(popper.ack(found["0", 0, 1], **changes))
    missing, topic = scene.name("missing"), popper.topic
    malformed = [
        " ".join(words[:2]),
        "",
        *(" ".join([*words[:at], "x", *words[at + 1 :]]) for at in range(4)),
    ]
    for text in malformed:
        assert popper.ack(first, extraInfo=text).code == ResponseCode.SYSTEM_ERROR
    refused: list[tuple[ResponseCode, str, dict[str, str | int]]] = [
        (
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{topic}@0, commit:100, store:0~3",
            {"offset": 100},
        ),
        (
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{topic}@0, commit:-1, store:0~3",
            {"offset": -1},
        ),
        (
            ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[7] is illegal, topic:[{topic}] topicConfig.readQueueNums:[2] consumer:[",
            {"queueId": 7},
        ),
        (
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{missing}] not exist, apply first please!",
            {"topic": missing},
        ),
    ]
    for code, remark, changes in refused:
        reply = popper.ack(first, **changes)
        assert (reply.code, (reply.remark or "")[: len(remark)]) == (code, remark)
        assert dict(reply.fields) == {}


def a_batch_of_receipts_is_checked_entry_by_entry(scene: Scene) -> None:
    popper = new_popper(scene, count=10)
    pull(scene, popper.broker, popper.topic, count=10)
    receipt = popper.receipts(popper.pop())["0", 0, 0]
    whole = receipt.batch_entry([0, 9])
    assert whole["b"] == "AQI="
    for entries in (
        [whole],
        [whole, whole],
        [receipt.batch_entry([30])],
        [whole | {"t": scene.name("missing")}, whole],
        [whole | {"q": 7}],
    ):
        reply = succeed(popper.batch_ack(*entries))
        assert (reply.remark, dict(reply.fields), reply.body) == (None, {}, b"")
    assert popper.batch_ack().code == ResponseCode.NO_MESSAGE
    code = RequestCode.BATCH_ACK_MESSAGE
    assert popper.broker.ask(bare_request(code)).code == ResponseCode.NO_MESSAGE
    lacking = {name: value for name, value in whole.items() if name != "r"}
    for body in (b"xx", batch_body("b", [whole | {"b": "***"}]), batch_body("b", [lacking])):
        assert popper.broker.ask(bare_request(code, body)).code == ResponseCode.SYSTEM_ERROR


def unacknowledged_messages_return_by_the_retry_topic(scene: Scene) -> None:
    popper = new_popper(scene, count=4, properties={"TAGS": "red", "KEYS": "k", "a": "b"})
    stored = pull(scene, popper.broker, popper.topic, count=4)
    first = popper.receipts(popper.pop(invisible_ms=INVISIBLE_MS))
    # One acknowledged alone, two at once; one is left.
    succeed(popper.ack(first["0", 0, 0]))
    succeed(popper.batch_ack(first["0", 0, 1].batch_entry([1, 3])))

    reply = popper.held_pop(invisible_ms=INVISIBLE_MS)
    (again,) = popper.receipts(reply).values()
    (record,) = records_of(reply)
    assert (again.kind, again.queue_id, again.offset) == ("1", 0, 0)
    assert reply.fields["startOffsetInfo"] == "1 0 0"
    assert reply.fields["msgOffsetInfo"] == "1 0 0"
    # The record is that of the retry topic, written anew with the name of the topic.
    assert (record.topic, record.body) == (popper.topic, stored[2].body)
    assert (record.queue_id, record.queue_offset, record.reconsume_times) == (0, 0, 1)
    assert (record.magic, record.flag) == (stored[2].magic, stored[2].flag)
    assert (record.sys_flag, record.born_ms) == (stored[2].sys_flag, stored[2].born_ms)
    popped_ms = first["0", 0, 2].pop_ms
    kept = stored[2].properties() | {
        "ORIGIN_GROUP": popper.group,
        "1ST_POP_TIME": str(popped_ms),
    }
    assert record.properties() == kept | {"POP_CK": again.text}
    retry_topic = again.topic
    (raw,) = pull(scene, popper.broker, retry_topic, count=1)
    properties = raw.properties()
    # In the log of our server a copy names the delivery that it replaces.
    properties.pop("POP_CK", None)
    assert (raw.topic, properties, raw.log_offset) == (retry_topic, kept, record.log_offset)
    assert raw.born_host == raw.store_host
    assert raw.store_ms >= popped_ms + INVISIBLE_MS
    fields = {"topic": retry_topic}
    config = succeed(popper.broker.ask(command(RequestCode.GET_TOPIC_CONFIG, fields))).body
    for part in (b'"readQueueNums":1', b'"writeQueueNums":1', b'"perm":6'):
        assert part in config

    # The second time the counter rises, and the time of the first pop stays.
    reply = popper.held_pop()
    (record,) = records_of(reply)
    (again,) = popper.receipts(reply).values()
    assert (record.queue_offset, record.reconsume_times) == (1, 2)
    assert record.properties() == kept | {"POP_CK": again.text}
    # A batch names the topic of the pop; the kind in the entry says which one is meant.
    assert again.batch_entry([1])["t"] == popper.topic
    succeed(popper.batch_ack(again.batch_entry([1])))


def a_changed_invisible_time_makes_a_new_receipt(scene: Scene) -> None:
    popper = new_popper(scene, count=3)
    pull(scene, popper.broker, popper.topic, count=3)
    old = popper.receipts(popper.pop())["0", 0, 1]
    scene.pause(0.002)  # Apache's times of a pop and of a change in one millisecond are equal
    reply = succeed(popper.change(old, 1000))
    assert int(reply.fields["popTime"]) > old.pop_ms
    assert {**reply.fields, "popTime": ""} == {
        "popTime": "",
        "invisibleTime": "1000",
        "reviveQid": str(old.revive_queue),
    }
    popped = popper.held_pop()
    (record,) = records_of(popped)
    assert (record.body, record.reconsume_times) == (b"0-1", 1)
    assert record.properties()["1ST_POP_TIME"] == reply.fields["popTime"]
    refused: list[tuple[ResponseCode, dict[str, str | int]]] = [
        (ResponseCode.MESSAGE_ILLEGAL, {"queueId": 7}),
        (ResponseCode.TOPIC_NOT_EXIST, {"topic": scene.name("missing")}),
        (ResponseCode.NO_MESSAGE, {"offset": 100}),
        (ResponseCode.NO_MESSAGE, {"offset": 3}),
    ]
    for code, changes in refused:
        reply = popper.change(old, 1000, **changes)
        assert (reply.code, dict(reply.fields)) == (code, NO_TIMES)
    reply = popper.change(old, 1000, extraInfo="1 2")
    assert (reply.code, dict(reply.fields)) == (ResponseCode.SYSTEM_ERROR, {})


def a_message_returns_more_often_than_its_group_retries(scene: Scene) -> None:
    """The limit is for clients; a broker makes no dead letter of a popped message."""
    popper = new_popper(scene, count=1)
    create_group(scene, popper.broker, "group", retry_max_times=1)
    pull(scene, popper.broker, popper.topic, count=1)
    receipt = popper.receipts(popper.pop(invisible_ms=1000))["0", 0, 0]
    popped_ms = str(receipt.pop_ms)
    for times in (1, 2, 3):
        reply = popper.held_pop(invisible_ms=1000)
        (record,) = records_of(reply)
        assert record.reconsume_times == times
        assert record.properties()["1ST_POP_TIME"] == popped_ms
        (receipt,) = popper.receipts(reply).values()
    succeed(popper.ack(receipt))
    request = command(RequestCode.GET_TOPIC_CONFIG, {"topic": f"%DLQ%{popper.group}"})
    assert popper.broker.ask(request).code == ResponseCode.TOPIC_NOT_EXIST
