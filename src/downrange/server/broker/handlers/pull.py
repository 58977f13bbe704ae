"""Pulls: read a queue from an offset on, at once or as soon as a message arrives.

    11 361   group, topic, queue and offset, count, bytes, `sysFlag` (commit, suspend,
             subscription), commit offset, suspend time, subscription text and version

Checked in Apache's order (Java: PullMessageProcessor): the broker's permission, group,
topic, queue, subscription. The state of the queue decides the code and the next offset: see the
table of `_Found`. Tags are compared by hash, so a consumer compares their text again. A pull that
finds no message and may wait is held. It is answered when a message arrives that its filter
matches, or when its time is over. After a reset of the group's offset (222), the next pull of the
queue commits nothing and gets the new offset (21, OFFSET_RESET).

An answer keeps to Apache's limits: 32 messages, whatever `maxMsgBytes` says. A pull that asks for
more messages and more bytes than these limits gets both; our own readers of whole topics do so.

Skipped on purpose: SQL92 and class filters (23), slaves (a master suggests itself).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import RocketMQError
from downrange.server.broker.handlers.answers import ensure_group
from downrange.server.broker.held_pulls import HeldPull
from downrange.server.broker.tables.topic_table import READ
from downrange.server.outputs import LateReply, Output, Peer, Reply, refusal
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.hashes import tag_hash
from downrange.wire.headers import PullRequest
from downrange.wire.system_names import FAQ

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.options import BrokerOptions
    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import Numbers
    from downrange.wire.bodies import GroupConfig, TopicConfig
    from downrange.wire.records import Record

_COMMIT_OFFSET: Final = 0x1
_SUSPEND: Final = 0x2
_SUBSCRIPTION: Final = 0x4
_FORBIDDEN_BROKER: Final = "1"
_FORBIDDEN_GROUP: Final = "2"
_FORBIDDEN_TOPIC: Final = "3"
_FORBIDDEN_BROADCAST: Final = "4"
_FORBIDDEN_SUBSCRIPTION: Final = "5"
#: How many units one pull examines for messages that its filter matches.
_EXAMINED_MAX: Final = 16_000
_EXAMINED_STEP: Final = 256
#: How often held pulls are compared with their queues, which grow by messages of other tags.
_RECHECK_MS: Final = 5_000

_FOUND: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)


class _Found(NamedTuple):
    """The result of reading a queue.

    FOUND 0; NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING 20; OFFSET_OVERFLOW_ONE 19;
    OFFSET_OVERFLOW_BADLY, OFFSET_TOO_SMALL, OFFSET_RESET 21; an empty queue 19 at offset 0, else
    21.
    """

    code: int
    status: str
    next_offset: int
    body: bytes = b""
    message_count: int = 0


def _pull(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    if not state.accepts_pulls:
        return [Reply(_pulling_forbidden(state))]
    header = PullRequest.from_fields(request.fields)
    outputs: list[Output] = []
    group = state.groups.get(header.consumer_group)
    if group is None:
        group = ensure_group(state, header.consumer_group, now_ms, outputs)
    topic = state.topics.get(header.topic)
    refused = _check_group(header, group) or _check_topic(header, topic, peer)
    if refused is not None:
        return [*outputs, Reply(refused)]
    assert group is not None
    assert topic is not None
    hashes = _filter_of(state, header, group)
    if isinstance(hashes, Command):
        return [*outputs, Reply(hashes)]
    name = (header.consumer_group, header.topic, header.queue_id)
    if header.sys_flag & _COMMIT_OFFSET and not state.offsets.is_reset(*name):
        state.offsets.commit(*name, header.commit_offset)
    found = _read(state, header, hashes)
    may_wait = (
        found.code == _NOT_FOUND
        and header.sys_flag & _SUSPEND
        and header.suspend_timeout_millis > 0
        and not request.is_oneway
    )
    if may_wait and _hold(state, request, header, peer, hashes, now_ms):
        return outputs
    return [*outputs, Reply(_answer(state, header, topic, group, found))]


def _hold(
    state: BrokerState,
    request: Command,
    header: PullRequest,
    peer: Peer,
    hashes: frozenset[int] | None,
    now_ms: int,
) -> bool:
    """Hold a pull, without the parts of the request that its answer does not need."""
    until_ms = now_ms + header.suspend_timeout_millis
    if not state.held_pulls.hold(HeldPull(request, header, peer, hashes, until_ms)):
        return False
    state.statistics.pulls_missed += 1
    request.fields, request.body, header.subscription = {}, b"", None
    return True


# ---- checks ------------------------------------------------------------------------------------


def _check_group(header: PullRequest, group: GroupConfig | None) -> Command | None:
    if group is None:
        remark = f"subscription group [{header.consumer_group}] does not exist, {FAQ}"
        return refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not group.consume_enable:
        remark = f"subscription group no permission, {header.consumer_group}"
        return _forbidden(remark, _FORBIDDEN_GROUP)
    return None


def _check_topic(header: PullRequest, topic: TopicConfig | None, peer: Peer) -> Command | None:
    if topic is None:
        remark = f"topic[{header.topic}] not exist, apply first please! {FAQ}"
        return refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
    if not topic.perm & READ:
        remark = f"the topic[{header.topic}] pulling message is forbidden"
        return _forbidden(remark, _FORBIDDEN_TOPIC)
    if not 0 <= header.queue_id < topic.read_queue_nums:
        remark = (
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer.address}]"
        )
        return refusal(ResponseCode.INVALID_PARAMETER, remark)
    return None


def _check_reading(state: BrokerState, header: PullRequest) -> Command | None:
    """Refuse a group that must not read this topic; a pull with its own subscription may."""
    group, topic = header.consumer_group, header.topic
    if header.sys_flag & _SUBSCRIPTION or not state.groups.is_forbidden(group, topic):
        return None
    remark = f"the consumer group[{group}] is forbidden for topic[{topic}]"
    return _forbidden(remark, _FORBIDDEN_SUBSCRIPTION)


def _pulling_forbidden(state: BrokerState) -> Command:
    remark = f"the broker[{state.host.host}] pulling message is forbidden"
    return _forbidden(remark, _FORBIDDEN_BROKER)


def _forbidden(remark: str, kind: str) -> Command:
    command = refusal(ResponseCode.NO_PERMISSION, remark)
    command.fields = {"forbiddenType": kind}
    return command


def _filter_of(
    state: BrokerState, header: PullRequest, group: GroupConfig
) -> frozenset[int] | Command | None:
    """Return the tag hashes that a pull matches, None for all, or the refusal."""
    if header.sys_flag & _SUBSCRIPTION:
        return _hashes_of(header.subscription, header.expression_type)
    members = state.clients.consumer_group(header.consumer_group)
    if members is None:
        remark = f"the consumer's group info not exist{FAQ}"
        return refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    if not group.consume_broadcast_enable and members.model == "BROADCASTING":
        remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
        return _forbidden(remark, _FORBIDDEN_BROADCAST)
    refused = _check_reading(state, header)
    if refused is not None:
        return refused
    subscription = members.subscription(header.topic)
    if subscription is None:
        remark = f"the consumer's subscription not exist{FAQ}"
        return refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    if subscription.sub_version < header.sub_version:
        remark = "the consumer's subscription not latest"
        return refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
    return _hashes_of(subscription.sub_string, subscription.expression_type)


def _hashes_of(expression: str | None, kind: str | None) -> frozenset[int] | Command | None:
    if kind not in (None, "", "TAG"):
        remark = f"The broker does not support consumer to filter message by {kind}"
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
    if not expression or expression == "*":
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    hashes = frozenset([tag_hash(tag) for tag in tags if tag])
    if not hashes:
        remark = "parse the consumer's subscription failed"
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
    return hashes


# ---- reading -----------------------------------------------------------------------------------


def _read(state: BrokerState, header: PullRequest, hashes: frozenset[int] | None) -> _Found:
    """Read a queue from the requested offset on."""
    reset = state.offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
    if reset is not None:
        return _Found(_MOVED, "OFFSET_RESET", reset)
    queue = state.store.queue(header.topic, header.queue_id)
    offset, low, high = header.queue_offset, queue.min_offset, queue.max_offset
    if high == 0:
        code = _NOT_FOUND if offset == 0 else _MOVED
        return _Found(code, "NO_MESSAGE_IN_QUEUE", 0)
    if offset < low:
        return _Found(_MOVED, "OFFSET_TOO_SMALL", low)
    if offset == high:
        return _Found(_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset)
    if offset > high:
        return _Found(_MOVED, "OFFSET_OVERFLOW_BADLY", high)
    count_max, bytes_max = _limits(state.options, header)
    if hashes is None:
        count, parts = state.store.read_range(queue.numbers(offset, count_max), bytes_max)
        next_offset = offset + (count or min(count_max, high - offset))
    else:
        taken, next_offset = _matching(state, header, hashes, count_max, bytes_max)
        if not taken:
            return _Found(_RETRY, "NO_MATCHED_MESSAGE", next_offset)
        count, parts = state.store.read_range([unit for _, unit in taken], bytes_max)
        if 0 < count < len(taken):
            next_offset = taken[count][0]
    if not count:
        return _Found(_RETRY, "MESSAGE_WAS_REMOVING", next_offset)
    return _Found(_FOUND, "FOUND", next_offset, b"".join(parts), count)


def _limits(options: BrokerOptions, header: PullRequest) -> tuple[int, int]:
    """Return the maximum number of messages and of bytes in an answer."""
    count_max = min(header.max_msg_nums, options.bulk_pull_messages_max)
    bytes_max = min(header.max_msg_bytes or 0, options.bulk_pull_bytes_max)
    if count_max > options.pull_messages_max and bytes_max > options.pull_bytes_max:
        return count_max, bytes_max
    return min(max(header.max_msg_nums, 1), options.pull_messages_max), options.pull_bytes_max


def _matching(
    state: BrokerState,
    header: PullRequest,
    hashes: frozenset[int],
    count_max: int,
    bytes_max: int,
) -> tuple[list[tuple[int, Numbers]], int]:
    """Return offsets and units whose tags a filter matches, and the offset after the last examined.

    The count is within its limit; the bytes may exceed theirs.
    """
    queue = state.store.queue(header.topic, header.queue_id)
    taken: list[tuple[int, Numbers]] = []
    offset = header.queue_offset
    end = min(offset + _EXAMINED_MAX, queue.max_offset)
    step, total = count_max, 0  # one step is enough if the filter matches everything
    while offset < end and len(taken) < count_max and total <= bytes_max:
        step = min(step, _EXAMINED_STEP, end - offset)
        units = enumerate(queue.numbers(offset, step), offset)
        found = [(number, unit) for number, unit in units if unit[2] in hashes]
        taken += found
        total += sum([unit[1] for _, unit in found])
        offset += step
        step *= 2
    if len(taken) >= count_max:
        del taken[count_max:]
        offset = taken[-1][0] + 1
    return taken, offset


def _answer(
    state: BrokerState, header: PullRequest, topic: TopicConfig, group: GroupConfig, found: _Found
) -> Command:
    queue = state.store.queue(header.topic, header.queue_id)
    if found.message_count:
        state.statistics.consumed(
            header.consumer_group,
            header.topic,
            found.message_count,
            len(found.body),
            header.queue_id,
            found.next_offset,
        )
    else:
        state.statistics.pulls_missed += 1
    fields = {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": str(group.group_sys_flag or 0),
        "nextBeginOffset": str(found.next_offset),
        "maxOffset": str(queue.max_offset),
        "minOffset": str(queue.min_offset),
        "topicSysFlag": str(topic.topic_sys_flag),
    }
    return Command(found.code, fields, found.body, found.status)


# ---- held pulls --------------------------------------------------------------------------------


def wake(state: BrokerState, record: Record, now_ms: int) -> list[Output]:
    """Answer the held pulls of a queue that got a record, and maybe more after it."""
    queue = (record.topic, record.queue_id)
    if queue not in state.held_pulls:
        return []
    units = state.store.queue(*queue).walk(record.queue_offset)
    hashes = {unit.tag_hash for unit in units}
    return _answer_all(state, state.held_pulls.wake(queue, hashes), now_ms)


def answer_held(state: BrokerState, now_ms: int) -> list[Output]:
    """Answer held pulls whose time is over; every few seconds also those whose queue grew."""
    outputs = _answer_all(state, state.held_pulls.expired(now_ms), now_ms)
    if now_ms - state.held_pulls.checked_ms >= _RECHECK_MS:
        state.held_pulls.checked_ms = now_ms
        moved = state.held_pulls.take_if(lambda pull: _is_moved(state, pull.header))
        outputs += _answer_all(state, moved, now_ms)
    return outputs


def _is_moved(state: BrokerState, header: PullRequest) -> bool:
    """Whether a queue no longer ends at the offset of a pull, was reset for it or deleted."""
    if state.topics.get(header.topic) is None:
        return True
    if state.offsets.is_reset(header.consumer_group, header.topic, header.queue_id):
        return True
    return state.store.queue(header.topic, header.queue_id).max_offset != header.queue_offset


def answer_all_held(state: BrokerState, now_ms: int) -> list[Output]:
    """Answer all held pulls, with messages or without: the broker stops."""
    return _answer_all(state, state.held_pulls.all(), now_ms)


def _answer_all(state: BrokerState, pulls: list[HeldPull], now_ms: int) -> list[Output]:
    outputs: list[Output] = []
    for pull in pulls:
        try:
            command = _read_for_held(state, pull, now_ms)
        except RocketMQError as error:  # concerns only this pull
            command = refusal(ResponseCode.SYSTEM_ERROR, str(error))
        outputs.append(LateReply(pull.peer.number, pull.request, command))
    return outputs


def _read_for_held(state: BrokerState, pull: HeldPull, now_ms: int) -> Command:
    """Return the answer to a held pull: checks are repeated, its offset and filter are kept."""
    if not state.accepts_pulls:
        return _pulling_forbidden(state)
    header = pull.header
    group = state.groups.get_or_create(header.consumer_group, state.options, now_ms)
    topic = state.topics.get(header.topic)
    refused = _check_group(header, group) or _check_topic(header, topic, pull.peer)
    refused = refused or _check_reading(state, header)
    if refused is not None:
        return refused
    assert group is not None
    assert topic is not None
    return _answer(state, header, topic, group, _read(state, header, pull.tag_hashes))


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.PULL_MESSAGE): _pull,
    int(RequestCode.LITE_PULL_MESSAGE): _pull,
}
