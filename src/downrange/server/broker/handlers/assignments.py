"""Queues that the broker shares out among the members of a group, and how they are read.

Served, with the fields that are read (behaviour of 5.5.0; 4.9 has none of these codes):

    400  the queues of a member: body (topic, group, client id, strategy, message model)
    401  set the message request mode of a group for a topic, pull or pop: body
    402  all modes that were set

400 is answered from the route of the topic, because a topic may have queues on several brokers. An
answer without a list means that the member keeps the queues that it has: the topic has no route,
the group has no members, the strategy is unknown, or no name server replies. A broker without name
servers answers from its own topics.

Skipped on purpose: topics of the kind `%LMQ%`, and a cache of routes. Apache keeps a route for up
to 30 s, so that members learn of new queues late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.allocation import STRATEGIES, allocate_for_pop, in_order, members_in_order
from downrange.model import QueueId
from downrange.server.broker.handlers.answers import (
    ensure_group,
    refuse,
    succeed,
    succeed_when_saved,
)
from downrange.server.broker.tables.client_table import BROADCASTING
from downrange.server.broker.tables.request_modes import MODES_MAX, POP, PULL
from downrange.server.broker.tables.topic_table import READ
from downrange.server.outputs import LateReply, Output, Peer, Reply
from downrange.wire.bodies import (
    AssignmentQueryBody,
    AssignmentsBody,
    QueueAssignment,
    RequestModeBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.limits import GROUP_TOPIC_BYTES_MAX
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState

_CLUSTERING: Final = "CLUSTERING"
_INT_MAX: Final = 2**31 - 1


# ---- assignments -------------------------------------------------------------------------------


def _query_assignment(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    query = decode_body(AssignmentQueryBody, request.body)
    if query.message_model not in (_CLUSTERING, BROADCASTING):
        remark = f"messageModel {query.message_model} is neither {_CLUSTERING} nor {BROADCASTING}"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)
    if len(query.topic) > GROUP_TOPIC_BYTES_MAX:  # no topic has such a name: do not ask for it
        return [Reply(_answer(state, query, None))]
    if not state.options.name_servers:
        return [Reply(_answer(state, query, _own_queues(state, query.topic)))]

    def answer_late(queues: list[QueueId] | None) -> Output:
        return LateReply(peer.number, request, _answer(state, query, queues))

    return state.route_lookups.find(query.topic, answer_late)


def _own_queues(state: BrokerState, topic: str) -> list[QueueId] | None:
    config = state.topics.get(topic)
    if config is None:
        return None
    is_readable = config.perm & state.options.permission & READ
    count = config.read_queue_nums if is_readable else 0
    return [QueueId(topic, state.options.name, number) for number in range(count)]


def _answer(
    state: BrokerState, query: AssignmentQueryBody, queues: list[QueueId] | None
) -> Command:
    mode = _mode_of(state, query.topic, query.consumer_group)
    if queues is not None and query.message_model != BROADCASTING:
        queues = _share(state, query, queues, mode)
    body = AssignmentsBody()
    if queues is not None:
        body.message_queue_assignments = [
            QueueAssignment(message_queue=queue, mode=mode.mode) for queue in dict.fromkeys(queues)
        ]
    return Command(0, body=body.encode())


def _share(
    state: BrokerState, query: AssignmentQueryBody, queues: list[QueueId], mode: RequestModeBody
) -> list[QueueId] | None:
    """Return the queues of a member; None if it keeps those that it has."""
    if not state.options.is_load_balanced:
        return queues
    group = state.clients.consumer_group(query.consumer_group)
    allocate = STRATEGIES.get(query.strategy_name or "")
    if group is None or allocate is None:
        return None
    members, client_id = members_in_order(group.client_ids), query.client_id or ""
    queues = in_order(queues)
    if mode.mode == POP:
        count = mode.pop_share_queue_num
        return allocate_for_pop(queues, members, client_id, allocate, count)
    if not queues or not client_id.strip():
        return None
    return allocate(queues, members, client_id)


def _mode_of(state: BrokerState, topic: str, group: str) -> RequestModeBody:
    mode = state.request_modes.get(topic, group)
    if mode is not None:
        return mode
    options = state.options
    is_retry = topic.startswith(RETRY_PREFIX)  # always pulled
    return RequestModeBody(
        topic=topic,
        consumer_group=group,
        mode=PULL if is_retry else options.default_request_mode,
        pop_share_queue_num=options.default_pop_share_queues,
    )


# ---- modes -------------------------------------------------------------------------------------


def _set_mode(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    mode = decode_body(RequestModeBody, request.body)
    if mode.topic.startswith(RETRY_PREFIX):
        return refuse(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if state.topics.get(mode.topic) is None:
        return refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
    if abs(mode.pop_share_queue_num) > _INT_MAX:
        return refuse(ResponseCode.SYSTEM_ERROR, "popShareQueueNum is not a 32-bit number")
    outputs: list[Output] = []
    if ensure_group(state, mode.consumer_group, now_ms, outputs) is None:
        remark = "subscription group does not exist"
        return refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if mode.mode != POP:
        mode.mode = PULL  # for unknown names, too
    if not state.request_modes.put(mode):
        remark = f"there are {MODES_MAX} message request modes already"
        return [*outputs, *refuse(ResponseCode.SYSTEM_ERROR, remark)]
    return succeed_when_saved(state)


def _list_modes(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return succeed(body=state.request_modes.dump())


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.QUERY_ASSIGNMENT): _query_assignment,
    int(RequestCode.SET_MESSAGE_REQUEST_MODE): _set_mode,
    int(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE): _list_modes,
}
