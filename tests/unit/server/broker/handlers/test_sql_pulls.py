"""Pulls with SQL92 filters: whose expression counts, what is examined, and long polling."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from downrange.errors import CorruptStore
from downrange.server.broker.message_filter import EVERYTHING, MessageFilter, filter_of_expression
from downrange.server.broker.record_scan import COMPARED_MAX, EXAMINED_MAX, EXAMINED_MIN
from downrange.server.outputs import Peer
from downrange.wire.bodies import ConsumerMember, HeartbeatBody, Subscription
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import ResetOffsetRequest
from downrange.wire.records import BatchItem, decode_records, encode_batch
from tests.unit.server.broker.broker_stage import NOW_MS, Stage, pull_request, send_request

FOUND = ResponseCode.SUCCESS
NOT_FOUND = ResponseCode.PULL_NOT_FOUND
RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY
OTHER = Peer(2, "10.0.0.3:1002")


def a_stage(**options: Any) -> Stage:
    made = Stage(**options)
    made.state.groups.get_or_create("G", made.state.options, NOW_MS)
    made.create("T")
    return made


@pytest.fixture
def stage() -> Stage:
    return a_stage()


def fill(stage: Stage, *amounts: int, topic: str = "T", body: bytes = b"x") -> None:
    for amount in amounts:
        properties = {"amount": str(amount), "UNIQ_KEY": f"U{amount}"}
        stage.ask(send_request(body + b"%d" % amount, topic, properties=properties))


def fill_many(stage: Stage, count: int, amount: int = 1) -> None:
    for start in range(0, count, 1_000):
        items = [BatchItem(0, b"x", b"amount\x01%d\x02" % amount)] * min(1_000, count - start)
        stage.ask(send_request(encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE))


def sql_pull(expression: str, offset: int = 0, **changes: Any) -> Command:
    return pull_request(offset, tags=expression, expression_type="SQL92", **changes)


def bodies_of(answer: Command | None) -> list[bytes]:
    assert answer is not None
    return [record.body for record in decode_records(answer.body)]


def subscribe(
    stage: Stage,
    expression: str,
    *,
    version: int = 1,
    kind: str = "SQL92",
    topic: str = "T",
    peer: Peer = OTHER,
) -> None:
    subscription = Subscription(
        topic=topic, sub_string=expression, sub_version=version, expression_type=kind
    )
    member = ConsumerMember(group_name="G", subscription_data_set=[subscription])
    body = HeartbeatBody(client_id="c", consumer_data_set=[member]).encode()
    stage.ask(Command(int(RequestCode.HEART_BEAT), body=body), peer)


# ---- the expression of the request ----


def test_a_pull_returns_the_messages_that_match(stage: Stage) -> None:
    fill(stage, 50, 150, 250, 20)
    answer = stage.ask(sql_pull("amount > 100"))
    assert (answer.code, answer.remark) == (FOUND, "FOUND")
    assert bodies_of(answer) == [b"x150", b"x250"]
    assert answer.fields["nextBeginOffset"] == "4"


def test_a_pull_without_a_match_gets_the_next_offset(stage: Stage) -> None:
    fill(stage, 50, 150)
    answer = stage.ask(sql_pull("amount > 1000"))
    assert (answer.code, answer.remark) == (RETRY, "NO_MATCHED_MESSAGE")
    assert answer.fields["nextBeginOffset"] == "2"


def test_an_answer_ends_at_its_number_of_messages_and_bytes(stage: Stage) -> None:
    fill(stage, *range(10))
    answer = stage.ask(sql_pull("amount > 3", max_msg_nums=2))
    assert bodies_of(answer) == [b"x4", b"x5"]
    assert answer.fields["nextBeginOffset"] == "6"
    small = a_stage(pull_bytes_max=1_000)
    fill(small, *range(10), body=bytes(300))
    answer = small.ask(sql_pull("amount > 3"))
    assert len(bodies_of(answer)) == 2
    assert answer.fields["nextBeginOffset"] == "6"
    large = a_stage(pull_bytes_max=10)
    fill(large, 1, 2)
    assert bodies_of(large.ask(sql_pull("amount > 0"))) == [b"x1"]


def test_a_property_that_cannot_be_compared_does_not_match(stage: Stage) -> None:
    stage.ask(send_request(b"a", properties={"amount": "much", "UNIQ_KEY": "U"}))
    stage.ask(send_request(b"b"))
    fill(stage, 5)
    assert bodies_of(stage.ask(sql_pull("amount = 5"))) == [b"x5"]
    assert stage.ask(sql_pull("amount <> 5")).code == RETRY


def test_tags_and_other_properties_of_the_protocol_are_properties(stage: Stage) -> None:
    stage.ask(send_request(b"a", properties={"TAGS": "new", "KEYS": "k", "UNIQ_KEY": "U"}))
    answer = stage.ask(sql_pull("TAGS = 'new' AND KEYS = 'k' AND UNIQ_KEY IS NOT NULL"))
    assert bodies_of(answer) == [b"a"]


def test_a_long_topic_has_properties_too(stage: Stage) -> None:
    topic = "T" * 200  # a record of the second version
    stage.create(topic)
    fill(stage, 5, 6, topic=topic)
    answer = stage.ask(pull_request(0, topic, tags="amount = 6", expression_type="SQL92"))
    assert bodies_of(answer) == [b"x6"]


@pytest.mark.parametrize(
    ("expression", "kind"), [("a >", "SQL92"), ("", "SQL92"), ("a = 1", "CLASS"), (None, "SQL92")]
)
def test_an_expression_that_cannot_be_read_is_refused(
    stage: Stage, expression: str | None, kind: str
) -> None:
    answer = stage.ask(pull_request(tags="", subscription=expression, expression_type=kind))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark == "parse the consumer's subscription failed"


@pytest.mark.parametrize("kind", ["SQL92", "CLASS"])
def test_filters_by_properties_can_be_switched_off(kind: str) -> None:
    stage = a_stage(is_sql_enabled=False)
    answer = stage.ask(pull_request(tags="a = 1", expression_type=kind))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {kind}",
    )


# ---- limits ----


def test_one_pull_examines_a_limited_number_of_messages(stage: Stage) -> None:
    fill_many(stage, EXAMINED_MAX + 500)
    fill(stage, 7)
    answer = stage.ask(sql_pull("amount = 7"))
    assert answer.code == RETRY
    assert answer.fields["nextBeginOffset"] == str(EXAMINED_MAX)
    answer = stage.ask(sql_pull("amount = 7", EXAMINED_MAX))
    assert bodies_of(answer) == [b"x7"]


def test_an_expensive_expression_examines_fewer_messages(stage: Stage) -> None:
    fill_many(stage, 1_000)
    hundred = " OR ".join(["amount = 7"] * 100)
    answer = stage.ask(sql_pull(hundred))
    assert answer.fields["nextBeginOffset"] == str(COMPARED_MAX // 100)
    thousand = " OR ".join(["amount = 7"] * 1_000)
    answer = stage.ask(sql_pull(thousand))
    assert answer.fields["nextBeginOffset"] == str(EXAMINED_MIN)


def test_one_pull_reads_a_limited_number_of_bytes(stage: Stage) -> None:
    for _ in range(7):
        fill(stage, 1, body=bytes(900_000))
    answer = stage.ask(sql_pull("amount = 7"))
    assert answer.code == RETRY
    assert answer.fields["nextBeginOffset"] == "5"  # 4 MiB are exceeded by the fifth


def test_a_message_whose_record_is_gone_is_passed_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stage, 1, 2, 7)
    monkeypatch.setattr(stage.state.store, "read_range", lambda *_: (0, []))
    answer = stage.ask(sql_pull("amount = 7"))
    assert (answer.code, answer.remark) == (RETRY, "MESSAGE_WAS_REMOVING")
    assert answer.fields["nextBeginOffset"] == "3"


def test_messages_before_one_that_is_gone_are_returned(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stage, *range(1, 9))
    read = stage.state.store.read_range
    calls: list[int] = []

    def read_once(units: Any, bytes_max: int) -> Any:
        calls.append(bytes_max)
        return read(units, bytes_max) if len(calls) == 1 else (0, [])

    monkeypatch.setattr(stage.state.store, "read_range", read_once)
    answer = stage.ask(sql_pull("amount = 2 OR amount = 8", max_msg_nums=4))
    assert bodies_of(answer) == [b"x2"]
    assert answer.fields["nextBeginOffset"] == "4"


# ---- the expression of the subscription ----


def test_a_pull_without_an_expression_uses_that_of_the_heartbeat(stage: Stage) -> None:
    fill(stage, 50, 150)
    subscribe(stage, "amount > 100")
    answer = stage.ask(pull_request(tags=None, sub_version=1))
    assert bodies_of(answer) == [b"x150"]


@pytest.mark.parametrize(("expression", "kind"), [("a >", "SQL92"), ("a = 1", "CLASS")])
def test_a_wrong_expression_of_a_heartbeat_does_not_exist(
    stage: Stage, expression: str, kind: str
) -> None:
    subscribe(stage, expression, kind=kind)
    answer = stage.ask(pull_request(tags=None, sub_version=1))
    assert (answer.code, answer.remark) == (
        ResponseCode.FILTER_DATA_NOT_EXIST,
        "The broker's consumer filter data is not exist!Your expression may be wrong!",
    )


def test_an_expression_that_is_older_than_the_subscription_is_refused(stage: Stage) -> None:
    subscribe(stage, "amount > 100", version=1)
    known = stage.state.filters.get("T", "G")
    assert known is not None
    subscribe(stage, "amount > 200", version=3)
    known = stage.state.filters.get("T", "G")
    assert known is not None
    known.client_version = 2
    answer = stage.ask(pull_request(tags=None, sub_version=3))
    assert (answer.code, answer.remark) == (
        ResponseCode.FILTER_DATA_NOT_LATEST,
        "the consumer's consumer filter data not latest",
    )


def test_a_subscription_is_refused_when_filters_are_switched_off() -> None:
    stage = a_stage(is_sql_enabled=False)
    subscribe(stage, "amount > 100")
    answer = stage.ask(pull_request(tags=None, sub_version=1))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "filter message by SQL92" in (answer.remark or "")


def test_a_group_that_left_comes_back_with_the_same_expression(stage: Stage) -> None:
    subscribe(stage, "amount > 100")
    stage.act(stage.broker.on_disconnect(OTHER, stage.now_ms))
    known = stage.state.filters.get("T", "G")
    assert known is not None
    assert known.dead_time == stage.now_ms
    subscribe(stage, "amount > 100", version=2)
    assert (known.dead_time, known.client_version) == (0, 2)


def test_an_expression_is_removed_a_day_after_its_group_left(stage: Stage) -> None:
    subscribe(stage, "amount > 100")
    leave = Command(int(RequestCode.UNREGISTER_CLIENT), {"clientID": "c", "consumerGroup": "G"})
    stage.ask(leave, OTHER)
    stage.tick(24 * 3600 * 1000 - 20_000)
    assert stage.state.filters.get("T", "G") is not None
    stage.tick(20_000)
    assert stage.state.filters.get("T", "G") is None


# ---- long polling ----


def test_a_held_pull_is_answered_by_a_message_that_matches(stage: Stage) -> None:
    pull = stage.hand_in(sql_pull("amount > 100", suspend_ms=30_000))
    fill(stage, 50)
    assert stage.answer_to(pull) is None
    fill(stage, 150)
    answer = stage.answer_to(pull)
    assert bodies_of(answer) == [b"x150"]
    assert answer is not None
    assert answer.fields["nextBeginOffset"] == "2"


def test_messages_are_compared_with_a_held_pull_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.tick()
    pull = stage.hand_in(sql_pull("amount > 100", suspend_ms=30_000))
    fill(stage, *range(20))
    reads: list[object] = []
    monkeypatch.setattr(stage.state.store, "read_range", reads.append)
    stage.tick(5_000)  # finds that the queue grew
    answer = stage.answer_to(pull)
    assert answer is not None
    assert (answer.code, answer.remark) == (RETRY, "NO_MATCHED_MESSAGE")
    assert answer.fields["nextBeginOffset"] == "20"
    assert reads == []


def test_the_last_message_of_a_large_batch_wakes_its_filter(stage: Stage) -> None:
    pull = stage.hand_in(sql_pull("amount = 7", suspend_ms=30_000))
    items = [BatchItem(0, b"x", b"amount\x011\x02")] * 1_900
    body = encode_batch([*items, BatchItem(0, b"y", b"amount\x017\x02")])
    stage.ask(send_request(body, code=RequestCode.SEND_BATCH_MESSAGE))
    assert bodies_of(stage.answer_to(pull)) == [b"y"]


def test_a_pull_goes_on_at_once_behind_a_batch_that_is_too_large_to_be_compared(
    stage: Stage,
) -> None:
    pull = stage.hand_in(sql_pull("amount = 7", suspend_ms=30_000))
    items = [BatchItem(0, b"x", b"amount\x011\x02")] * (2 * EXAMINED_MAX + 1)
    stage.ask(send_request(encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE))
    answer = stage.answer_to(pull)
    assert answer is not None
    assert (answer.code, answer.fields["nextBeginOffset"]) == (RETRY, str(2 * EXAMINED_MAX))


def test_members_of_a_group_that_wait_for_one_queue_are_compared_together(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = [stage.hand_in(sql_pull("amount = 7", suspend_ms=30_000)) for _ in range(3)]
    late = stage.hand_in(sql_pull("amount = 8", suspend_ms=30_000))
    reads: list[int] = []
    read = stage.state.store.read_range

    def counted(units: Any, bytes_max: int) -> Any:
        reads.append(bytes_max)
        return read(units, bytes_max)

    monkeypatch.setattr(stage.state.store, "read_range", counted)
    fill(stage, 1)
    assert len(reads) == 2  # once for each expression
    monkeypatch.undo()
    fill(stage, 7)
    assert [bodies_of(stage.answer_to(pull)) for pull in pulls] == [[b"x7"]] * 3
    assert stage.answer_to(late) is None


def test_pulls_with_other_filters_wait_side_by_side(stage: Stage) -> None:
    large = stage.hand_in(sql_pull("amount > 100", suspend_ms=30_000))
    small = stage.hand_in(sql_pull("amount < 100", suspend_ms=30_000))
    tagged = stage.hand_in(pull_request(tags="a", suspend_ms=30_000))
    everything = stage.hand_in(pull_request(suspend_ms=30_000))
    fill(stage, 50)
    answers = [stage.answer_to(pull) for pull in (large, small, tagged, everything)]
    assert [answer is not None for answer in answers] == [False, True, False, True]
    fill(stage, 150)
    assert bodies_of(stage.answer_to(large)) == [b"x150"]


@pytest.mark.parametrize("error", [CorruptStore("commitlog/0", 5, "torn"), OSError(5, "EIO")])
def test_messages_that_cannot_be_compared_answer_all_held_pulls(
    error: Exception, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = [stage.hand_in(sql_pull(f"amount > {bound}", suspend_ms=9_000)) for bound in range(2)]
    pulls.append(stage.hand_in(pull_request(suspend_ms=9_000)))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(stage.state.store, "read_range", fail)
    fill(stage, 5)
    for pull in pulls:
        answer = stage.answer_to(pull)
        assert answer is not None
        assert answer.code == ResponseCode.SYSTEM_ERROR


def test_comparisons_with_held_pulls_are_limited(stage: Stage) -> None:
    """Pulls beyond the limit are compared every few seconds, some in each tick."""
    stage.tick()
    pulls = [
        stage.hand_in(sql_pull(" OR ".join([f"amount = {number}"] * 1_000), suspend_ms=60_000))
        for number in range(60)
    ]
    fill_many(stage, 1, amount=59)
    assert stage.answer_to(pulls[59]) is None  # 20 of them were compared
    assert stage.answer_to(pulls[0]) is None
    stage.tick(5_000)
    answered = [pull for pull in pulls if stage.answer_to(pull) is not None]
    assert len(answered) == 16
    for _ in range(3):
        stage.tick(100)
    codes = [answer.code for pull in pulls if (answer := stage.answer_to(pull)) is not None]
    assert (len(codes), codes[59]) == (60, FOUND)
    assert set(codes[:59]) == {RETRY}


def test_searches_for_held_pulls_are_limited_in_each_tick(stage: Stage) -> None:
    stage.tick()
    filters = [" OR ".join([f"amount = {number}"] * 1_000) for number in range(100, 110)]
    pulls = [stage.hand_in(sql_pull(text, suspend_ms=60_000)) for text in filters]
    for _ in range(4):
        fill_many(stage, 10)  # each time, two pulls are compared
    counts = [0]
    stage.tick(5_000)
    for _ in pulls:
        counts.append(sum([stage.answer_to(pull) is not None for pull in pulls]))
        stage.tick(100)
    answered = [after - before for before, after in pairwise(counts)]
    assert answered == [3, *[1] * 7, 0, 0]  # each of 8 pulls has 32 messages to examine


def test_a_pull_whose_time_is_over_goes_on_by_itself_if_there_is_too_much_to_search(
    stage: Stage,
) -> None:
    stage.tick()
    filters = [" OR ".join([f"amount = {number}"] * 1_000) for number in range(60)]
    pulls = [stage.hand_in(sql_pull(text, suspend_ms=1_000)) for text in filters]
    fill_many(stage, 1, amount=59)
    stage.tick(1_000)
    answers = [answer for pull in pulls if (answer := stage.answer_to(pull)) is not None]
    assert [answer.code for answer in answers] == [RETRY] * 60
    offsets = [answer.fields["nextBeginOffset"] for answer in answers]
    assert offsets == ["1"] * 40 + ["0"] * 20  # 20 were compared at once, and 20 now
    assert bodies_of(stage.ask(sql_pull(filters[59]))) == [b"x"]


def test_a_held_pull_whose_time_is_over_gets_the_offset_behind_the_compared_messages(
    stage: Stage,
) -> None:
    pull = stage.hand_in(sql_pull("amount > 100", suspend_ms=1_000))
    fill(stage, 1, 2)
    stage.tick(1_000)
    answer = stage.answer_to(pull)
    assert answer is not None
    assert answer.fields["nextBeginOffset"] == "2"
    pull = stage.hand_in(sql_pull("amount > 100", 2, suspend_ms=1_000))
    stage.tick(1_000)
    answer = stage.answer_to(pull)
    assert answer is not None
    assert (answer.code, answer.fields["nextBeginOffset"]) == (NOT_FOUND, "2")


def test_a_held_pull_of_a_group_that_is_reset_is_repeated_behind_the_compared_messages(
    stage: Stage,
) -> None:
    pull = stage.hand_in(sql_pull("amount > 100", suspend_ms=1_000))
    fill(stage, 1, 2)
    code = int(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    header = ResetOffsetRequest(topic="T", group="G", timestamp=0, is_force=True)
    stage.ask(request_command(header, code=code))
    answer = stage.answer_to(pull)
    assert answer is not None
    assert (answer.code, answer.fields["nextBeginOffset"]) == (RETRY, "2")


# ---- filters as values ----


def test_a_filter_reads_properties_only_if_it_needs_them(stage: Stage) -> None:
    def unread() -> dict[str, str]:
        raise AssertionError

    assert EVERYTHING.is_all
    assert EVERYTHING.matches(5, unread)
    by_tags = MessageFilter(frozenset({5}))
    assert (by_tags.is_all, by_tags.matches(5, unread), by_tags.matches(6, unread)) == (
        *(False, True, False),
    )
    by_sql = filter_of_expression(stage.state, "a = 1", "SQL92")
    assert isinstance(by_sql, MessageFilter)
    assert not by_sql.is_all
    assert by_sql.matches(0, lambda: {"a": "1"})
    assert not by_sql.matches(0, dict)
