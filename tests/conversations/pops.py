"""Pops: answers, refusals, filters, long polling, peeks and notifications (5.x only)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.records import decode_records
from tests.conversations.popper import (
    HOLD_MS,
    NO_MESSAGE_TEXT,
    REFUSED,
    Popper,
    assert_empty,
    command,
    create_group,
    new_popper,
    records_of,
    send,
)
from tests.conversations.scene import Scene, bare_request, succeed
from tests.conversations.sends import pull
from tests.support.pops import pop_fields

if TYPE_CHECKING:
    from downrange.wire.command import Command


def a_pop_answers_with_the_stored_records_and_where_they_are(scene: Scene) -> None:
    popper = new_popper(scene, count=3)
    stored = pull(scene, popper.broker, popper.topic, count=3)
    reply = succeed(popper.pop(count=2, invisible_ms=50_000))
    assert decode_records(reply.body) == stored[:2]
    assert reply.remark == "FOUND"
    fields = dict(reply.fields)
    assert int(fields.pop("popTime")) >= scene.facts.now_ms
    assert int(fields.pop("reviveQid")) in range(8)
    assert fields == {
        "invisibleTime": "50000",
        "restNum": "1",
        "startOffsetInfo": "0 0 0",
        "msgOffsetInfo": "0 0 0,1",
    }
    reply = popper.pop()
    assert decode_records(reply.body) == stored[2:]
    assert (reply.fields["startOffsetInfo"], reply.fields["restNum"]) == ("0 0 2", "0")
    assert_empty(popper.pop())
    # A new group starts at the first message, in both modes, while that message is in memory.
    for mode in ("0", "1"):
        other = Popper(scene, popper.broker, popper.topic, scene.name(f"new{mode}"))
        assert decode_records(succeed(other.pop(initMode=mode)).body) == stored


def a_pop_moves_the_offset_of_its_group(scene: Scene) -> None:
    """The offset moves with the pop, not with the acknowledgement, a moment after the answer."""
    popper = new_popper(scene, count=3, properties={"TAGS": "red"})
    pull(scene, popper.broker, popper.topic, count=3)
    succeed(popper.pop(count=2))
    popper.wait_committed(2)
    # A message that the filter holds back counts as well.
    assert_empty(popper.pop(exp="blue", expType="TAG"))
    popper.wait_committed(3)
    # An offset that a client commits is where the next pop starts.
    fields = {"consumerGroup": popper.group, "topic": popper.topic, "queueId": "0"}
    fields |= {"commitOffset": "1"}
    succeed(popper.broker.ask(command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)))
    assert succeed(popper.pop()).fields["msgOffsetInfo"] == "0 0 1,2"


def a_pop_starts_at_an_offset_that_was_reset(scene: Scene) -> None:
    popper = new_popper(scene, count=5)
    pull(scene, popper.broker, popper.topic, count=5)
    assert len(records_of(popper.pop())) == 5

    def reset(offset: int) -> None:
        fields = {"topic": popper.topic, "group": popper.group, "timestamp": "-1"}
        fields |= {"isForce": "true", "offset": str(offset), "queueId": "0"}
        request = command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        assert f"}}:{offset}}}".encode() in succeed(popper.broker.ask(request)).body
        assert popper.committed() == offset

    reset(2)
    assert succeed(popper.pop()).fields["msgOffsetInfo"] == "0 0 2,3,4"
    assert_empty(popper.pop())
    # A reset ends the block of an orderly pop.
    reset(1)
    given: dict[str, object] = {"order": "true", "count": 2}
    assert succeed(popper.pop(**given, attemptId="1")).fields["msgOffsetInfo"] == "0 0 1,2"
    reset(4)
    reply = succeed(popper.pop(**given, attemptId="2"))
    assert (reply.fields["msgOffsetInfo"], reply.fields["orderCountInfo"]) == ("0 0 4", "0 0 0")


def a_pop_of_all_queues_names_every_queue(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "wide", read_queue_nums=4, write_queue_nums=4)
    popper = Popper(scene, broker, topic, scene.name("group"))
    for queue_id in range(4):
        send(popper, 3, queue_id=queue_id)
        pull(scene, broker, topic, count=3, queue_id=queue_id)
    seen: list[tuple[str, int, int]] = []
    for count, rest in ((4, "8"), (32, "0")):
        reply = succeed(popper.pop(queue_id=-1, count=count))
        found = popper.receipts(reply)
        assert reply.fields["restNum"] == rest
        assert [("0", one.queue_id, one.queue_offset) for one in records_of(reply)] == [*found]
        seen += found
    assert sorted(seen) == [("0", queue_id, offset) for queue_id in range(4) for offset in range(3)]


def refused_pops_say_why(scene: Scene) -> None:
    popper = new_popper(scene, count=1)
    broker, group = popper.broker, popper.group
    written = scene.create_topic(broker, "written", perm=2)
    closed = create_group(scene, broker, "closed", consume_enable=False)
    missing = scene.name("missing")
    cases: list[tuple[ResponseCode, str, Command]] = [
        (
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{missing}] not exist, apply first please!",
            Popper(scene, broker, missing, group).request(),
        ),
        (
            ResponseCode.INVALID_PARAMETER,
            f"queueId[5] is illegal, topic:[{popper.topic}] topicConfig.readQueueNums:[2]",
            popper.request(queue_id=5),
        ),
        (
            ResponseCode.INVALID_PARAMETER,
            "the broker[127.0.0.1] pop message's num is greater than 32",
            popper.request(count=33),
        ),
        (
            ResponseCode.NO_PERMISSION,
            f"the topic[{written}] peeking message is forbidden",
            Popper(scene, broker, written, group).request(),
        ),
        (
            ResponseCode.NO_PERMISSION,
            f"subscription group no permission, {closed}",
            Popper(scene, broker, popper.topic, closed).request(),
        ),
        (
            ResponseCode.POLLING_TIMEOUT,
            "the broker[127.0.0.1] pop message is timeout too much",
            popper.request(born_ms=scene.facts.now_ms - 5000, poll_ms=3000),
        ),
        (
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "parse the consumer's subscription failed",
            popper.request(exp="||", expType="TAG"),
        ),
        (
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "parse the consumer's subscription failed",
            popper.request(exp="a", expType="OTHER"),
        ),
    ]
    for code, remark, request in cases:
        reply = broker.ask(request)
        assert (reply.code, (reply.remark or "")[: len(remark)]) == (code, remark)
        assert dict(reply.fields) == REFUSED, remark
        assert reply.body == b""
    fields = pop_fields(popper.topic, group)
    for lacking in ({k: v for k, v in fields.items() if k != "consumerGroup"},):
        reply = broker.ask(command(RequestCode.POP_MESSAGE, lacking))
        assert reply.code == ResponseCode.SYSTEM_ERROR
    reply = popper.pop(count=0)
    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, NO_MESSAGE_TEXT)
    assert [one.body for one in records_of(popper.pop())] == [b"0-0"]


def pops_filter_by_tag_and_pass_what_does_not_match(scene: Scene) -> None:
    popper = new_popper(scene, count=0)
    for tag in ("red", "blue", "red", "green"):
        send(popper, 1, properties={"TAGS": tag})
    pull(scene, popper.broker, popper.topic, count=4)

    def other(word: str) -> Popper:
        return Popper(scene, popper.broker, popper.topic, scene.name(word))

    for word, exp, offsets in (
        ("one", "red", "0,2"),
        ("two", "red || green", "0,2,3"),
        ("all", "", "0,1,2,3"),
    ):
        reply = succeed(other(word).pop(exp=exp, expType="TAG"))
        assert reply.fields["startOffsetInfo"] == "0 0 0"
        assert reply.fields["msgOffsetInfo"] == f"0 0 {offsets}"
        assert reply.fields["restNum"] == "0"
    last = other("last")
    reply = succeed(last.pop(count=1, exp="green"))
    assert (reply.fields["startOffsetInfo"], reply.fields["msgOffsetInfo"]) == ("0 0 0", "0 0 3")
    # What does not match is passed, also when nothing matches.
    assert_empty(last.pop())
    nobody = other("nobody")
    assert_empty(nobody.pop(exp="black", expType="TAG"))
    assert_empty(nobody.pop())


def pops_filter_by_sql92(scene: Scene) -> None:
    """A pop brings its expression along; the broker's setting for property filters is not asked."""
    popper = new_popper(scene, count=0)
    for color, size in (("red", "1"), ("blue", "2"), ("red", "3")):
        send(popper, 1, properties={"color": color, "size": size})
    pull(scene, popper.broker, popper.topic, count=3)
    sql = {"expType": "SQL92"}
    reply = succeed(popper.pop(exp="color = 'red' AND size > 1", **sql))
    assert (reply.fields["startOffsetInfo"], reply.fields["msgOffsetInfo"]) == ("0 0 0", "0 0 2")
    assert_empty(popper.pop())
    reply = popper.pop(exp="size = = 1", **sql)
    assert (reply.code, dict(reply.fields)) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, REFUSED)


def an_empty_pop_is_held_until_a_message_arrives(scene: Scene) -> None:
    popper = new_popper(scene, count=0)
    sender = scene.broker()
    producer = Popper(scene, sender, popper.topic, popper.group)
    assert_empty(popper.pop())
    assert_empty(popper.pop(queue_id=-1))
    # A server that is paused finds the request too old, and says so.
    assert_empty(
        scene.poll(
            lambda: popper.pop(**popper.fresh(700)), lambda reply: reply.remark == NO_MESSAGE_TEXT
        )
    )
    for number, queue_id in enumerate((0, -1)):
        call = popper.start_held(sender, HOLD_MS, queue_id)
        send(producer, 1)
        reply = succeed(popper.broker.finish(call))
        assert reply.fields["msgOffsetInfo"] == f"0 0 {number}"
    # A message of another queue, or with another tag, does not end it.
    given: dict[str, object] = {"exp": "red", "expType": "TAG"}
    call = popper.start_held(sender, 2000, 1, **given)
    send(producer, 1)
    send(producer, 1, queue_id=1, properties={"TAGS": "blue"})
    assert_empty(popper.broker.finish(call))
    call = popper.start_held(sender, HOLD_MS, 1, **given)
    send(producer, 1, queue_id=1, properties={"TAGS": "red"})
    assert succeed(popper.broker.finish(call)).fields["msgOffsetInfo"] == "0 1 1"


def a_notification_says_that_a_pop_would_find_something(scene: Scene) -> None:
    popper = new_popper(scene, count=0)
    sender = scene.broker()
    assert popper.notification(0) == ("false", "false")
    request = popper.fresh(HOLD_MS)
    held = {"pollTime": str(HOLD_MS), "bornTime": str(request["born_ms"])}
    call = popper.broker.start(popper.notification_request(0, **held))
    send(Popper(scene, sender, popper.topic, popper.group), 2)
    assert succeed(popper.broker.finish(call)).fields["hasMsg"] == "true"
    assert popper.notification(0) == ("true", "false")
    assert popper.notification(-1) == ("true", "false")
    assert popper.notification(1) == ("false", "false")
    # Nothing was taken.
    # Both messages are there a moment later.
    reply = scene.poll(
        lambda: succeed(popper.peek(0, 1)), lambda found: found.fields["restNum"] == "2"
    )
    assert ([one.body for one in records_of(reply)], reply.remark) == ([b"0-0"], "FOUND")
    assert dict(reply.fields) == REFUSED | {"restNum": "2"}
    assert [one.body for one in records_of(popper.peek(-1, 32))] == [b"0-0", b"0-1"]
    reply = popper.peek(1, 1)
    assert (reply.code, reply.remark) == (ResponseCode.PULL_NOT_FOUND, NO_MESSAGE_TEXT)
    assert dict(reply.fields) == REFUSED
    assert len(records_of(popper.pop())) == 2
    assert popper.notification(0) == ("false", "false")

    lost = Popper(scene, popper.broker, scene.name("missing"), popper.group)
    nothing = {"hasMsg": "false", "pollingFull": "false"}
    reply = popper.broker.ask(lost.notification_request(0))
    assert (reply.code, dict(reply.fields)) == (ResponseCode.TOPIC_NOT_EXIST, nothing)
    reply = popper.broker.ask(popper.notification_request(7))
    assert (reply.code, dict(reply.fields)) == (ResponseCode.INVALID_PARAMETER, nothing)
    assert lost.peek(0, 1).code == ResponseCode.TOPIC_NOT_EXIST
    assert popper.peek(7, 1).code == ResponseCode.INVALID_PARAMETER
    succeed(popper.broker.ask(bare_request(RequestCode.POP_ROLLBACK)))
