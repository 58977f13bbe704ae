"""Handlers declare changed tables and pending writes; the check of that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.server.broker.broker import HANDLERS
from downrange.server.outputs import STORE_PENDING, Reply, TablesChanged
from downrange.wire.bodies import (
    ConsumerMember,
    GroupConfig,
    GroupListBody,
    HeartbeatBody,
    TopicConfig,
    TopicListBody,
)
from downrange.wire.codes import ReleaseVersion, RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CloneOffsetsRequest,
    CommitOffsetRequest,
    CreateTopicRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    GroupConfigRequest,
    SendBackRequest,
    UnregisterClientRequest,
)
from downrange.wire.records import BatchItem, encode_batch
from tests.unit.server.broker.broker_stage import (
    CLIENT,
    NOW_MS,
    Stage,
    a_state,
    pull_request,
    send_request,
)
from tests.unit.server.broker.declared_outputs import checked
from tests.unit.server.broker.pop_stage import notification_request, peek_request, pop_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output, Peer

REPLY = Reply(Command(0))


def create_topic() -> Command:
    return request_command(
        CreateTopicRequest(
            topic="New", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
        )
    )


def commit_offset_of_4_9() -> Command:
    request = request_command(
        CommitOffsetRequest(consumer_group="New", topic="T", queue_id=0, commit_offset=0)
    )
    request.version = int(ReleaseVersion.V4_9_8)
    return request


def heartbeat() -> Command:
    member = ConsumerMember(group_name="New", subscription_data_set=[])
    body = HeartbeatBody(client_id="c", consumer_data_set=[member])
    return Command(int(RequestCode.HEART_BEAT), body=body.encode())


def create_group() -> Command:
    body = GroupConfig(group_name="New").encode()
    return Command(int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP), body=body)


def create_groups() -> Command:
    body = GroupListBody(group_config_list=[GroupConfig(group_name="New")]).encode()
    return Command(int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST), body=body)


def create_topics() -> Command:
    config = TopicConfig(topic_name="New", read_queue_nums=1, write_queue_nums=1, perm=6)
    body = TopicListBody(topic_config_list=[config]).encode()
    return Command(int(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST), body=body)


def allow_new_topics() -> Command:
    return Command(int(RequestCode.UPDATE_BROKER_CONFIG), body=b"autoCreateTopicEnable=true\n")


#: One request for each way in which a request changes topics or groups.
CHANGES: dict[str, Callable[[], Command]] = {
    "send to a new topic": lambda: send_request(topic="New"),
    "batch to a new topic": lambda: send_request(
        encode_batch([BatchItem(0, b"x", b"")]), "New", batch=True
    ),
    "send to a queue that a new topic lacks": lambda: send_request(topic="New", queue_id=99),
    "send to a retry topic": lambda: send_request(topic="%RETRY%New"),
    "send of a dead letter": lambda: send_request(
        topic="%RETRY%New", reconsume_times=9, max_reconsume_times=1
    ),
    "send back": lambda: request_command(
        SendBackRequest(offset=0, group="New", delay_level=0, origin_topic="T")
    ),
    "send back as a dead letter": lambda: request_command(
        SendBackRequest(offset=0, group="G", delay_level=-1, origin_topic="T")
    ),
    "pull by a new group": lambda: pull_request(consumer_group="New"),
    "held pull by a new group": lambda: pull_request(1, consumer_group="New", suspend_ms=9),
    "refused pull by a new group": lambda: pull_request(topic="None", consumer_group="New"),
    "heartbeat of a new group": heartbeat,
    "leave a new group": lambda: request_command(
        UnregisterClientRequest(client_id="c", consumer_group="New")
    ),
    "commit of a 4.9 client": commit_offset_of_4_9,
    "clone of offsets": lambda: request_command(
        CloneOffsetsRequest(src_group="G", dest_group="New", topic="T")
    ),
    "describe a new group": lambda: request_command(GroupConfigRequest(group="New")),
    "create a topic": create_topic,
    "create topics": create_topics,
    "create a group": create_group,
    "create groups": create_groups,
    "delete a topic": lambda: request_command(DeleteTopicRequest(topic="T")),
    "delete a group": lambda: request_command(DeleteGroupRequest(group_name="G")),
    "allow new topics": allow_new_topics,
    "pop by a new group": lambda: pop_request(group="New"),
    "pop in order": lambda: pop_request(order=True),
    "peek by a new group": lambda: peek_request(consumer_group="New"),
    "notification of a new group": lambda: notification_request(consumer_group="New"),
}


def a_stage() -> Stage:
    stage = Stage()
    stage.create("T")
    stage.state.groups.get_or_create("G", stage.state.options, NOW_MS)
    stage.ask(send_request(topic="T"))
    return stage


@pytest.mark.parametrize("name", CHANGES)
def test_a_handler_that_changes_tables_returns_their_new_version(name: str) -> None:
    stage = a_stage()
    if name == "allow new topics":
        stage.state.topics.delete("TBW102", NOW_MS)
    state, request = stage.state, CHANGES[name]()
    before = state.tables_version
    outputs = HANDLERS[request.code](state, request, CLIENT, NOW_MS)
    versions = [output.version for output in outputs if isinstance(output, TablesChanged)]
    assert versions[-1] == state.tables_version > before


@pytest.mark.parametrize("name", CHANGES)
def test_a_reply_waits_until_the_change_of_its_request_is_published(name: str) -> None:
    stage = a_stage()
    stage.publish()
    if name == "allow new topics":
        stage.state.topics.delete("TBW102", NOW_MS)
    request = stage.hand_in(CHANGES[name]())
    stage.commit()
    stage.flush()
    assert stage.answer_to(request) is None
    stage.publish()
    if name != "held pull by a new group":
        assert stage.answer_to(request) is not None


# ---- the check itself ----


def forgets_the_tables(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    state.groups.get_or_create("New", state.options, now_ms)
    return [REPLY]


def forgets_the_write(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    state.write_queue.add([], [])
    return []


def promises_a_write(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    return STORE_PENDING


def declares_too_late(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    state.groups.get_or_create("New", state.options, now_ms)
    return [REPLY, TablesChanged(state.tables_version)]


@pytest.mark.parametrize(
    "handler", [forgets_the_tables, forgets_the_write, promises_a_write, declares_too_late]
)
def test_the_check_fails_a_handler_whose_outputs_do_not_match_its_changes(
    handler: Callable[[BrokerState, Command, Peer, int], Sequence[Output]],
) -> None:
    with pytest.raises(AssertionError):
        checked(handler)(a_state(), Command(10), CLIENT, NOW_MS)
