"""Pops in order: blocks, repeated requests, counts, acknowledgements, restarts, the file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from downrange.errors import MalformedBody, RocketMQError
from downrange.server.broker.pop import dead_letters_in_order
from downrange.server.broker.pop.orders import PATH, Order, Orders
from downrange.server.broker.pop.revival import read_message
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from tests.unit.server.broker.broker_stage import damage_body
from tests.unit.server.broker.pop_stage import (
    INVISIBLE_MS,
    TIMER_TOPIC,
    Popped,
    PopStage,
    ack_request,
    batch_ack_request,
    pop_request,
    popped_of,
)

DAY_MS = 24 * 3600 * 1000
PLACE = ("T", "G", 0)
DEAD = "%DLQ%G"


@pytest.fixture
def stage() -> PopStage:
    made = PopStage()
    made.send(*"abcdef")
    return made


def pop(stage: PopStage, count: int = 3, **changes: Any) -> list[Popped]:
    return stage.pop(count=count, order=True, **changes)


def counts_of(stage: PopStage, count: int = 3, **changes: Any) -> str:
    answer = stage.ask(pop_request(count, order=True, now_ms=stage.now_ms, **changes))
    assert answer.code == 0
    return answer.fields["orderCountInfo"]


def test_queue_is_blocked_until_the_batch_is_acknowledged(stage: PopStage) -> None:
    found = pop(stage)
    assert {one.receipt.revive_queue for one in found} == {999}
    assert stage.records(TIMER_TOPIC) == []
    assert stage.committed() == 0
    assert pop(stage) == []
    assert pop(stage, attempt_id="x") == []
    stage.ack(*found)
    assert [one.body for one in pop(stage)] == ["d", "e", "f"]


def test_queue_is_blocked_for_its_group_only(stage: PopStage) -> None:
    pop(stage)
    assert len(pop(stage, group="H")) == 3
    assert stage.bodies(count=1) == ["a"]  # a pop without order is not blocked, as in Apache


def test_only_the_blocked_queue_is_left_out() -> None:
    stage = PopStage(queues=2)
    stage.send("a")
    stage.send("b", queue_id=1)
    assert len(pop(stage, 1)) == 1
    assert len(pop(stage, 32)) == 1
    assert pop(stage, 32) == []


def test_block_ends_with_its_time_and_the_whole_rest_comes_again(stage: PopStage) -> None:
    found = pop(stage, 5)
    stage.ack(found[0], found[1], found[3])
    assert stage.committed() == 2
    stage.now_ms += INVISIBLE_MS - 1
    assert pop(stage) == []
    stage.now_ms += 1
    again = pop(stage)
    assert [one.body for one in again] == ["c", "d", "e"]
    assert {one.record.reconsume_times for one in again} == {0}


def test_708_same_attempt_gets_the_batch_again(stage: PopStage) -> None:
    """A push consumer whose pop had no answer repeated it with another attempt id.

    The queue was blocked for it until the time of the batch ended (apache/rocketmq-clients 708).
    Here a repeated pop gets the batch, whatever the first one got, and counts no delivery.
    """
    first = pop(stage, 3, attempt_id="1")
    stage.now_ms += 10
    assert counts_of(stage, 5, attempt_id="1") == "0 0 0"
    order = stage.state.orders.get(PLACE)
    assert order is not None
    assert order.offsets == [0, 1, 2, 3, 4]
    stage.ack(first[0])  # of the older pop time: ignored
    assert stage.committed() == 0


def test_counts(stage: PopStage) -> None:
    assert counts_of(stage) == "0 0 0"
    stage.now_ms += INVISIBLE_MS
    assert counts_of(stage) == "0 qo0%0 1;0 qo0%1 1;0 qo0%2 1;0 0 1"
    stage.now_ms += INVISIBLE_MS
    assert counts_of(stage, 4) == "0 qo0%0 2;0 qo0%1 2;0 qo0%2 2;0 0 0"


def test_counts_of_several_queues() -> None:
    stage = PopStage(queues=2)
    stage.send("a")
    stage.send("b", queue_id=1)
    counts_of(stage)
    stage.now_ms += INVISIBLE_MS
    entries = counts_of(stage).split(";")
    assert sorted(entries) == ["0 0 1", "0 1 1", "0 qo0%0 1", "0 qo1%0 1"]


def test_acknowledgement_moves_the_offset_to_the_first_open_message(stage: PopStage) -> None:
    one, two, three = pop(stage)
    for acked, offset in ((two, 0), (one, 2), (one, 2), (three, 3)):
        stage.ack(acked)
        assert stage.committed() == offset


def test_wrong_receipts_are_ignored(stage: PopStage) -> None:
    one, *_ = pop(stage)
    for receipt in (
        one.receipt._replace(pop_ms=5),
        one.receipt._replace(offset=5),
    ):
        stage.ack(Popped(receipt, one.record))
    assert stage.committed() == 0
    answer = stage.ask(ack_request(one, offset=50))
    assert answer.code == 208
    stage.ack(one, group="H")
    assert stage.committed(group="H") is None


def test_batch_acknowledges_in_order_and_others_together(stage: PopStage) -> None:
    ordered = pop(stage, 2)
    (plain,) = stage.pop(count=1, group="H")
    request = batch_ack_request(*ordered)
    other = json.loads(batch_ack_request(plain, group="H").body)
    body = json.loads(request.body)
    body["acks"] += other["acks"]
    request.body = json.dumps(body).encode()
    assert stage.ask(request).code == 0
    assert (stage.committed(), stage.committed(group="H")) == (2, 1)
    found = pop(stage, 2)
    assert stage.ask(batch_ack_request(*found)).code == 0
    assert stage.committed() == 4


def test_acknowledgement_waits_until_it_is_saved(stage: PopStage) -> None:
    one, *_ = pop(stage)
    request = stage.hand_in(ack_request(one))
    stage.commit()
    stage.flush()
    assert stage.answer_to(request) is None
    stage.publish()
    assert stage.answer_of(request).code == 0


def test_change(stage: PopStage) -> None:
    one, two, three = pop(stage)
    stage.now_ms += 19
    answer = stage.change(three, 1_500)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert answer.fields == {
        "popTime": str(one.receipt.pop_ms),
        "invisibleTime": "1519",
        "reviveQid": "999",
    }
    stage.ack(one, two)
    stage.now_ms += 1_499
    assert pop(stage) == []
    stage.now_ms += 1
    assert [one.body for one in pop(stage)] == ["c", "d", "e"]


def test_change_to_a_longer_time_blocks_for_longer(stage: PopStage) -> None:
    one, *_ = pop(stage)
    stage.change(one, 2 * INVISIBLE_MS)
    stage.now_ms += 2 * INVISIBLE_MS - 1
    assert pop(stage) == []
    stage.now_ms += 1
    assert len(pop(stage)) == 3


def test_change_with_a_wrong_receipt_succeeds_without_effect(stage: PopStage) -> None:
    one, *_ = pop(stage)
    wrong = Popped(one.receipt._replace(pop_ms=1), one.record)
    answer = stage.change(wrong, 5)
    assert answer.code == 0
    assert answer.fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}


def test_filter_in_order() -> None:
    stage = PopStage()
    for tag in "ABAB":
        stage.send(tag, TAGS=tag)
    found = pop(stage, 5, exp="B")
    assert [one.receipt.offset for one in found] == [1, 3]
    stage.ack(*found)
    assert stage.committed() == 4
    stage.send("A", TAGS="A")
    assert pop(stage, 5, exp="B") == []
    assert stage.committed() == 5


def test_order_and_open_messages_of_another_pop(stage: PopStage) -> None:
    """A group that pops with and without order does not get invisible messages."""
    stage.pop(count=2)
    assert [one.body for one in pop(stage)] == ["c", "d", "e"]


# ---- dead letters ----


def dead_letters(stage: PopStage) -> list[str]:
    if stage.state.topics.get(DEAD) is None:
        return []
    return [record.body.decode() for record in stage.records(DEAD)]


def move_head(stage: PopStage) -> None:
    """Pop at the end of the block, and let the head become a dead letter."""
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    stage.tick()
    stage.flush()
    stage.tick()
    stage.publish()


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_head_becomes_a_dead_letter_after_its_last_delivery(retries: int, stage: PopStage) -> None:
    stage.group(retry_max_times=retries)
    for _ in range(retries + 1):
        assert [one.body for one in pop(stage)] == ["a", "b", "c"]
        stage.tick(INVISIBLE_MS)
    assert dead_letters(stage) == []
    move_head(stage)
    (record,) = stage.records(DEAD)
    assert (record.body, record.reconsume_times) == (b"a", retries + 1)
    properties = record.properties()
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == stage.records()[0].offset_id
    assert stage.committed() == 1
    assert stage.state.statistics.events.dead_letters == {("T", "G"): 1}
    assert [one.body for one in pop(stage)] == ["b", "c", "d"]


def test_message_behind_a_dead_letter_has_all_its_deliveries_as_the_head(stage: PopStage) -> None:
    stage.group(retry_max_times=1)
    for dead in ("a", "b", "c"):
        for _ in range(2):
            assert pop(stage)[0].body == dead
            stage.now_ms += INVISIBLE_MS
        move_head(stage)
    assert dead_letters(stage) == ["a", "b", "c"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_message_behind_an_acknowledged_one_is_counted_from_then_on(
    is_restarted: bool, stage: PopStage
) -> None:
    stage.group(retry_max_times=1)
    pop(stage)
    stage.now_ms += INVISIBLE_MS
    one, *_ = pop(stage)
    stage.ack(one)
    stage.now_ms += INVISIBLE_MS
    assert counts_of(stage) == "0 qo0%1 2;0 qo0%2 2;0 0 0"
    if is_restarted:
        stage.restart(stage.progress())
        stage.group(retry_max_times=1)
    move_head(stage)
    (record,) = stage.records(DEAD)
    assert (record.body, record.reconsume_times) == (b"b", 3)


def test_last_message_of_a_batch_and_acknowledged_ones_behind_the_head(stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    found = pop(stage)
    stage.ack(found[1], found[2])
    move_head(stage)
    assert (dead_letters(stage), stage.committed()) == (["a"], 3)
    assert [one.body for one in pop(stage, 1)] == ["d"]
    move_head(stage)
    assert (dead_letters(stage), stage.committed()) == (["a", "d"], 4)
    assert [one.body for one in pop(stage)] == ["e", "f"]


def test_repeated_request_is_no_further_delivery(stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    for _ in range(3):
        assert len(pop(stage, attempt_id="1")) == 3
        stage.now_ms += INVISIBLE_MS
    assert pop(stage, attempt_id="2") == []
    assert pop(stage, attempt_id="1") == []  # the head is on its way
    stage.tick()
    assert dead_letters(stage) == ["a"]


def test_held_pop_goes_on_behind_the_dead_letter(stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    pop(stage)
    request = stage.hold(order=True, poll_ms=2 * INVISIBLE_MS)
    stage.tick(INVISIBLE_MS)  # finds the head
    stage.tick(50)  # stores it
    stage.flush()
    assert stage.answer_to(request) is None
    stage.tick(50)
    answer = stage.answer_of(request)
    assert [one.body for one in popped_of(answer)] == ["b", "c", "d", "e", "f"]


def test_queue_waits_until_the_dead_letter_is_durable(stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    pop(stage)
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    for _ in range(3):
        stage.tick()
        request = stage.hand_in(pop_request(order=True, now_ms=stage.now_ms))
        stage.publish()
        assert stage.answer_of(request).code == 210
    assert (dead_letters(stage), stage.committed()) == (["a"], 0)
    stage.flush()
    stage.tick()
    assert stage.committed() == 1


@pytest.mark.parametrize("is_stored", [False, True])
def test_kill_before_the_head_is_passed_loses_nothing(is_stored: bool, stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    pop(stage)
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    if is_stored:
        stage.tick()
    stage.restart()
    stage.group(retry_max_times=0)
    move_head(stage)
    assert dead_letters(stage) == ["a", "a"] if is_stored else ["a"]
    assert (stage.committed(), len(pop(stage))) == (1, 3)
    stage.restart()
    assert stage.committed() == 1
    assert pop(stage) == []


@pytest.mark.parametrize("is_stored", [False, True])
def test_late_acknowledgement_of_the_head_counts(is_stored: bool, stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    one, *_ = pop(stage)
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    if is_stored:
        stage.tick()
    stage.ack(one)
    stage.tick()
    assert dead_letters(stage) == (["a"] if is_stored else [])
    assert stage.committed() == 1
    assert [each.body for each in pop(stage)] == []  # b is the head, and was delivered once


def test_late_change_of_the_head_counts(stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    one, *_ = pop(stage)
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    stage.change(one, 1_000)
    stage.tick()
    stage.ack(one)
    stage.tick()
    assert dead_letters(stage) == []


@pytest.mark.parametrize("is_stored", [False, True])
def test_offset_that_is_set_ends_the_move_of_the_head(is_stored: bool, stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    pop(stage)
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    if is_stored:
        stage.tick()
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "3"}
    assert stage.ask(Command(int(RequestCode.UPDATE_CONSUMER_OFFSET), fields)).code == 0
    assert [one.body for one in pop(stage)] == ["d", "e", "f"]
    stage.tick()
    stage.tick()
    assert stage.committed() == 3
    assert not stage.state.orders.dead_heads


def test_head_is_delivered_again_while_nothing_can_be_stored(stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    pop(stage)
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    stage.state.unwritable = "full"
    stage.tick()
    assert [one.body for one in pop(stage)] == ["a", "b", "c"]
    stage.state.unwritable = None
    move_head(stage)
    assert dead_letters(stage) == ["a"]


def test_head_that_cannot_be_stored_is_delivered_again(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.group(retry_max_times=0)
    pop(stage)
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []

    def fail(*_: object) -> None:
        raise RocketMQError("bad")

    with monkeypatch.context() as patch:
        patch.setattr(stage.state.store, "append", fail)
        stage.tick()
    assert [note.text for note in stage.notes] == ["a dead letter cannot be stored: bad"]
    assert [one.body for one in pop(stage)] == ["a", "b", "c"]
    move_head(stage)
    assert dead_letters(stage) == ["a"]


def test_damaged_head_is_reported_and_passed(stage: PopStage) -> None:
    stage.group(retry_max_times=0)
    pop(stage)
    damage_body(stage.state, stage.files, stage.records()[0])
    move_head(stage)
    assert any("message 0 of T cannot be a dead letter" in note.text for note in stage.notes)
    assert (dead_letters(stage), stage.committed()) == ([], 1)


def test_head_that_the_disk_fails_to_read_is_delivered_again_and_others_are_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = PopStage(queues=2)
    stage.group(retry_max_times=0)
    for queue_id in range(2):
        stage.send(f"x{queue_id}", queue_id=queue_id)
    assert len(pop(stage)) == 2
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []

    def fail(state: Any, delivery: Any, offset: int) -> Any:
        if delivery.queue_id == 0:
            raise OSError(5, "Input/output error")
        return read_message(state, delivery, offset)

    with monkeypatch.context() as patch:
        patch.setattr(f"{dead_letters_in_order.__name__}.read_message", fail)
        stage.tick()
    (note,) = stage.notes
    assert note.is_warning
    assert note.text == "message 0 of T cannot be read now: [Errno 5] Input/output error"
    assert dead_letters(stage) == ["x1"]
    assert [one.body for one in pop(stage)] == ["x0"]
    move_head(stage)
    assert dead_letters(stage) == ["x1", "x0"]


def test_one_tick_moves_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_in_order, "TICK_RECORDS_MAX", 2)
    stage = PopStage(queues=3)
    stage.group(retry_max_times=0)
    for queue_id in range(3):
        stage.send("a", queue_id=queue_id)
    assert len(pop(stage)) == 3
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    stage.tick()
    assert len(dead_letters(stage)) == 2
    stage.tick()
    assert len(dead_letters(stage)) == 3


# ---- restarts ----


def test_block_and_attempt_survive_a_restart_with_an_older_table_of_offsets(
    stage: PopStage,
) -> None:
    stale = stage.progress()
    one, *_ = pop(stage, attempt_id="1")
    stage.ack(one)
    for progress in (stale, None):
        stage.restart(progress)
        assert stage.committed() == 1
        assert pop(stage, attempt_id="2") == []
    answer = stage.ask(pop_request(3, order=True, attempt_id="1"))
    assert [popped.body for popped in popped_of(answer)] == ["b", "c", "d"]
    assert answer.fields["orderCountInfo"] == "0 0 0"


def test_counts_and_changes_survive_a_restart(stage: PopStage) -> None:
    pop(stage)
    stage.now_ms += INVISIBLE_MS
    one, *_ = pop(stage)
    stage.change(one, 2 * INVISIBLE_MS)
    stage.restart(stage.progress())
    stage.now_ms += INVISIBLE_MS
    assert pop(stage) == []
    stage.now_ms += INVISIBLE_MS
    assert counts_of(stage) == "0 qo0%0 2;0 qo0%1 2;0 qo0%2 2;0 0 2"


def test_newer_offset_counts_after_a_restart(stage: PopStage) -> None:
    found = pop(stage)
    stage.ack(*found)
    stage.state.offsets.commit("G", "T", 0, 5)
    stage.restart(stage.progress())
    assert stage.committed() == 5


def test_offset_that_is_set_ends_the_order(stage: PopStage) -> None:
    stage.ack(*pop(stage))
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert stage.ask(Command(int(RequestCode.UPDATE_CONSUMER_OFFSET), fields)).code == 0
    assert len(stage.state.orders) == 0
    stage.restart(stage.progress())
    assert [one.body for one in pop(stage)] == ["b", "c", "d"]


def test_topic_and_group_that_are_deleted(stage: PopStage) -> None:
    pop(stage)
    pop(stage, group="H")
    stage.state.forget_group("H")
    assert len(stage.state.orders) == 1
    stage.state.forget_topic("T")
    assert len(stage.state.orders) == 0


def test_old_orders_are_forgotten(stage: PopStage) -> None:
    pop(stage)
    stage.tick(DAY_MS)
    assert len(stage.state.orders) == 1
    stage.tick(59_000)
    assert len(stage.state.orders) == 1
    stage.tick(1_000)
    assert len(stage.state.orders) == 0


# ---- the file ----


def test_file_has_the_form_of_apache(stage: PopStage) -> None:
    one, *_ = pop(stage, attempt_id="A7")
    now = stage.now_ms
    saved = json.loads(stage.state.orders.dump())
    order = saved["table"]["T@G"]["0"]
    assert saved["orderInfoCount"] == 1
    assert saved["orderedConsumptionLevel"] == "QUEUE"
    assert order == {
        "a": "A7",
        "cm": 0,
        "i": INVISIBLE_MS,
        "l": now,
        "o": [0, 1, 2],
        "oc": {},
        "popTime": now,
    }
    stage.now_ms += 5
    stage.ack(one)
    stage.change(Popped(one.receipt._replace(offset=1), one.record), 1_500)
    order = json.loads(stage.files.read_all(PATH) or b"")["table"]["T@G"]["0"]
    assert (order["cm"], order["ot"], order["l"]) == (1, {"1": now + 1_505}, now + 5)


#: As a 5.5.0 broker has written it: keys are numbers.
JAVA = b"""{
\t"orderInfoCount":1,
\t"orderedConsumptionLevel":"QUEUE",
\t"table":{
\t\t"TO@GO":{
\t\t\t0:{
\t\t\t\t"a":"A7",
\t\t\t\t"cm":1,
\t\t\t\t"i":3000,
\t\t\t\t"l":1794918793703,
\t\t\t\t"o":[3,1,2],
\t\t\t\t"oc":{
\t\t\t\t\t3:1,
\t\t\t\t\t4:1
\t\t\t\t},
\t\t\t\t"ot":{
\t\t\t\t\t5:1794918799999
\t\t\t\t},
\t\t\t\t"popTime":1794918793703
\t\t\t},
\t\t\t1:{"o":[],"popTime":5}
\t\t}
\t}
}"""


def test_file_of_apache_is_read() -> None:
    orders = Orders()
    orders.load(JAVA)
    assert len(orders) == 1
    order = orders.get(("TO", "GO", 0))
    assert order is not None
    assert order.offsets == [3, 4, 5]
    assert (order.open, order.attempt_id, order.pop_ms) == (0b110, "A7", 1794918793703)
    assert order.counts == {3: 1, 4: 1}
    assert order.blocked_until_ms() == 1794918799999
    assert order.next_offset() == 4
    copy = Orders()
    copy.load(orders.dump())
    assert copy.dump() == orders.dump()


def test_damaged_file_is_refused() -> None:
    with pytest.raises(MalformedBody):
        Orders().load(b'{"table":{"T@G":{"0":{"o":"x"}}}}')


def test_64_messages_are_the_bits_of_a_signed_number() -> None:
    orders = Orders()
    orders.pop(PLACE, Order(range(64), 1, 2, None))
    for offset in (0, 63):
        orders.acknowledge(PLACE, offset, 1, 5)
    saved = json.loads(orders.dump())["table"]["T@G"]["0"]["cm"]
    assert saved == 1 - 2**63
    copy = Orders()
    copy.load(orders.dump())
    order = copy.get(PLACE)
    assert order is not None
    assert order.open == (2**64 - 1) & ~(1 | 1 << 63)


def test_empty_order_of_a_table() -> None:
    orders = Orders()
    assert orders.get(PLACE) is None
    assert not orders.is_blocked(PLACE, None, 0)
    assert not orders.change(PLACE, 0, 0, 0, 0)
    orders.reset(PLACE)
    assert orders.version == 0
