"""Races of pop consumption that users of Apache's broker reported: none of them happens here.

Each test names the issue in Apache's tracker, and says what the race was. One of a client is in
`pop/test_orders.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.json import encode

from downrange.store.message_store import MessageStore
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import DeleteTopicRequest
from downrange.wire.pop_bodies import (
    BatchAck,
    BatchAckBody,
    CheckpointBody,
    bit_set,
    encode_pop_body,
)
from downrange.wire.pop_headers import AckRequest, PopReply, PopRequest
from downrange.wire.pop_receipts import PLAIN, Receipt
from downrange.wire.records import Record, decode_records
from downrange.wire.system_names import TIMER_TOPIC
from tests.unit.server.broker.broker_stage import NOW_MS, Stage, damage_body, send_request

if TYPE_CHECKING:
    from downrange.store.queue_index import Unit

RETRY_TOPIC = "%RETRY%G_T"
INVISIBLE_MS = 10_000


def a_stage(count: int = 4, **options: Any) -> Stage:
    """Return a broker with messages m0, m1, ... in queue 0 of the topic."""
    stage = Stage(**options)
    stage.create("T", 1)
    for number in range(count):
        assert stage.ask(send_request(f"m{number}".encode())).code == ResponseCode.SUCCESS
    stage.tick()
    return stage


def restarted(stage: Stage, *, is_progress_saved: bool = True) -> Stage:
    """Return a broker on the files of another one that was killed."""
    again = Stage(stage.files)
    tables = ["topics", "groups", "orders"]
    for name in [*tables, "offsets", "timers"] if is_progress_saved else tables:
        getattr(again.state, name).load(getattr(stage.state, name).dump())
    again.now_ms = stage.now_ms
    again.tick()
    return again


def pop_request(count: int = 32, **changes: Any) -> Command:
    settings: dict[str, Any] = {
        "consumer_group": "G",
        "topic": "T",
        "queue_id": 0,
        "max_msg_nums": count,
        "invisible_time": INVISIBLE_MS,
        "poll_time": 0,
        "born_time": 0,
        "init_mode": 0,
    }
    return request_command(PopRequest(**(settings | changes)))


def pop(stage: Stage, count: int = 32, **changes: Any) -> list[tuple[bytes, Receipt]]:
    """Pop; return bodies and receipts."""
    return popped_of(stage.ask(pop_request(count, **changes)))


def popped_of(answer: Command) -> list[tuple[bytes, Receipt]]:
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    reply = PopReply.from_fields(answer.fields)
    starts = {
        tuple(text.split(" ")[:2]): int(text.split(" ")[2])
        for text in (reply.start_offset_info or "").split(";")
    }
    places = [
        (kind, queue_id, offset)
        for text in (reply.msg_offset_info or "").split(";")
        for kind, queue_id, offsets in [text.split(" ")]
        for offset in offsets.split(",")
    ]
    return [
        (
            record.body,
            Receipt(
                start=starts[kind, queue_id],
                pop_ms=reply.pop_time,
                invisible_ms=reply.invisible_time,
                revive_queue=reply.revive_qid,
                kind=kind,
                broker="broker-a",
                queue_id=int(queue_id),
                offset=int(offset),
            ),
        )
        for record, (kind, queue_id, offset) in zip(
            decode_records(answer.body), places, strict=True
        )
    ]


def ack_request(receipt: Receipt) -> Command:
    header = AckRequest(
        consumer_group="G",
        topic="T",
        queue_id=receipt.queue_id,
        extra_info=str(receipt),
        offset=receipt.offset,
    )
    return request_command(header)


def ack(stage: Stage, receipt: Receipt) -> None:
    assert stage.ask(ack_request(receipt)).code == ResponseCode.SUCCESS


def bodies(stage: Stage, topic: str) -> list[bytes]:
    if stage.state.topics.get(topic) is None:
        return []
    return [record.body for record in stage.records(topic)]


def revived(stage: Stage) -> list[bytes]:
    """Return what is in the retry topic after the invisible time, and some more."""
    for _ in range(5):
        stage.tick(INVISIBLE_MS)
    return bodies(stage, RETRY_TOPIC)


@pytest.mark.parametrize("back_ms", [0, 5_000])
def test_7914_every_message_that_was_not_acknowledged_is_delivered_again(back_ms: int) -> None:
    """The reviver compared the times of messages with the time of the pop, and left some out.

    Here the clock may even have been set back between the sends and the pop.
    """
    stage = a_stage(32)
    stage.now_ms -= back_ms
    popped = pop(stage)
    acknowledged = {body for number, (body, _) in enumerate(popped) if number % 3 == 1}
    for body, receipt in popped:
        if body in acknowledged:
            ack(stage, receipt)
    assert revived(stage) == [body for body, _ in popped if body not in acknowledged]
    again = {body for body, _ in pop(stage)}
    assert again == {body for body, _ in popped} - acknowledged


def test_7724_a_message_that_cannot_be_read_is_not_replaced_by_the_next_one() -> None:
    """The reviver read "one message from this offset on".

    When the right one was gone, it got the message after it, which was acknowledged already or was
    revived itself, and was therefore delivered twice.
    """
    stage = a_stage(4)
    popped = pop(stage)
    ack(stage, popped[1][1])
    damage_body(stage.state, stage.files, stage.records()[0])
    assert revived(stage) == [b"m2", b"m3"]
    assert any("message 0 of T cannot be delivered again" in note.text for note in stage.notes)


@pytest.mark.parametrize("is_killed", [False, True])
def test_7412_a_checkpoint_that_could_not_be_revived_is_revived_later(is_killed: bool) -> None:
    """A checkpoint was stored again after a failure, but without the name of the broker.

    The next attempt looked for the message on a broker without a name, and failed for ever.
    """
    stage = a_stage(2)
    pop(stage)
    stage.files.capacity = 0
    stage.tick(INVISIBLE_MS)
    assert bodies(stage, RETRY_TOPIC) == []
    stage.files.capacity = 1 << 30
    stage.state.unwritable = None  # the driver does it
    assert revived(restarted(stage) if is_killed else stage) == [b"m0", b"m1"]


def test_7412_a_checkpoint_without_a_broker_is_revived() -> None:
    """Apache's broker may have left such a record in the revive topic."""
    stage = a_stage(2)
    body = CheckpointBody(
        group="G",
        differences=[0, 1],
        invisible_ms=INVISIBLE_MS,
        count=2,
        pop_ms=NOW_MS,
        queue_id=0,
        start=0,
        topic="T",
        put_times="1",
    )
    record = Record(body=encode_pop_body(body), log_offset=1 << 40)
    stage.state.pop_records.read(record, {"TAGS": "ck"}, 0, 3)
    assert revived(stage) == [b"m0", b"m1"]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("count", [1, 9])
def test_8479_a_checkpoint_of_a_deleted_topic_revives_nothing(is_killed: bool, count: int) -> None:
    """The offsets of an old checkpoint were looked up in the new topic of the same name.

    Beyond its end they were tried for ever; below it, other messages were delivered again.
    """
    stage = a_stage(4)
    assert len(pop(stage)) == 4
    stage.ask(request_command(DeleteTopicRequest(topic="T")))
    stage.create("T", 1)
    for number in range(count):
        stage.ask(send_request(f"new{number}".encode()))
    if is_killed:
        stage = restarted(stage, is_progress_saved=False)
    assert revived(stage) == []
    assert len(stage.state.checkpoints) == 0
    assert [body for body, _ in pop(stage)] == [b"new%d" % number for number in range(count)]


def test_5408_repeated_acknowledgements_do_not_stop_the_progress() -> None:
    """Acknowledgements without a checkpoint kept the reviver at the same offset.

    It read the same records again and again.
    """
    stage = a_stage(3)
    popped = pop(stage)
    for _ in range(3):
        for _, receipt in popped:
            ack(stage, receipt)
    assert len(stage.records(TIMER_TOPIC)) == 1 + len(popped)  # a repeated one is not stored
    stage.tick()
    assert stage.state.timers.progress().low == stage.state.timers.progress().read == 4
    assert stage.state.offsets.get("G", "T", 0) == 3


def test_3443_a_start_does_not_read_records_again_that_are_joined() -> None:
    """The reviver's offset moved only with checkpoints, so trailing acknowledgements came again."""
    stage = a_stage(3)
    for _, receipt in pop(stage):
        ack(stage, receipt)
    again = restarted(stage)
    assert again.state.timers.progress().low == len(again.records(TIMER_TOPIC)) == 4
    assert revived(again) == []


def test_3787_a_slow_consumer_that_acknowledges_in_time_gets_nothing_again() -> None:
    """A checkpoint left the buffer for the log while its messages were being acknowledged.

    Acknowledgements after that moment were joined too late, and the messages came again although
    each was acknowledged in time.
    """
    stage = a_stage(10)
    popped = pop(stage)
    for _, receipt in popped:
        stage.tick(INVISIBLE_MS // 10 - 1)
        ack(stage, receipt)
    assert stage.now_ms < NOW_MS + INVISIBLE_MS
    assert revived(stage) == []
    assert revived(restarted(stage, is_progress_saved=False)) == []


@pytest.mark.parametrize("is_batch", [False, True])
def test_10736_an_acknowledgement_wins_against_a_revival_in_the_same_moment(
    is_batch: bool,
) -> None:
    """A cache wrote its checkpoints to the store while an acknowledgement arrived.

    It was answered, but the checkpoint was written after it and stayed. Here the acknowledgement is
    stored at once (`pop_store.py`), in the moment in which the tick of the revival begins.
    """
    stage = a_stage(2)
    (_, first), (_, second) = pop(stage)
    stage.now_ms += INVISIBLE_MS
    request = ack_request(first)
    if is_batch:
        element = BatchAck(
            bits=bit_set(0, [0]),
            group="G",
            invisible_ms=INVISIBLE_MS,
            pop_ms=first.pop_ms,
            queue_id=0,
            kind=PLAIN,
            revive_queue=first.revive_queue,
            start=0,
            topic="T",
        )
        body = encode(BatchAckBody(acks=[element], broker_name="broker-a"))
        request = Command(int(RequestCode.BATCH_ACK_MESSAGE), body=body)
    stage.hand_in(request)
    stage.tick()
    stage.flush()
    answer = stage.answer_to(request)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert bodies(stage, RETRY_TOPIC) == [b"m1"]
    again = restarted(stage, is_progress_saved=False)
    assert len(again.state.checkpoints) == 0
    assert second.offset == 1
    assert revived(again) == [b"m1"]


def test_10985_a_message_that_cannot_be_read_for_a_while_is_delivered_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading a message failed after the reviver had moved on.

    Nothing was left that would have tried again, so the message was never delivered.
    """
    stage = a_stage(2)
    pop(stage)
    read = MessageStore.read

    def fail(_store: MessageStore, _unit: Unit) -> bytes:
        raise OSError("the disk does not answer")

    monkeypatch.setattr(MessageStore, "read", fail)
    stage.tick(INVISIBLE_MS)
    monkeypatch.setattr(MessageStore, "read", read)
    assert bodies(stage, RETRY_TOPIC) == []
    assert len(stage.state.checkpoints) == 1
    assert revived(stage) == [b"m0", b"m1"]


def test_10827_a_repeated_pop_in_order_gets_its_batch_although_others_wait() -> None:
    """A repeated request lost a try-lock against other requests of the group.

    It was answered without messages, forgot its attempt, and the head of the queue was blocked
    for the whole invisible time.
    """
    stage = a_stage(3)
    first = pop(stage, 2, order=True, attempt_id="a")
    others = [
        stage.hand_in(pop_request(order=True, attempt_id=name, poll_time=20_000)) for name in "bc"
    ]
    again = stage.hand_in(pop_request(2, order=True, attempt_id="a"))
    stage.commit()
    stage.publish()
    answer = stage.answer_to(again)
    assert answer is not None
    assert [body for body, _ in popped_of(answer)] == [body for body, _ in first] == [b"m0", b"m1"]
    assert [stage.answer_to(other) for other in others] == [None, None]
    for _, receipt in popped_of(answer):
        ack(stage, receipt)
    served = [stage.answer_to(other) for other in others]
    assert [body for body, _ in popped_of(served[0] or Command(210))] == [b"m2"]
    assert served[1] is None


def test_a_checkpoint_whose_group_was_not_saved_is_revived() -> None:
    """The first pop of a group creates it; a kill may come between checkpoint and group."""
    stage = a_stage(1)
    stage.hand_in(pop_request())
    stage.commit()
    again = Stage(stage.files)
    again.state.topics.load(stage.state.topics.dump())
    again.now_ms = stage.now_ms
    again.tick()
    assert again.state.groups.get("G") is None
    assert revived(again) == [b"m0"]


def test_a_deleted_group_does_not_come_back_with_its_checkpoints() -> None:
    stage = a_stage(2)
    pop(stage)
    command = Command(int(RequestCode.DELETE_SUBSCRIPTIONGROUP), {"groupName": "G"})
    assert stage.ask(command).code == ResponseCode.SUCCESS
    for each in (stage, restarted(stage, is_progress_saved=False)):
        assert revived(each) == []
        assert each.state.groups.get("G") is None
