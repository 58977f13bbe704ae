"""When replies are sent: after the append, the flush, the saved tables, or a timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import CorruptStore, DiskFull, StoreError
from downrange.server.broker import broker as module
from downrange.server.broker.state import DISK_FULL
from downrange.server.outputs import STORE_PENDING, Note, Peer
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import CreateTopicRequest
from tests.unit.server.broker.broker_stage import CLIENT, Stage, pull_request, send_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.outputs import Output
    from downrange.wire.records import Record

OTHER = Peer(2, "10.0.0.3:1002")
TIMEOUT_MS = 5_000


def a_stage(**options: Any) -> Stage:
    stage = Stage(**options)
    stage.state.groups.get_or_create("G", stage.state.options, stage.now_ms)
    stage.create("T")
    return stage


def create_request(topic: str = "New") -> Command:
    return request_command(
        CreateTopicRequest(
            topic=topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
        )
    )


def code_of(stage: Stage, request: Command) -> int | None:
    answer = stage.answer_to(request)
    return None if answer is None else answer.code


# ---- turns ----


def test_a_code_that_is_not_served_is_refused_by_its_number() -> None:
    answer = a_stage().ask(Command(7654))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 7654 not supported"


def test_a_static_topic_is_refused_with_the_reason_and_the_next_step() -> None:
    answer = a_stage().ask(Command(int(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark is not None
    assert "static topics are not supported: a queue of this broker cannot move" in answer.remark
    assert "mqadmin updateTopic" in answer.remark


def test_sends_of_one_turn_are_stored_together_and_answered_at_its_end() -> None:
    stage = a_stage()
    sends = [stage.hand_in(send_request(b"%d" % number)) for number in range(3)]
    assert stage.records() == []
    assert [stage.answer_to(send) for send in sends] == [None] * 3
    stage.commit()
    assert [record.body for record in stage.records()] == [b"0", b"1", b"2"]
    offsets = [stage.answer_to(send).fields["queueOffset"] for send in sends]  # type: ignore[union-attr]
    assert offsets == ["0", "1", "2"]


def test_a_request_that_reads_sees_the_sends_before_it() -> None:
    stage = a_stage()
    send = stage.hand_in(send_request(b"first"))
    pull = stage.hand_in(pull_request())
    assert code_of(stage, pull) == ResponseCode.SUCCESS
    stage.commit()
    assert code_of(stage, send) == ResponseCode.SUCCESS


def test_a_handler_that_fails_takes_no_reply_of_others_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = a_stage()
    send = stage.hand_in(send_request())

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(module.HANDLERS, 11, fail)
    with pytest.raises(ZeroDivisionError):
        stage.hand_in(pull_request())
    stage.commit()
    assert code_of(stage, send) == ResponseCode.SUCCESS


def test_a_header_that_cannot_be_read_is_answered() -> None:
    answer = a_stage().ask(Command(int(RequestCode.SEND_MESSAGE_V2), {"a": "P"}, b"x"))
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_store_that_cannot_be_read_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = a_stage()
    stage.ask(send_request())

    def fail(*_: object) -> None:
        raise CorruptStore("commitlog/0", 5, "torn")

    monkeypatch.setattr(stage.state.store, "read_range", fail)
    answer = stage.ask(pull_request())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "commitlog/0" in (answer.remark or "")


# ---- storing that fails ----


def test_one_message_that_cannot_be_stored_does_not_affect_the_others_of_its_turn() -> None:
    stage = a_stage()
    good = stage.hand_in(send_request(b"good"))
    bad = stage.hand_in(send_request(b"bad", properties="k\x01a\x00b\x02"))
    also_good = stage.hand_in(send_request(b"also good"))
    stage.commit()
    codes = [code_of(stage, request) for request in (good, bad, also_good)]
    assert codes == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert [record.body for record in stage.records()] == [b"good", b"also good"]


def test_a_full_disk_refuses_sends_until_there_is_space_and_reads_go_on() -> None:
    stage = a_stage()
    stage.ask(send_request(b"before"))
    stage.files.capacity = 0
    full = [stage.hand_in(send_request()) for _ in range(2)]
    stage.commit()
    assert [code_of(stage, send) for send in full] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert stage.state.unwritable == DISK_FULL
    assert [note.text for note in stage.notes] == ["sends are refused: the disk is full"]
    stage.files.capacity = 1 << 30
    assert stage.ask(send_request()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert stage.ask(pull_request()).code == ResponseCode.SUCCESS
    stage.state.unwritable = None
    assert stage.ask(send_request(b"after")).code == ResponseCode.SUCCESS
    assert [record.body for record in stage.records()] == [b"before", b"after"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(5, "Input/output error"), ResponseCode.SYSTEM_ERROR),
        (StoreError("too large"), ResponseCode.MESSAGE_ILLEGAL),
        (DiskFull("commitlog"), ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
def test_every_send_is_answered_when_nothing_can_be_stored(
    error: Exception, code: ResponseCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = a_stage()

    def fail(_records: Sequence[Record], *_: object) -> None:
        raise error

    monkeypatch.setattr(stage.state.store, "append", fail)
    sends = [stage.hand_in(send_request()) for _ in range(3)]
    batch = stage.hand_in(send_request(b"x", code=RequestCode.SEND_BATCH_MESSAGE, batch=False))
    oneway = stage.hand_in(send_request(is_oneway=True))
    stage.commit()
    assert [code_of(stage, send) for send in (*sends, batch)] == [code] * 4
    assert stage.answer_to(oneway) is None


# ---- waiting for the flush ----


def test_a_send_under_sync_is_answered_when_it_is_durable() -> None:
    stage = a_stage(flush="sync")
    send = stage.hand_in(send_request())
    stage.commit()
    assert stage.broker.awaits_flush
    assert stage.answer_to(send) is None
    stage.flush()
    assert code_of(stage, send) == ResponseCode.SUCCESS
    assert not stage.broker.awaits_flush


def test_a_flush_releases_the_sends_before_it_and_none_after_it() -> None:
    stage = a_stage(flush="sync")
    first = stage.hand_in(send_request())
    stage.commit()
    position = stage.state.store.log.end
    second = stage.hand_in(send_request())
    stage.commit()
    stage.act(stage.broker.log_flushed(position))
    assert [code_of(stage, send) for send in (first, second)] == [0, None]


def test_a_message_that_need_not_wait_is_answered_though_others_wait() -> None:
    stage = a_stage(flush="sync")
    waiting = stage.hand_in(send_request())
    hasty = stage.hand_in(send_request(properties={"WAIT": "false"}))
    stage.commit()
    assert [code_of(stage, send) for send in (waiting, hasty)] == [None, 0]


def test_one_way_sends_wait_for_nothing_and_keep_nothing() -> None:
    stage = a_stage(flush="sync")
    send = stage.hand_in(send_request(is_oneway=True))
    stage.commit()
    assert not stage.broker.awaits_flush
    assert stage.answer_to(send) is None
    assert len(stage.records()) == 1


def test_a_flush_that_takes_too_long_is_answered_with_10_and_only_once() -> None:
    stage = a_stage(flush="sync")
    send = stage.hand_in(send_request())
    stage.commit()
    stage.tick(TIMEOUT_MS - 1)
    assert stage.answer_to(send) is None
    stage.tick(1)
    answer = stage.answer_to(send)
    assert answer is not None
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert answer.fields["queueOffset"] == "0"
    stage.flush()
    assert stage.answer_to(send) is answer


def test_consumers_are_woken_before_the_flush() -> None:
    stage = a_stage(flush="sync")
    pull = stage.hand_in(pull_request(suspend_ms=15_000))
    stage.hand_in(send_request())
    stage.commit()
    assert code_of(stage, pull) == ResponseCode.SUCCESS


# ---- waiting for the tables ----


def test_a_send_that_creates_its_topic_is_answered_when_the_topic_is_published() -> None:
    stage = a_stage()
    send = stage.hand_in(send_request(topic="New"))
    stage.commit()
    assert stage.answer_to(send) is None
    stage.publish()
    assert code_of(stage, send) == ResponseCode.SUCCESS


def test_a_send_does_not_wait_for_the_topic_of_another() -> None:
    stage = a_stage()
    creating = stage.hand_in(send_request(topic="New"))
    other = stage.hand_in(send_request(topic="T"), OTHER)
    stage.commit()
    later = stage.hand_in(send_request(topic="T"), OTHER)
    stage.commit()
    assert [code_of(stage, send) for send in (creating, other, later)] == [None, 0, 0]


def test_a_refused_send_that_created_its_topic_does_not_hold_up_the_one_before() -> None:
    stage = a_stage()
    before = stage.hand_in(send_request(topic="T"))
    refused = stage.hand_in(send_request(topic="New", queue_id=99))
    stage.commit()
    assert [code_of(stage, send) for send in (before, refused)] == [0, None]
    stage.publish()
    assert code_of(stage, refused) == ResponseCode.INVALID_PARAMETER


def test_a_new_topic_under_sync_waits_for_both() -> None:
    stage = a_stage(flush="sync")
    send, other = send_request(topic="A"), send_request(topic="B")
    for request in (send, other):
        stage.hand_in(request)
    stage.commit()
    stage.flush()
    assert stage.answer_to(send) is None
    stage.publish()
    assert [code_of(stage, request) for request in (send, other)] == [0, 0]
    third = stage.hand_in(send_request(topic="C"))
    stage.commit()
    stage.publish()
    assert stage.answer_to(third) is None
    stage.flush()
    assert code_of(stage, third) == ResponseCode.SUCCESS


def test_creating_a_topic_is_answered_when_it_is_saved() -> None:
    stage = a_stage()
    request = stage.hand_in(create_request())
    assert stage.answer_to(request) is None
    stage.publish()
    assert code_of(stage, request) == ResponseCode.SUCCESS


def test_a_repeated_creation_waits_until_the_first_one_is_saved() -> None:
    """The first answer may be lost, and power may fail before the table is saved."""
    stage = a_stage()
    first, again = stage.hand_in(create_request()), stage.hand_in(create_request(), OTHER)
    assert [code_of(stage, request) for request in (first, again)] == [None, None]
    stage.publish()
    assert [code_of(stage, request) for request in (first, again)] == [0, 0]
    assert code_of(stage, stage.hand_in(create_request())) == ResponseCode.SUCCESS


def test_a_creation_waits_for_the_same_change_of_another_client() -> None:
    stage = a_stage()
    first, second = stage.hand_in(create_request()), stage.hand_in(create_request())
    reading = stage.hand_in(pull_request())
    assert [code_of(stage, request) for request in (first, second)] == [None, None]
    assert code_of(stage, reading) == ResponseCode.PULL_NOT_FOUND
    stage.publish()
    assert [code_of(stage, request) for request in (first, second)] == [0, 0]


def test_an_older_version_that_is_published_releases_only_what_belongs_to_it() -> None:
    stage = a_stage()
    first = stage.hand_in(create_request("A"))
    version = stage.broker.tables_version
    second = stage.hand_in(create_request("B"))
    stage.act(stage.broker.published(version))
    assert [code_of(stage, request) for request in (first, second)] == [0, None]


def test_every_request_is_answered_when_a_table_cannot_be_saved() -> None:
    stage = a_stage()
    creating = stage.hand_in(create_request())
    sending = stage.hand_in(send_request(topic="Sent"))
    stage.commit()
    stage.tick(TIMEOUT_MS)
    answer = stage.answer_to(creating)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the change is in force, but it could not be saved"
    assert code_of(stage, sending) == ResponseCode.FLUSH_DISK_TIMEOUT
    stage.publish()
    assert stage.answer_to(creating) is answer


def test_a_group_that_cannot_be_saved_is_served_all_the_same() -> None:
    stage = a_stage()
    stage.ask(send_request())
    pull = stage.hand_in(pull_request(consumer_group="New"))
    assert stage.answer_to(pull) is None
    stage.tick(TIMEOUT_MS)
    assert code_of(stage, pull) == ResponseCode.SUCCESS


def test_a_refusal_stays_a_refusal_when_the_wait_is_over() -> None:
    stage = a_stage()
    refused = stage.hand_in(send_request(topic="New", queue_id=99))
    stage.tick(TIMEOUT_MS)
    assert code_of(stage, refused) == ResponseCode.INVALID_PARAMETER


def test_all_waiting_requests_are_answered_at_the_stop() -> None:
    stage = a_stage(flush="sync")
    send = stage.hand_in(send_request())
    pull = stage.hand_in(pull_request(suspend_ms=15_000, queue_id=1))
    creating = stage.hand_in(create_request())
    stage.act(stage.broker.close(stage.now_ms))
    assert [code_of(stage, request) for request in (send, creating)] == [None, None]
    assert code_of(stage, pull) == ResponseCode.PULL_NOT_FOUND
    stage.act(stage.broker.time_out_all())
    assert code_of(stage, send) == ResponseCode.FLUSH_DISK_TIMEOUT
    assert code_of(stage, creating) == ResponseCode.SYSTEM_ERROR


# ---- time ----


def test_a_step_of_a_tick_that_fails_does_not_stop_the_others_and_is_noted_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = a_stage()

    def broken(*_: object) -> None:
        raise CorruptStore("commitlog/0", 5, "torn")

    monkeypatch.setattr(module, "_TICK_STEPS", (broken, *module._TICK_STEPS))
    pull = stage.hand_in(pull_request(suspend_ms=100))
    for _ in range(20):
        stage.tick(100)
    assert code_of(stage, pull) == ResponseCode.PULL_NOT_FOUND
    assert [note.is_warning for note in stage.notes] == [True]
    assert "broken failed: CorruptStore: " in stage.notes[0].text
    stage.tick(10_000)
    assert len(stage.notes) == 2


def test_a_connection_that_ended_gets_no_answers() -> None:
    stage = a_stage()
    pull = stage.hand_in(pull_request(suspend_ms=15_000))
    stage.act(stage.broker.on_disconnect(CLIENT, stage.now_ms))
    stage.ask(send_request(), OTHER)
    assert stage.answer_to(pull) is None


def test_records_that_callbacks_add_are_stored_in_the_same_turn() -> None:
    stage = a_stage()
    half = send_request(properties={"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "U"})
    assert stage.ask(half).code == ResponseCode.SUCCESS
    assert stage.records() == []
    assert not stage.state.write_queue


def test_a_pending_write_asks_the_driver_for_one_commit() -> None:
    stage = a_stage()
    assert not stage.broker.awaits_commit
    for _ in range(3):
        stage.hand_in(send_request())
    assert stage.broker.awaits_commit
    stage.commit()
    assert not stage.broker.awaits_commit
    stage.hand_in(send_request(b""))
    assert not stage.broker.awaits_commit


def test_a_read_that_stores_earlier_sends_leaves_their_replies_to_the_commit() -> None:
    stage = a_stage()
    send = stage.hand_in(send_request())
    stage.hand_in(pull_request())
    assert stage.broker.awaits_commit
    assert stage.answer_to(send) is None
    stage.commit()
    assert code_of(stage, send) == ResponseCode.SUCCESS


def test_a_callback_that_stores_asks_for_a_commit_and_hides_that_from_the_listener() -> None:
    stage = a_stage()
    note = Note("stored")

    def callback(reply: Command | None, now_ms: int) -> list[Output]:
        return [note, *STORE_PENDING]

    assert stage.broker.on_reply(callback, None, stage.now_ms) == [note]
    assert stage.broker.awaits_commit
