"""What pops would find: peeks, notifications, the number of polls.

    200052   peek: topic, queueId, maxMsgNums, consumerGroup; nothing becomes invisible
    200054   notification: wait until a pop would find a message; fields as in a pop
    200055   how many pops wait: consumerGroup, topic, queueId
    200056   move the state to files: ours is there already

Kept from Apache (Java: PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor): codes,
remarks and the fields of refusals. The remainder in the reply to a peek includes its messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.broker.handlers.answers import succeed
from downrange.server.broker.handlers.pop_checks import (
    NO_MESSAGE,
    NO_REMARK,
    check_age,
    check_attempt,
    check_group,
    check_permission,
    check_topic,
    with_zeros,
)
from downrange.server.broker.handlers.pop_polls import hold
from downrange.server.broker.message_filter import EVERYTHING, MessageFilter, filter_of_expression
from downrange.server.broker.pop.held_pops import ALL_QUEUES
from downrange.server.broker.pop.pop_plan import PopOrder, has_message
from downrange.server.broker.pop.queue_reader import start_offset, take
from downrange.server.broker.pop.revival import is_loaded
from downrange.server.outputs import HELD, LateReply, Output, Peer, Reply
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.pop_headers import (
    NotificationReply,
    NotificationRequest,
    PeekRequest,
    PollingCountReply,
    PollingCountRequest,
    PopReply,
)
from downrange.wire.pop_receipts import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState

_SUCCESS: Final = int(ResponseCode.SUCCESS)


def _peek(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = PeekRequest.from_fields(request.fields)
    outputs: list[Output] = []
    refused = check_permission(state)
    refused = refused or check_topic(state, header.topic, header.queue_id, peer)
    refused = refused or check_group(state, header.consumer_group, now_ms, outputs)
    if refused is not None:
        return [*outputs, Reply(with_zeros(refused))]
    config = state.topics.get(header.topic)
    assert config is not None
    is_one = header.queue_id != ALL_QUEUES
    queue_ids = [header.queue_id] if is_one else range(config.read_queue_nums)
    count_left = min(max(header.max_msg_nums, 0), state.options.pull_messages_max)
    bytes_left = state.options.pull_bytes_max
    rest, parts = 0, list[bytes | memoryview]()
    for queue_id in queue_ids:
        queue = state.store.queue(header.topic, queue_id)
        start = start_offset(state, queue, header.consumer_group, queue_id, 0)
        taken = take(
            state,
            queue,
            queue_id,
            start,
            EVERYTHING,
            kind=PLAIN,
            count_max=count_left,
            bytes_max=bytes_left,
        )
        rest += queue.max_offset - start
        parts += taken.parts
        count_left -= len(taken.offsets)
        bytes_left -= taken.size
        if bytes_left <= 0:
            count_left = 0
    fields = PopReply(rest_num=rest).to_fields()
    if parts:
        return [*outputs, Reply(Command(_SUCCESS, fields, b"".join(parts), "FOUND"))]
    code = int(ResponseCode.PULL_NOT_FOUND)
    return [*outputs, Reply(Command(code, fields, b"", NO_MESSAGE))]


def _notify(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = NotificationRequest.from_fields(request.fields)
    outputs: list[Output] = []
    refused = check_permission(state) or check_attempt(header.attempt_id)
    refused = refused or check_topic(state, header.topic, header.queue_id, peer)
    refused = refused or check_group(state, header.consumer_group, now_ms, outputs)
    wanted = refused or filter_of_expression(state, header.exp, header.exp_type)
    if not isinstance(wanted, MessageFilter):
        wanted.fields = NotificationReply().to_fields()
        return [*outputs, Reply(wanted)]
    asked = PopOrder(
        topic=header.topic,
        group=header.consumer_group,
        queue_id=header.queue_id,
        count_max=1,
        wanted=wanted,
        init_mode=0,
        is_ordered=bool(header.order),
        attempt_id=header.attempt_id,
    )

    def attempt(now_ms: int) -> Sequence[Output] | None:
        if not is_loaded(state, now_ms) or not has_message(state, asked, now_ms):
            return None
        return (LateReply(peer.number, request, _notification(has_msg=True)),)

    def give_up(now_ms: int) -> Sequence[Output]:
        return (LateReply(peer.number, request, _notification()),)

    if attempt(now_ms) is not None:
        return [*outputs, Reply(_notification(has_msg=True))]
    is_old = check_age(state, header.born_time, header.poll_time, now_ms) is not None
    if header.poll_time <= 0 or is_old or request.is_oneway:
        return [*outputs, Reply(_notification())]
    if hold(state, request, header, peer, wanted, attempt, give_up, now_ms):
        return [*outputs, HELD]
    return [*outputs, Reply(_notification(polling_full=True))]


def _notification(*, has_msg: bool = False, polling_full: bool = False) -> Command:
    fields = NotificationReply(has_msg=has_msg, polling_full=polling_full).to_fields()
    return Command(_SUCCESS, fields, b"", NO_REMARK)


def _count_polls(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = PollingCountRequest.from_fields(request.fields)
    refused = check_permission(state)
    refused = refused or check_topic(state, header.topic, header.queue_id, peer)
    if refused is not None:
        refused.fields = PollingCountReply().to_fields()
        return [Reply(refused)]
    count = state.held_pops.count((header.topic, header.consumer_group), header.queue_id)
    return succeed(PollingCountReply(polling_num=count), remark=NO_REMARK)


def _roll_back(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return succeed(remark=NO_REMARK)


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.PEEK_MESSAGE): _peek,
    int(RequestCode.NOTIFICATION): _notify,
    int(RequestCode.POLLING_INFO): _count_polls,
    int(RequestCode.POP_ROLLBACK): _roll_back,
}
