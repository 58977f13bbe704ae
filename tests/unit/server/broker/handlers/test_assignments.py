"""Queues shared out by the broker, and message request modes."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.errors import MalformedBody
from downrange.model import QueueId
from downrange.server.broker.tables import request_modes
from downrange.server.outputs import AskNameServer, LateReply, Output, Peer, TablesChanged
from downrange.wire.bodies import (
    AssignmentQueryBody,
    AssignmentsBody,
    BrokerQueues,
    RequestModeBody,
    RequestModesBody,
    RouteBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import DeleteGroupRequest, DeleteTopicRequest
from tests.unit.server.broker.handlers.handler_stage import HandlerStage, reply_of

QUERY, SET, LIST = (
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)
ASKING = Peer(41, "10.0.0.9:1")


def stage(members: int = 2, **options: object) -> HandlerStage:
    """Return a broker with members c0, c1, … of group G."""
    broker = HandlerStage(**options)
    for number in range(members):
        broker.beat(Peer(20 + number, "10.0.0.3:1"), f"c{number}")
    return broker


def query(client: str | None = "c0", **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "T",
        "consumer_group": "G",
        "client_id": client,
        "strategy_name": "AVG",
        "message_model": "CLUSTERING",
    }
    return AssignmentQueryBody(**(fields | changes)).encode()


def numbers(reply: Command) -> list[tuple[int, str]] | None:
    """Return queue numbers and modes of an answer; None if it has no list."""
    assert reply.code == ResponseCode.SUCCESS
    found = decode_body(AssignmentsBody, reply.body).message_queue_assignments
    if found is None:
        return None
    return [(one.message_queue.number, one.mode) for one in found]


def asked(broker: HandlerStage, client: str | None = "c0", **changes: Any) -> Any:
    return numbers(broker.ask(QUERY, query(client, **changes)))


def set_mode(broker: HandlerStage, mode: str = "POP", **changes: Any) -> Command:
    fields: dict[str, Any] = {"topic": "T", "consumer_group": "G", "mode": mode}
    return broker.ask(SET, RequestModeBody(**(fields | changes)).encode())


# ---- assignments -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
def test_members_share_the_queues(strategy: str) -> None:
    broker = stage()
    broker.create("T", read_queue_nums=5)
    expected = {"AVG": ([0, 1, 2], [3, 4]), "AVG_BY_CIRCLE": ([0, 2, 4], [1, 3])}[strategy]
    for client, queues in zip(("c0", "c1"), expected, strict=True):
        wanted = [(number, "PULL") for number in queues]
        assert asked(broker, client, strategy_name=strategy) == wanted


def test_a_client_that_is_not_a_member_gets_an_empty_list() -> None:
    assert asked(stage(), "stranger") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "missing"},
        {"topic": "write-only"},
        {"consumer_group": "empty"},
        {"strategy_name": "CONSISTENT_HASH"},
        {"strategy_name": None},
        {"client": " "},
        {"client": None},
    ],
)
def test_a_member_keeps_its_queues_where_nothing_can_be_shared(changes: dict[str, Any]) -> None:
    broker = stage()
    broker.create("write-only", perm=2)
    reply = broker.ask(QUERY, query(**changes))
    assert (reply.code, reply.body) == (0, b"{}")


def test_a_broadcasting_member_gets_all_queues() -> None:
    broker = stage()
    broadcast = {"message_model": "BROADCASTING", "strategy_name": None}
    assert asked(broker, None, **broadcast) == [(0, "PULL"), (1, "PULL")]
    assert asked(broker, topic="missing", **broadcast) is None
    broker.create("write-only", perm=2)
    assert asked(broker, topic="write-only", **broadcast) == []


def test_a_broker_whose_clients_may_not_pull_shares_nothing() -> None:
    assert asked(stage(permission=2)) is None


def test_all_queues_go_to_everyone_where_the_broker_does_not_share() -> None:
    broker = stage(is_load_balanced=False)
    for client in ("c0", "stranger", None):
        assert asked(broker, client, strategy_name="NONE") == [(0, "PULL"), (1, "PULL")]


@pytest.mark.parametrize("model", [None, "NONSENSE"])
def test_a_query_without_a_message_model_is_refused(model: str | None) -> None:
    reply = stage().ask(QUERY, query(message_model=model))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "messageModel" in (reply.remark or "")


# ---- routes ------------------------------------------------------------------------------------


def route(**brokers: int) -> Command:
    parts = [
        BrokerQueues(broker_name=name, read_queue_nums=count, write_queue_nums=8, perm=6)
        for name, count in brokers.items()
    ]
    parts.append(BrokerQueues(broker_name="z", read_queue_nums=4, write_queue_nums=4, perm=2))
    return Command(0, body=RouteBody(queue_datas=parts).encode())


def begin(broker: HandlerStage, client: str, peer: Peer = ASKING) -> list[Output]:
    return broker.outputs(Command(int(QUERY), body=query(client), request_id=7), peer)


def test_queues_of_all_brokers_are_shared_as_the_name_server_lists_them() -> None:
    broker = stage(name_servers=("127.0.0.1:9876",))
    (question,) = begin(broker, "c1")
    assert isinstance(question, AskNameServer)
    assert question.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert question.command.fields["topic"] == "T"
    (late,) = question.on_reply(route(b=2, a=2), broker.now_ms)
    assert isinstance(late, LateReply)
    assert (late.connection, late.request.request_id) == (ASKING.number, 7)
    found = decode_body(AssignmentsBody, late.command.body).message_queue_assignments  # type: ignore[union-attr]
    assert found is not None
    assert [one.message_queue for one in found] == [QueueId("T", "b", 0), QueueId("T", "b", 1)]


def test_queries_about_one_topic_share_a_lookup() -> None:
    broker = stage(name_servers=("127.0.0.1:9876",))
    (question,) = begin(broker, "c0")
    assert isinstance(question, AskNameServer)
    assert begin(broker, "c1", Peer(42, "10.0.0.8:1")) == []
    late = list(question.on_reply(route(a=2), broker.now_ms))
    assert [reply.connection for reply in late if isinstance(reply, LateReply)] == [41, 42]
    assert len(begin(broker, "c0")) == 1  # the next one is looked up again


def test_a_name_that_no_topic_has_is_not_looked_up() -> None:
    broker = stage(name_servers=("127.0.0.1:9876",))
    longest = "t" * 255
    (question,) = broker.outputs(Command(int(QUERY), body=query(topic=longest)))
    assert isinstance(question, AskNameServer)
    assert asked(broker, topic=longest + "t") is None


@pytest.mark.parametrize(
    "reply", [None, Command(int(ResponseCode.TOPIC_NOT_EXIST)), Command(0, body=b"{{")]
)
def test_a_member_keeps_its_queues_where_the_name_server_has_no_route(
    reply: Command | None,
) -> None:
    broker = stage(name_servers=("127.0.0.1:9876",))
    (question,) = begin(broker, "c0")
    assert isinstance(question, AskNameServer)
    (late,) = question.on_reply(reply, broker.now_ms)
    assert isinstance(late, LateReply)
    assert isinstance(late.command, Command)
    assert numbers(late.command) is None


# ---- modes -------------------------------------------------------------------------------------


def test_a_mode_is_set_listed_and_applied() -> None:
    broker = stage()
    assert broker.ask(LIST).body == b'{"messageRequestModeMap":{}}'
    assert set_mode(broker, pop_share_queue_num=-1).code == ResponseCode.SUCCESS
    assert broker.ask(LIST).body == (
        b'{"messageRequestModeMap":{"T":{"G":'
        b'{"consumerGroup":"G","mode":"POP","popShareQueueNum":-1,"topic":"T"}}}}'
    )
    assert asked(broker) == asked(broker, "stranger") == [(-1, "POP")]
    assert asked(broker, message_model="BROADCASTING") == [(0, "POP"), (1, "POP")]
    assert set_mode(broker, "PULL").code == ResponseCode.SUCCESS
    assert asked(broker) == [(0, "PULL")]


@pytest.mark.parametrize(
    ("queues", "share", "expected"),
    [
        (5, -1, [[-1]] * 4),
        (5, 0, [[-1]] * 4),
        (5, 1, [[0, 1, 2], [2, 3], [3, 4], [4, 0, 1]]),
        (5, 2, [[0, 1, 2, 3], [2, 3, 4], [3, 4, 0, 1], [4, 0, 1, 2]]),
        (5, 3, [[-1]] * 4),
        (3, 1, [[0], [1], [2], [0]]),
        (0, 1, [[]] * 4),
        (0, 0, [[]] * 4),
    ],
)
def test_pop_members_share_queues_with_those_behind_them(
    queues: int, share: int, expected: list[list[int]]
) -> None:
    broker = stage(members=4)
    broker.create("T", read_queue_nums=queues)
    set_mode(broker, pop_share_queue_num=share)
    got = [[number for number, _ in asked(broker, f"c{client}")] for client in range(4)]
    assert got == expected
    is_for_all = expected[0] == [-1]
    assert asked(broker, "stranger") == ([(-1, "POP")] if is_for_all else [])


def test_a_default_mode_applies_where_none_is_set_and_never_to_retry_topics() -> None:
    broker = stage(members=3, default_request_mode="POP", default_pop_share_queues=1)
    broker.create("T", read_queue_nums=3)
    assert asked(broker) == [(0, "POP"), (1, "POP")]
    assert asked(broker, topic="%RETRY%G") == [(0, "PULL")]
    set_mode(broker, "PULL")
    assert asked(broker) == [(0, "PULL")]


def test_a_mode_of_an_unknown_name_is_pull() -> None:
    broker = stage()
    assert set_mode(broker, "NONSENSE", pop_share_queue_num=3).code == ResponseCode.SUCCESS
    assert asked(broker) == [(0, "PULL")]


def test_a_mode_creates_its_group_and_is_confirmed_once_it_is_saved() -> None:
    broker = stage()
    body = RequestModeBody(topic="T", consumer_group="new", mode="POP").encode()
    outputs = broker.outputs(Command(int(SET), body=body))
    assert TablesChanged(broker.state.tables_version, is_confirmed=True) in outputs
    assert reply_of(outputs).code == ResponseCode.SUCCESS
    assert broker.state.groups.get("new") is not None


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "%RETRY%G"}, 16, "retry topic is not allowed to set mode"),
        ({"topic": "missing"}, 17, "topic[missing] not exist"),
        ({"consumer_group": "not legal!"}, 26, "subscription group does not exist"),
        ({"pop_share_queue_num": 2**31}, 1, "popShareQueueNum is not a 32-bit number"),
    ],
)
def test_a_mode_that_cannot_be_set_is_refused(
    changes: dict[str, Any], code: int, remark: str
) -> None:
    broker = stage()
    reply = set_mode(broker, **changes)
    assert (reply.code, reply.remark) == (code, remark)
    assert decode_body(RequestModesBody, broker.ask(LIST).body).message_request_mode_map == {}


def test_the_number_of_modes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_modes, "MODES_MAX", 1)
    broker = stage()
    assert set_mode(broker).code == ResponseCode.SUCCESS
    reply = set_mode(broker, consumer_group="H")
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert set_mode(broker, "PULL").code == ResponseCode.SUCCESS


def test_modes_are_removed_with_their_topic_or_group() -> None:
    broker = stage()
    broker.create("U")
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G"), ("U", "H")):
        set_mode(broker, topic=topic, consumer_group=group)
    broker.request(DeleteTopicRequest(topic="T"))
    broker.request(DeleteTopicRequest(topic="T"))
    broker.request(DeleteGroupRequest(group_name="G"))
    kept = decode_body(RequestModesBody, broker.ask(LIST).body).message_request_mode_map
    assert {topic: set(groups) for topic, groups in kept.items()} == {"U": {"H"}}
    broker.request(DeleteGroupRequest(group_name="H"))
    assert broker.ask(LIST).body == b'{"messageRequestModeMap":{}}'


def test_modes_are_saved_and_read_again() -> None:
    broker = stage()
    set_mode(broker, pop_share_queue_num=2)
    again = request_modes.RequestModes()
    again.load(broker.state.request_modes.dump())
    mode = again.get("T", "G")
    assert mode is not None
    assert (mode.mode, mode.pop_share_queue_num) == ("POP", 2)
    assert again.get("T", "H") is again.get("U", "G") is None
    assert again.version == 0


def test_the_file_of_an_apache_broker_is_read() -> None:
    table = request_modes.RequestModes()
    table.load(
        b'{\n\t"messageRequestModeMap":{\n\t\t"T1":{\n\t\t\t"G1":{\n\t\t\t\t"consumerGroup":"G1",'
        b'\n\t\t\t\t"mode":"POP",\n\t\t\t\t"popShareQueueNum":3,\n\t\t\t\t"topic":"T1"\n\t\t\t}\n'
        b"\t\t}\n\t}\n}"
    )
    mode = table.get("T1", "G1")
    assert mode is not None
    assert (mode.mode, mode.pop_share_queue_num) == ("POP", 3)


def test_requests_with_damaged_bodies_are_named_in_the_error() -> None:
    broker = stage()
    for code in (QUERY, SET):
        for body in (b"", b"{}", b"[[["):
            with pytest.raises(MalformedBody):
                broker.outputs(Command(int(code), body=body))
