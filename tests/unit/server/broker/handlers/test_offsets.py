"""Offsets of groups and of queues."""

from __future__ import annotations

import json

import pytest

from downrange.errors import MissingField
from downrange.wire.bodies import CorrectionOffsetsBody, decode_body
from downrange.wire.codes import ReleaseVersion, RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CloneOffsetsRequest,
    CommitOffsetRequest,
    CorrectionOffsetsRequest,
    EarliestTimeReply,
    EarliestTimeRequest,
    GroupOffsetRequest,
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetByTimeRequest,
    OffsetReply,
)
from downrange.wire.limits import INT64_MAX
from tests.unit.server.broker.broker_stage import NOW_MS
from tests.unit.server.broker.handlers.handler_stage import HandlerStage, reply_of


def commit(
    broker: HandlerStage, *, group: str = "G", topic: str = "T", queue: int = 0, to: int = 1
) -> int:
    header = CommitOffsetRequest(
        consumer_group=group, topic=topic, queue_id=queue, commit_offset=to
    )
    return broker.request(header).code


def offset_of(broker: HandlerStage, **changes: object) -> int | None:
    fields: dict[str, object] = {"consumer_group": "G", "topic": "T", "queue_id": 0} | changes
    reply = broker.request(GroupOffsetRequest(**fields))  # type: ignore[arg-type]
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return OffsetReply.from_fields(reply.fields).offset


def test_a_committed_offset_is_found_again() -> None:
    broker = HandlerStage()
    assert commit(broker, to=7) == ResponseCode.SUCCESS
    assert offset_of(broker) == 7
    assert commit(broker, to=3) == ResponseCode.SUCCESS
    assert offset_of(broker) == 3


def test_commits_for_what_does_not_exist_are_refused() -> None:
    broker = HandlerStage()
    assert commit(broker, group="none") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert commit(broker, topic="none") == ResponseCode.TOPIC_NOT_EXIST
    assert commit(broker, queue=2) == ResponseCode.INVALID_PARAMETER
    assert commit(broker, queue=-1) == ResponseCode.INVALID_PARAMETER
    assert broker.state.offsets.version == 0


def test_a_commit_of_an_old_client_creates_its_group() -> None:
    broker = HandlerStage()
    header = CommitOffsetRequest(consumer_group="new", topic="T", queue_id=0, commit_offset=3)
    request = request_command(header)
    request.version = int(ReleaseVersion.V4_9_4)
    assert reply_of(broker.outputs(request)).code == ResponseCode.SUCCESS
    assert broker.state.groups.get("new") is not None
    assert offset_of(broker, consumer_group="new") == 3


def test_a_request_that_lacks_a_field_raises() -> None:
    with pytest.raises(MissingField):
        HandlerStage().ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId="0"
        )


def test_a_group_begins_at_zero_in_a_young_queue_only() -> None:
    broker = HandlerStage()
    assert offset_of(broker) is None  # nothing was ever sent
    assert offset_of(broker, topic="../../etc") is None
    broker.store(b"1")
    assert offset_of(broker) == 0
    assert offset_of(broker, set_zero_if_not_found=False) is None
    broker.state.store.queue("T", 0).min_offset = 1  # older messages were removed
    assert offset_of(broker) is None


def test_a_negative_offset_counts_as_none() -> None:
    broker = HandlerStage()
    broker.store(b"1")
    commit(broker, to=-5)
    assert offset_of(broker) == 0


def test_the_ends_of_a_queue_are_shown() -> None:
    broker = HandlerStage()
    for _ in range(3):
        broker.store(b"x")
    broker.state.store.queue("T", 0).min_offset = 1

    def ends(topic: str, queue_id: int) -> tuple[int, int, int]:
        low = broker.request(MinOffsetRequest(topic=topic, queue_id=queue_id))
        high = broker.request(MaxOffsetRequest(topic=topic, queue_id=queue_id))
        time = broker.request(EarliestTimeRequest(topic=topic, queue_id=queue_id))
        return (
            OffsetReply.from_fields(low.fields).offset,
            OffsetReply.from_fields(high.fields).offset,
            EarliestTimeReply.from_fields(time.fields).timestamp,
        )

    assert ends("T", 0) == (1, 3, NOW_MS)
    assert ends("T", 1) == (0, 0, -1)
    assert ends("T", 2) == ends("none", 0) == ends("T", -1) == (0, 0, -1)


@pytest.mark.parametrize(
    ("time_ms", "boundary", "offset"),
    [
        (0, None, 0),
        (0, "UPPER", 0),
        (10, "LOWER", 1),
        (10, "UPPER", 2),
        (11, None, 3),
        (11, "upper", 2),
        (99, None, 4),
        (99, "upper", 3),
        (-9, "upper", 0),
    ],
)
def test_a_time_is_found_from_both_sides(time_ms: int, boundary: str | None, offset: int) -> None:
    broker = HandlerStage()
    for ms in (0, 10, 10, 20):
        broker.now_ms = NOW_MS + ms
        broker.store(b"x")
    request = OffsetByTimeRequest(
        topic="T", queue_id=0, timestamp=NOW_MS + time_ms, boundary_type=boundary
    )
    assert OffsetReply.from_fields(broker.request(request).fields).offset == offset


def test_a_time_in_an_unknown_queue_is_zero() -> None:
    request = OffsetByTimeRequest(topic="none", queue_id=0, timestamp=5)
    assert OffsetReply.from_fields(HandlerStage().request(request).fields).offset == 0


def test_all_offsets_are_listed() -> None:
    broker = HandlerStage()
    commit(broker, to=4)
    table = json.loads(broker.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert table["offsetTable"] == {"T@G": {"0": 4}}
    assert "offsetTable" in json.loads(broker.ask(RequestCode.GET_ALL_DELAY_OFFSET).body)


def test_offsets_are_cloned_for_one_topic_or_for_all() -> None:
    broker = HandlerStage()
    broker.create("U")
    commit(broker, to=4)
    commit(broker, topic="U", queue=1, to=5)
    broker.request(CloneOffsetsRequest(src_group="G", dest_group="one", topic="T"))
    broker.request(CloneOffsetsRequest(src_group="G", dest_group="all", topic=""))
    assert broker.state.offsets.of_group("one") == {"T": {0: 4}}
    assert broker.state.offsets.of_group("all") == {"T": {0: 4}, "U": {1: 5}}
    assert broker.state.groups.get("all") is not None


def test_offsets_are_not_cloned_for_a_group_that_may_not_exist() -> None:
    reply = HandlerStage().request(CloneOffsetsRequest(src_group="G", dest_group="no blanks"))
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_commit_is_ignored_until_a_consumer_knows_of_a_reset() -> None:
    broker = HandlerStage()
    broker.state.offsets.reset("G", "T", 0, 3)
    header = CommitOffsetRequest(consumer_group="G", topic="T", queue_id=0, commit_offset=8)
    reply = broker.request(header)
    assert (reply.code, reply.remark) == (0, "Offset has been previously reset")
    assert offset_of(broker) == 3
    assert commit(broker, queue=1, to=8) == ResponseCode.SUCCESS
    assert offset_of(broker, queue_id=1) == 8
    broker.state.offsets.take_reset("G", "T", 0)
    commit(broker, to=8)
    assert offset_of(broker) == 8


def slowest(broker: HandlerStage, **changes: str) -> dict[int, int]:
    reply = broker.request(CorrectionOffsetsRequest(**({"topic": "T"} | changes)))
    return decode_body(CorrectionOffsetsBody, reply.body).correction_offsets


def test_the_offsets_of_the_slowest_group_are_shown() -> None:
    broker = HandlerStage()
    for group, queue_id, offset in (("G", 0, 5), ("G", 1, 3), ("H", 0, 4), ("I", 0, 9)):
        broker.state.offsets.commit(group, "T", queue_id, offset)
    broker.state.offsets.commit("G", "U", 0, 1)
    assert slowest(broker) == slowest(broker, compare_group="G") == {0: 4, 1: 3}
    assert slowest(broker, filter_groups="H,x", compare_group="I") == {0: 5, 1: 3}
    assert slowest(broker, compare_group="none", filter_groups="G,H,I") == {}
    assert slowest(broker, topic="none") == {}
    assert offset_of(broker, consumer_group="H") == 4  # Apache deletes what is left out


def test_offsets_of_messages_that_are_gone_do_not_count_as_slow() -> None:
    broker = HandlerStage()
    for group, offset in (("G", 2), ("H", 1), ("I", -1)):
        broker.state.offsets.commit(group, "T", 0, offset)
    assert slowest(broker) == {0: 1}
    # The group is behind the messages that exist, so there is nothing to correct for it.
    assert slowest(broker, compare_group="I") == {0: INT64_MAX}
