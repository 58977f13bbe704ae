"""Where a group begins in a queue in which it has no offset."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.consuming.first_offset import first_offset, start_offset
from downrange.errors import ConnectFailed, RocketMQError
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import OffsetReply
from tests.unit.client.flows.consuming.group_stage import A0, GROUP, R0, Stage
from tests.unit.client.flows.fake_servers import refusal, reply

if TYPE_CHECKING:
    from downrange.model import QueueId
    from downrange.options.clients import GroupStart

AT = datetime.fromtimestamp(1_700_000_000, UTC)


def begun(stage: Stage, start: GroupStart, queue: QueueId = A0) -> tuple[int, str]:
    flow = first_offset(stage.servers.core, GROUP, queue, start, deadline=103)
    first = stage.run(flow)
    return first.offset, first.reason


@pytest.mark.parametrize("start", ["latest", "earliest", AT])
def test_a_group_that_has_consumed_goes_on_there(start: GroupStart) -> None:
    stage = Stage()
    stage.ends[A0], stage.committed[A0] = 9, 7
    assert begun(stage, start) == (7, "committed")


@pytest.mark.parametrize(
    ("start", "queue", "first"),
    [
        ("latest", A0, (9, "latest")),
        ("earliest", A0, (0, "earliest")),
        (AT, A0, (4, "first message from 2023-11-14T22:13:20+00:00 on")),
        ("latest", R0, (0, "retry topic")),
        ("earliest", R0, (0, "retry topic")),
        (AT, R0, (3, "retry topic")),
    ],
)
def test_a_new_group_begins_where_it_is_told_to_and_commits_it(
    start: GroupStart, queue: QueueId, first: tuple[int, str]
) -> None:
    stage = Stage()
    stage.ends[A0], stage.ends[R0] = 9, 3
    assert begun(stage, start, queue) == first
    assert stage.committed[queue] == first[0]


def test_a_new_group_never_reads_history_of_a_broker_that_answers_0() -> None:
    """Complaint: "start at the latest" reads the whole history with a new group (4.9)."""
    stage = Stage()
    stage.ends[A0] = 9
    stage.servers.answer("a:1", RequestCode.QUERY_CONSUMER_OFFSET, reply(OffsetReply(0)))
    assert begun(stage, "latest") == (9, "latest")


def test_an_offset_of_0_that_was_committed_counts() -> None:
    stage = Stage()
    stage.ends[A0], stage.committed[A0] = 9, 0
    assert begun(stage, "latest") == (0, "committed")
    stage.ends[A0] = 0
    assert begun(stage, "latest") == (0, "committed")
    assert stage.asked(RequestCode.GET_ALL_CONSUMER_OFFSET) == 1


def test_without_the_right_to_read_the_table_no_message_is_skipped() -> None:
    stage = Stage()
    stage.ends[A0], stage.committed[A0] = 9, 0
    refused = refusal(ResponseCode.NO_PERMISSION)
    stage.servers.answer("a:1", RequestCode.GET_ALL_CONSUMER_OFFSET, refused)
    assert begun(stage, "latest") == (0, "committed")


def test_without_the_right_to_ask_it_begins_at_0() -> None:
    stage = Stage()
    stage.servers.answer("a:1", RequestCode.GET_MIN_OFFSET, refusal(ResponseCode.NO_PERMISSION))
    assert begun(stage, "earliest") == (0, "earliest")


def test_a_broker_that_does_not_answer_is_an_error() -> None:
    stage = Stage()
    stage.servers.answer("a:1", RequestCode.GET_MAX_OFFSET, ConnectFailed("a:1", "away"))
    with pytest.raises(RocketMQError, match="away"):
        stage.run(start_offset(stage.servers.core, A0, "latest", deadline=103))
