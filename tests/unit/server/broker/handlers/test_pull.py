"""Every check of a pull, the answer for each state of a queue, and long polling."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.errors import CorruptStore
from downrange.server.broker import record_scan
from downrange.server.outputs import Peer
from downrange.wire.bodies import ConsumerMember, HeartbeatBody, Subscription
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import ResetOffsetRequest
from downrange.wire.records import BatchItem, decode_records, encode_batch
from tests.unit.server.broker.broker_stage import CLIENT, NOW_MS, Stage, pull_request, send_request

OTHER = Peer(2, "10.0.0.3:1002")
COMMIT = 0x1
SUBSCRIPTION = 0x4
FOUND = ResponseCode.SUCCESS
NOT_FOUND = ResponseCode.PULL_NOT_FOUND
RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED = ResponseCode.PULL_OFFSET_MOVED


def a_stage(**options: Any) -> Stage:
    made = Stage(**options)
    made.state.groups.get_or_create("G", made.state.options, NOW_MS)
    made.create("T")
    return made


@pytest.fixture
def stage() -> Stage:
    return a_stage()


def fill(stage: Stage, *tags: str, queue_id: int = 0, body: bytes = b"x") -> None:
    for number, tag in enumerate(tags):
        stage.ask(
            send_request(
                body + b"%d" % number,
                queue_id=queue_id,
                properties={"TAGS": tag, "UNIQ_KEY": f"U{number}"},
            )
        )


def join(stage: Stage, *, tags: str = "*", version: int = 1, model: str = "CLUSTERING") -> None:
    subscription = Subscription(topic="T", sub_string=tags, sub_version=version)
    member = ConsumerMember(
        group_name="G", message_model=model, subscription_data_set=[subscription]
    )
    body = HeartbeatBody(client_id="c", consumer_data_set=[member]).encode()
    stage.ask(Command(int(RequestCode.HEART_BEAT), body=body))


def code_of(stage: Stage, request: Command) -> int | None:
    answer = stage.answer_to(request)
    return None if answer is None else answer.code


def bodies_of(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


# ---- checks, in their order ----


def test_a_group_that_may_not_be_made_does_not_exist() -> None:
    answer = Stage(is_group_created=False).ask(pull_request(topic="missing"))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (answer.remark or "").startswith("subscription group [G] does not exist, \nSee ")


@pytest.mark.parametrize("group", ["", "a b", "g" * 121])
def test_a_group_with_an_illegal_name_does_not_exist(group: str, stage: Stage) -> None:
    answer = stage.ask(pull_request(consumer_group=group))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_groups_beyond_the_limit_do_not_exist() -> None:
    stage = Stage(groups_max=1)
    assert stage.ask(pull_request()).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_group_that_is_switched_off_is_forbidden(stage: Stage) -> None:
    group = stage.state.groups.get("G")
    assert group is not None
    group.consume_enable = False
    answer = stage.ask(pull_request(topic="missing"))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "subscription group no permission, G"
    assert answer.fields == {"forbiddenType": "2"}


def test_a_topic_that_is_missing_does_not_exist(stage: Stage) -> None:
    answer = stage.ask(pull_request(topic="missing", queue_id=99))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    expected = "topic[missing] not exist, apply first please! \nSee "
    assert (answer.remark or "").startswith(expected)


def test_a_topic_that_may_not_be_read_is_forbidden(stage: Stage) -> None:
    stage.create("WriteOnly", perm=2)
    answer = stage.ask(pull_request(topic="WriteOnly"))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the topic[WriteOnly] pulling message is forbidden"
    assert answer.fields == {"forbiddenType": "3"}


@pytest.mark.parametrize("queue_id", [-1, 4, 2**31 - 1, -(2**31)])
def test_a_queue_that_a_topic_does_not_have_is_refused(queue_id: int, stage: Stage) -> None:
    answer = stage.ask(pull_request(queue_id=queue_id))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark == (
        f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[4] "
        "consumer:[/10.0.0.1:1001]"
    )


def test_a_pull_without_a_subscription_needs_a_group_that_is_known(stage: Stage) -> None:
    answer = stage.ask(pull_request(tags=None))
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert (answer.remark or "").startswith("the consumer's group info not exist\nSee ")


def test_a_group_must_have_subscribed_to_the_topic(stage: Stage) -> None:
    join(stage)
    stage.create("U")
    answer = stage.ask(pull_request(topic="U", tags=None))
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert (answer.remark or "").startswith("the consumer's subscription not exist\nSee ")


def test_a_subscription_that_is_older_than_the_clients_is_refused(stage: Stage) -> None:
    join(stage, version=5)
    assert stage.ask(pull_request(tags=None, sub_version=5)).code == NOT_FOUND
    answer = stage.ask(pull_request(tags=None, sub_version=6))
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert answer.remark == "the consumer's subscription not latest"


def test_a_group_that_may_not_broadcast_is_forbidden_to(stage: Stage) -> None:
    group = stage.state.groups.get("G")
    assert group is not None
    group.consume_broadcast_enable = False
    join(stage, model="BROADCASTING")
    answer = stage.ask(pull_request(tags=None))
    assert (answer.code, answer.fields) == (ResponseCode.NO_PERMISSION, {"forbiddenType": "4"})


def test_a_topic_that_is_forbidden_to_a_group_is_refused(stage: Stage) -> None:
    stage.state.groups.forbid("G", "T", is_forbidden=True, now_ms=NOW_MS)
    join(stage)
    answer = stage.ask(pull_request(tags=None))
    assert (answer.code, answer.fields) == (ResponseCode.NO_PERMISSION, {"forbiddenType": "5"})
    assert answer.remark == "the consumer group[G] is forbidden for topic[T]"
    # Apache does not check a pull that contains its subscription.
    assert stage.ask(pull_request(tags="*")).code == NOT_FOUND


def test_a_pull_that_waits_is_refused_once_its_topic_is_forbidden(stage: Stage) -> None:
    join(stage)
    pull = wait(stage, tags=None)
    stage.state.groups.forbid("G", "T", is_forbidden=True, now_ms=NOW_MS)
    fill(stage, "a")
    assert code_of(stage, pull) == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("tags", "kind"), [("a >", "SQL92"), ("*", "CLASS"), ("||", "TAG"), (" || ", None)]
)
def test_a_filter_that_is_not_understood_is_refused(
    tags: str, kind: str | None, stage: Stage
) -> None:
    answer = stage.ask(pull_request(tags=tags, expression_type=kind))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


# ---- what a queue's state becomes ----


@pytest.mark.parametrize(("offset", "code"), [(0, NOT_FOUND), (1, MOVED), (-1, MOVED)])
def test_an_empty_queue_has_only_the_offset_0(offset: int, code: int, stage: Stage) -> None:
    answer = stage.ask(pull_request(offset))
    assert (answer.code, answer.remark) == (code, "NO_MESSAGE_IN_QUEUE")
    assert answer.fields["nextBeginOffset"] == "0"


@pytest.mark.parametrize(
    ("offset", "code", "status", "following"),
    [
        (0, FOUND, "FOUND", 3),
        (2, FOUND, "FOUND", 3),
        (3, NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (4, MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (2**63 - 1, MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (-1, MOVED, "OFFSET_TOO_SMALL", 0),
        (-(2**63), MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_a_queue_with_messages_answers_every_offset(
    offset: int, code: int, status: str, following: int, stage: Stage
) -> None:
    fill(stage, "a", "b", "c")
    answer = stage.ask(pull_request(offset))
    assert (answer.code, answer.remark) == (code, status)
    assert answer.fields == {
        "nextBeginOffset": str(following),
        "minOffset": "0",
        "maxOffset": "3",
        "suggestWhichBrokerId": "0",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    assert bool(answer.body) == (code == FOUND)


def test_messages_that_are_gone_move_the_offset(stage: Stage) -> None:
    for _ in range(5):
        stage.ask(send_request(bytes(3_000_000)))
    stage.state.store.drop_first_segment()
    answer = stage.ask(pull_request(0))
    assert (answer.code, answer.remark) == (MOVED, "OFFSET_TOO_SMALL")
    following = answer.fields["nextBeginOffset"]
    assert following == answer.fields["minOffset"] != "0"
    assert stage.ask(pull_request(int(following))).code == FOUND


def test_a_message_whose_record_is_gone_is_passed_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(stage, "a", "b")
    monkeypatch.setattr(stage.state.store, "read_range", lambda *_: (0, []))
    answer = stage.ask(pull_request(0))
    assert (answer.code, answer.remark) == (RETRY, "MESSAGE_WAS_REMOVING")
    assert answer.fields["nextBeginOffset"] == "2"


def test_a_filter_takes_its_tags_and_skips_the_rest(stage: Stage) -> None:
    fill(stage, "a", "b", "c", "a")
    answer = stage.ask(pull_request(tags="a || c"))
    assert bodies_of(answer) == [b"x0", b"x2", b"x3"]
    assert answer.fields["nextBeginOffset"] == "4"


def test_a_filter_that_matches_nothing_gets_the_next_offset(stage: Stage) -> None:
    fill(stage, "a", "b")
    answer = stage.ask(pull_request(tags="z"))
    assert (answer.code, answer.remark) == (RETRY, "NO_MATCHED_MESSAGE")
    assert answer.fields["nextBeginOffset"] == "2"


def test_a_filter_looks_through_so_many_messages_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_scan, "TAGS_EXAMINED_MAX", 3)
    monkeypatch.setattr(record_scan, "_STEP_MAX", 2)
    fill(stage, "a", "a", "a", "a", "z")
    first = stage.ask(pull_request(tags="z"))
    assert (first.code, first.fields["nextBeginOffset"]) == (RETRY, "3")
    assert bodies_of(stage.ask(pull_request(3, tags="z"))) == [b"x4"]


def test_the_subscription_of_the_group_filters_a_pull_without_one(stage: Stage) -> None:
    fill(stage, "a", "b")
    join(stage, tags="b")
    assert bodies_of(stage.ask(pull_request(tags=None))) == [b"x1"]


@pytest.mark.parametrize(("asked", "count"), [(1, 1), (0, 1), (-5, 1), (3, 3), (1000, 4)])
@pytest.mark.parametrize("tags", ["*", "a"])
def test_an_answer_holds_as_many_messages_as_asked_and_allowed(
    tags: str, asked: int, count: int
) -> None:
    stage = a_stage(pull_messages_max=4)
    fill(stage, *["a"] * 6)
    answer = stage.ask(pull_request(tags=tags, max_msg_nums=asked))
    assert len(bodies_of(answer)) == count
    assert answer.fields["nextBeginOffset"] == str(count)


@pytest.mark.parametrize("tags", ["*", "a"])
def test_an_answer_is_not_larger_than_allowed_unless_by_its_first_message(tags: str) -> None:
    stage = a_stage(pull_bytes_max=1000)
    fill(stage, "a", "b", "a", "a", body=bytes(300))
    answer = stage.ask(pull_request(tags=tags))
    assert len(answer.body) <= 1000
    following = int(answer.fields["nextBeginOffset"])
    seen = bodies_of(answer)
    while following < 4:
        answer = stage.ask(pull_request(following, tags=tags))
        seen += bodies_of(answer)
        following = int(answer.fields["nextBeginOffset"])
    wanted = [0, 1, 2, 3] if tags == "*" else [0, 2, 3]
    assert seen == [bytes(300) + b"%d" % number for number in wanted]
    fill(stage, "a", body=bytes(5000), queue_id=1)
    assert len(stage.ask(pull_request(queue_id=1)).body) > 5000


# ---- more at a time ----

BULK: dict[str, Any] = {"max_msg_nums": 1000, "max_msg_bytes": 1 << 20}


@pytest.mark.parametrize("tags", ["*", "a"])
def test_a_pull_that_asks_for_more_messages_and_bytes_gets_them(tags: str) -> None:
    stage = a_stage()
    fill(stage, *["a"] * 100, body=bytes(5000))
    answer = stage.ask(pull_request(tags=tags, **BULK))
    assert bodies_of(answer) == [bytes(5000) + b"%d" % number for number in range(100)]
    assert answer.fields["nextBeginOffset"] == "100"
    assert (answer.code, answer.remark) == (FOUND, "FOUND")


@pytest.mark.parametrize(
    ("messages", "size", "count"),
    [
        (1000, None, 4),  # no byte limit in the request
        (1000, 100_000, 4),  # equal to the limit, so not more
        (1000, -1, 4),
        (4, 200_000, 4),
        (-1, 200_000, 1),
        (5, 100_001, 5),
        (1000, 200_000, 8),
    ],
)
@pytest.mark.parametrize("tags", ["*", "a"])
def test_a_pull_that_does_not_ask_for_more_of_both_has_the_usual_limits(
    tags: str, messages: int, size: int | None, count: int
) -> None:
    stage = a_stage(pull_messages_max=4, pull_bytes_max=100_000, bulk_pull_messages_max=8)
    fill(stage, *["a"] * 10)
    answer = stage.ask(pull_request(tags=tags, max_msg_nums=messages, max_msg_bytes=size))
    assert len(bodies_of(answer)) == count
    assert answer.fields["nextBeginOffset"] == str(count)


@pytest.mark.parametrize(
    "options", [{"bulk_pull_messages_max": 32}, {"bulk_pull_bytes_max": 256 * 1024}]
)
def test_larger_answers_can_be_switched_off(options: dict[str, int]) -> None:
    stage = a_stage(**options)
    fill(stage, *["a"] * 40)
    assert len(bodies_of(stage.ask(pull_request(**BULK)))) == 32


@pytest.mark.parametrize("tags", ["*", "a", "a || c"])
def test_large_answers_read_a_queue_like_small_ones(tags: str) -> None:
    stage = a_stage(pull_messages_max=2, pull_bytes_max=700, bulk_pull_bytes_max=3000)
    for number in range(60):  # three queues, so that the log holds them in turns
        stage.ask(
            send_request(
                bytes(number * 7 % 400 + (3000 if number == 30 else 0)) + b"%d" % number,
                queue_id=number % 3,
                properties={"TAGS": "abc"[number // 3 % 3], "UNIQ_KEY": f"U{number}"},
            )
        )

    def read_all(**changes: Any) -> tuple[list[bytes], list[int]]:
        seen: list[bytes] = []
        sizes: list[int] = []
        offset = 0
        while offset < 20:
            answer = stage.ask(pull_request(offset, tags=tags, **changes))
            sizes.append(len(answer.body))
            seen += bodies_of(answer)
            assert offset < int(answer.fields["nextBeginOffset"])
            offset = int(answer.fields["nextBeginOffset"])
        return seen, sizes

    small, small_sizes = read_all()
    large, large_sizes = read_all(**BULK)
    assert small == large
    assert len(large_sizes) < len(small_sizes)
    # Message 30, which has the tag b, is larger than an answer may be: it is returned alone.
    assert [size > 3000 for size in large_sizes].count(True) == (tags == "*")


def test_a_pull_that_waited_may_be_answered_at_length(stage: Stage) -> None:
    pull = wait(stage, **BULK)
    body = encode_batch([BatchItem(0, b"x", b"")] * 100)
    stage.ask(send_request(body, code=RequestCode.SEND_BATCH_MESSAGE))
    answer = stage.answer_to(pull)
    assert answer is not None
    assert len(bodies_of(answer)) == 100


def test_statistics_count_what_was_pulled(stage: Stage) -> None:
    fill(stage, "a", "b")
    stage.ask(pull_request())
    assert stage.state.statistics.totals(NOW_MS).messages_pulled == 2


def test_statistics_count_pulls_and_messages_by_group(stage: Stage) -> None:
    fill(stage, "a", "b")
    stage.ask(pull_request(max_msg_nums=1))
    stage.ask(pull_request(consumer_group="H"))
    stage.ask(pull_request(2))
    wait(stage, 2)
    statistics = stage.state.statistics
    assert (statistics.pulls_found, statistics.pulls_missed) == (2, 2)
    assert statistics.next_offset("G", "T", 0) == 1
    assert statistics.next_offset("H", "T", 0) == 2
    stage.tick(10_000)
    assert statistics.consumed_rate("G", "T") == 0.1
    assert statistics.consumed_rate("H", "T") == 0.2


# ---- after a reset ----


def test_the_first_pull_after_a_reset_gets_the_new_offset(stage: Stage) -> None:
    fill(stage, *"abcd")
    stage.state.offsets.reset("G", "T", 0, 1)
    flags = COMMIT | SUBSCRIPTION
    assert stage.ask(pull_request(4, consumer_group="H")).code == NOT_FOUND
    answer = stage.ask(pull_request(4, sys_flag=flags, commit_offset=3))
    assert (answer.code, answer.remark) == (MOVED, "OFFSET_RESET")
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    assert [answer.fields[name] for name in names] == ["1", "0", "4"]
    assert stage.state.offsets.get("G", "T", 0) == 1  # what the pull committed is outdated
    answer = stage.ask(pull_request(1, sys_flag=flags, commit_offset=2))
    assert (answer.code, len(bodies_of(answer))) == (FOUND, 3)
    assert stage.state.offsets.get("G", "T", 0) == 2


def reset(stage: Stage, *, queue_id: int = -1) -> None:
    header = ResetOffsetRequest(topic="T", group="G", timestamp=0, is_force=True, queue_id=queue_id)
    code = int(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert stage.ask(request_command(header, code=code)).code == ResponseCode.SUCCESS


def test_pulls_that_wait_are_repeated_after_a_reset_and_do_not_learn_of_it(stage: Stage) -> None:
    """The first one may be that of a member that has lost the queue: it drops the answer."""
    fill(stage, "a", "b")
    before, owner, other = wait(stage, 2), wait(stage, 2), wait(stage, 2, consumer_group="H")
    elsewhere = wait(stage, queue_id=1)
    reset(stage, queue_id=0)
    for pull in (before, owner):
        answer = stage.answer_to(pull)
        assert answer is not None
        assert (answer.code, answer.remark) == (RETRY, "NO_MATCHED_MESSAGE")
        assert answer.fields["nextBeginOffset"] == "2"
    stage.tick(6_000)
    assert stage.answer_to(other) is stage.answer_to(elsewhere) is None
    answer = stage.ask(pull_request(2, suspend_ms=15_000))
    assert (answer.remark, answer.fields["nextBeginOffset"]) == ("OFFSET_RESET", "0")
    assert stage.ask(pull_request(0)).code == FOUND


def test_a_pull_may_bring_an_offset_along(stage: Stage) -> None:
    stage.ask(pull_request(sys_flag=COMMIT | SUBSCRIPTION, commit_offset=7))
    assert stage.state.offsets.get("G", "T", 0) == 7
    stage.ask(pull_request(commit_offset=9))
    assert stage.state.offsets.get("G", "T", 0) == 7


# ---- waiting ----


def wait(stage: Stage, offset: int = 0, **changes: Any) -> Command:
    settings: dict[str, Any] = {"suspend_ms": 15_000} | changes
    request = stage.hand_in(pull_request(offset, **settings))
    assert stage.answer_to(request) is None
    return request


def test_a_pull_that_waits_is_answered_by_the_next_message(stage: Stage) -> None:
    pull = wait(stage)
    fill(stage, "a")
    answer = stage.answer_to(pull)
    assert answer is not None
    assert bodies_of(answer) == [b"x0"]
    assert answer.fields["nextBeginOffset"] == "1"
    assert len(stage.state.held_pulls) == 0


def test_a_held_pull_is_answered_before_the_send_that_wakes_it(stage: Stage) -> None:
    pull = wait(stage)
    send = stage.hand_in(send_request())
    stage.act(stage.broker.commit_first(stage.now_ms))
    answer = stage.answer_to(pull)
    assert answer is not None
    assert answer.code == FOUND
    assert stage.answer_to(send) is None
    stage.act(stage.broker.take_ready())
    assert stage.answer_to(send) is not None


def test_one_message_answers_all_held_pulls_of_its_queue(stage: Stage) -> None:
    pulls = [wait(stage) for _ in range(3)]
    elsewhere = wait(stage, queue_id=1)
    fill(stage, "a")
    assert [code_of(stage, pull) for pull in pulls] == [FOUND] * 3
    assert stage.answer_to(elsewhere) is None


def test_a_message_that_no_filter_matches_answers_no_pull_for_some_seconds(stage: Stage) -> None:
    stage.tick()
    pull = wait(stage, tags="b")
    fill(stage, "a")
    stage.tick(4_999)
    assert stage.answer_to(pull) is None
    stage.tick(1)
    answer = stage.answer_to(pull)
    assert answer is not None
    assert (answer.code, answer.fields["nextBeginOffset"]) == (RETRY, "1")


def test_the_last_message_of_a_large_batch_wakes_its_filter(stage: Stage) -> None:
    pull = wait(stage, tags="last")
    items = [BatchItem(0, b"x", b"TAGS\x01other\x02")] * 2_000
    body = encode_batch([*items, BatchItem(0, b"y", b"TAGS\x01last\x02")])
    stage.ask(send_request(body, code=RequestCode.SEND_BATCH_MESSAGE))
    answer = stage.answer_to(pull)
    assert answer is not None
    assert bodies_of(answer) == [b"y"]


def test_a_held_pull_ends_when_its_subscription_changes(stage: Stage) -> None:
    """It would go on with the filter before, and skip messages that the new one lets pass."""
    join(stage, tags="a")
    pull = wait(stage, tags=None, sub_version=1, queue_id=1)
    own = wait(stage, tags="a", queue_id=1)
    for tags, version in (("a", 2), ("b", 1)):  # the same filter, and an older heartbeat
        join(stage, tags=tags, version=version)
    assert stage.answer_to(pull) is None
    join(stage, tags="b", version=3)
    answer = stage.answer_to(pull)
    assert answer is not None
    assert (answer.code, answer.fields["nextBeginOffset"]) == (RETRY, "0")
    assert stage.answer_to(own) is None
    again = wait(stage, tags=None, sub_version=3, queue_id=1)
    fill(stage, "a", "b", queue_id=1)
    answer = stage.answer_to(again)
    assert answer is not None
    assert bodies_of(answer) == [b"x1"]


def test_a_pull_is_answered_with_what_there_is_when_its_time_is_over(stage: Stage) -> None:
    stage.tick()
    pull = wait(stage, suspend_ms=500)
    stage.tick(499)
    assert stage.answer_to(pull) is None
    stage.tick(1)
    assert code_of(stage, pull) == NOT_FOUND


def test_the_comparison_every_few_seconds_keeps_pulls_that_missed_nothing(stage: Stage) -> None:
    pull = wait(stage)
    stage.tick(5_000)
    stage.tick(5_000)
    assert stage.answer_to(pull) is None
    assert len(stage.state.held_pulls) == 1


def test_a_pull_that_waits_stores_its_offset_once(stage: Stage) -> None:
    wait(stage, sys_flag=COMMIT | 0x2 | SUBSCRIPTION, commit_offset=7)
    stage.state.offsets.commit("G", "T", 0, 9)
    fill(stage, "a")
    assert stage.state.offsets.get("G", "T", 0) == 9


@pytest.mark.parametrize("changes", [{"suspend_ms": 0}, {"suspend_ms": 5, "sys_flag": 4}])
def test_a_pull_that_may_not_wait_is_answered_at_once(
    changes: dict[str, Any], stage: Stage
) -> None:
    assert code_of(stage, stage.hand_in(pull_request(**changes))) == NOT_FOUND


def test_a_pull_whose_offset_moved_does_not_wait(stage: Stage) -> None:
    assert code_of(stage, stage.hand_in(pull_request(5, suspend_ms=15_000))) == MOVED


def test_a_broker_without_read_permission_refuses_pulls() -> None:
    stage = a_stage(permission=2)
    fill(stage, "a")
    for topic in ("T", "missing"):
        answer = stage.ask(pull_request(topic=topic))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[10.0.0.2] pulling message is forbidden"
        assert answer.fields == {"forbiddenType": "1"}


def test_a_broker_without_write_permission_answers_pulls(stage: Stage) -> None:
    fill(stage, "a")
    stage.state.change_settings({"brokerPermission": "4"}, NOW_MS)
    assert stage.ask(pull_request()).code == FOUND


def test_a_held_pull_is_refused_when_the_permission_is_gone(stage: Stage) -> None:
    pull = wait(stage)
    stage.state.change_settings({"brokerPermission": "2"}, NOW_MS)
    fill(stage, "a")
    assert code_of(stage, pull) == ResponseCode.NO_PERMISSION


def test_a_one_way_pull_does_not_wait(stage: Stage) -> None:
    stage.hand_in(pull_request(suspend_ms=15_000, is_oneway=True))
    assert len(stage.state.held_pulls) == 0


def test_pulls_beyond_the_limit_are_answered_at_once() -> None:
    stage = a_stage(parked_pulls_max=1)
    wait(stage)
    assert code_of(stage, stage.hand_in(pull_request(suspend_ms=15_000))) == NOT_FOUND


def test_a_changed_limit_holds_at_once() -> None:
    stage = a_stage(parked_pulls_max=0)
    stage.state.change_options(a_stage(parked_pulls_max=1).state.options)
    wait(stage)


def test_a_pull_that_waits_keeps_little(stage: Stage) -> None:
    pull = pull_request(suspend_ms=15_000)
    pull.body = bytes(1_000_000)
    stage.hand_in(pull)
    assert (pull.fields, pull.body) == ({}, b"")


def test_a_topic_that_is_deleted_answers_its_held_pulls(stage: Stage) -> None:
    stage.tick()
    pull = wait(stage)
    stage.ask(Command(int(RequestCode.DELETE_TOPIC_IN_BROKER), {"topic": "T"}))
    stage.tick(50)
    assert code_of(stage, pull) == ResponseCode.TOPIC_NOT_EXIST


def test_a_group_that_was_switched_off_meanwhile_is_refused(stage: Stage) -> None:
    pull = wait(stage)
    group = stage.state.groups.get("G")
    assert group is not None
    group.consume_enable = False
    fill(stage, "a")
    assert code_of(stage, pull) == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("error", [CorruptStore("commitlog/0", 5, "torn"), OSError(5, "EIO")])
def test_a_store_that_cannot_be_read_answers_held_pulls(
    error: Exception, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = [wait(stage), wait(stage)]

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(stage.state.store, "read_range", fail)
    send = stage.hand_in(send_request())
    stage.commit()
    for pull in pulls:
        assert code_of(stage, pull) == ResponseCode.SYSTEM_ERROR
    assert code_of(stage, send) == ResponseCode.SUCCESS


def test_the_stop_of_the_broker_answers_all_held_pulls(stage: Stage) -> None:
    pulls = [wait(stage), wait(stage, queue_id=1)]
    stage.act(stage.broker.close(stage.now_ms))
    assert [code_of(stage, pull) for pull in pulls] == [NOT_FOUND] * 2


def test_a_connection_that_ends_is_answered_no_more(stage: Stage) -> None:
    pull = wait(stage)
    stage.act(stage.broker.on_disconnect(CLIENT, stage.now_ms))
    stage.ask(send_request(), OTHER)
    assert stage.answer_to(pull) is None
