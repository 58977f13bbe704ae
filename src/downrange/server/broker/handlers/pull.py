"""Pulls: read a queue from an offset on, at once or as soon as a message arrives.

    11 361   group, topic, queue and offset, count, bytes, `sysFlag` (commit, suspend,
             subscription), commit offset, suspend time, subscription text and version

Checked in Apache's order (Java: PullMessageProcessor): the broker's permission, group,
topic, queue, subscription. The state of the queue decides the code and the next offset: see the
table of `_Found`. A filter by tags compares the hashes in the units of the queue; an SQL92 filter
reads the records (`record_scan`). Both examine a limited number of messages per pull, and answer 20
with the next offset if none matches. A pull that finds no message and may wait is held. It is
answered when a message arrives that its filter matches, or when its time is over.
After a reset of the group's offset (222), the next pull of the queue commits nothing and gets the
new offset (21, OFFSET_RESET). Pulls of the group that are held then are answered at once with 20,
and do not count as the next one: see `answer_reset`. So are held pulls with the filter of a
subscription when it changes: see `answer_refiltered`.

An answer keeps to Apache's limits: 32 messages, whatever `maxMsgBytes` says. A pull that asks for
more messages and more bytes than these limits gets both; our own readers of whole topics do so.

Skipped on purpose: class filters (23), slaves (a master suggests itself).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import RocketMQError
from downrange.server.broker.handlers.answers import ensure_group
from downrange.server.broker.held_pulls import HeldPull
from downrange.server.broker.message_filter import filter_of_expression, filter_of_subscription
from downrange.server.broker.record_scan import COMPARED_MAX, examined_max, scan, scan_tags
from downrange.server.broker.tables.topic_table import READ
from downrange.server.outputs import HELD, LateReply, Output, Peer, Reply, refusal
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import PullRequest
from downrange.wire.system_names import FAQ

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from downrange.options import BrokerOptions
    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.message_filter import MessageFilter
    from downrange.server.broker.record_scan import Condition, Scan
    from downrange.server.broker.state import BrokerState
    from downrange.wire.bodies import GroupConfig, TopicConfig
    from downrange.wire.records import Record

_COMMIT_OFFSET: Final = 0x1
_SUSPEND: Final = 0x2
_SUBSCRIPTION: Final = 0x4
_FORBIDDEN_BROKER: Final = "1"
_FORBIDDEN_GROUP: Final = "2"
_FORBIDDEN_TOPIC: Final = "3"
_FORBIDDEN_SUBSCRIPTION: Final = "5"
#: How often held pulls are compared with their queues, which grow by messages of other tags.
_RECHECK_MS: Final = 5_000
#: How many of them with SQL92 filters are compared per tick. See also `_Searches`.
_SQL_CHECKED_MAX: Final = 16

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
    message_filter = _filter_of(state, header, group)
    if isinstance(message_filter, Command):
        return [*outputs, Reply(message_filter)]
    found = _read_after_reset(state, header) or _read(state, header, message_filter)
    may_wait = (
        found.code == _NOT_FOUND
        and header.sys_flag & _SUSPEND
        and header.suspend_timeout_millis > 0
        and not request.is_oneway
    )
    if may_wait and _hold(state, request, header, peer, message_filter, now_ms):
        return [*outputs, HELD]
    return [*outputs, Reply(_answer(state, header, topic, group, found))]


def _hold(
    state: BrokerState,
    request: Command,
    header: PullRequest,
    peer: Peer,
    message_filter: MessageFilter,
    now_ms: int,
) -> bool:
    """Hold a pull, without the parts of the request that its answer does not need."""
    until_ms = now_ms + header.suspend_timeout_millis
    if not state.held_pulls.hold(HeldPull(request, header, peer, message_filter, until_ms)):
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
) -> MessageFilter | Command:
    """Return the filter that a pull brings along or that its group subscribed, or the refusal."""
    if header.sys_flag & _SUBSCRIPTION:
        return filter_of_expression(state, header.subscription, header.expression_type)
    return _check_reading(state, header) or filter_of_subscription(
        state, group, header.topic, header.sub_version
    )


# ---- reading -----------------------------------------------------------------------------------


def _read_after_reset(state: BrokerState, header: PullRequest) -> _Found | None:
    """Return the offset to which the group was reset; if it was not, commit what the pull asks."""
    name = (header.consumer_group, header.topic, header.queue_id)
    reset = state.offsets.take_reset(*name)
    if reset is not None:
        return _Found(_MOVED, "OFFSET_RESET", reset)
    if header.sys_flag & _COMMIT_OFFSET:
        state.offsets.commit(*name, header.commit_offset)
    return None


def _read(state: BrokerState, header: PullRequest, message_filter: MessageFilter) -> _Found:
    """Read a queue from the requested offset on."""
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
    hashes, expression = message_filter
    if expression is not None:
        return _read_by_sql(state, header, expression, count_max, bytes_max)
    if hashes is None:
        count, parts = state.store.read_range(queue.packed(offset, count_max), bytes_max)
        next_offset = offset + (count or min(count_max, high - offset))
    else:
        offsets, units, next_offset = scan_tags(queue, offset, hashes, count_max, bytes_max)
        if not offsets:
            return _Found(_RETRY, "NO_MATCHED_MESSAGE", next_offset)
        count, parts = state.store.read_range(units, bytes_max)
        if 0 < count < len(offsets):
            next_offset = offsets[count]
    if not count:
        return _Found(_RETRY, "MESSAGE_WAS_REMOVING", next_offset)
    return _Found(_FOUND, "FOUND", next_offset, b"".join(parts), count)


def _read_by_sql(
    state: BrokerState,
    header: PullRequest,
    expression: Condition,
    count_max: int,
    bytes_max: int,
) -> _Found:
    queue = state.store.queue(header.topic, header.queue_id)
    found, next_offset, is_removed = scan(
        state.store, queue, header.queue_offset, expression, count_max, bytes_max
    )
    if found:
        body = b"".join([record for _, record in found])
        return _Found(_FOUND, "FOUND", next_offset, body, len(found))
    status = "MESSAGE_WAS_REMOVING" if is_removed else "NO_MATCHED_MESSAGE"
    return _Found(_RETRY, status, next_offset)


def _limits(options: BrokerOptions, header: PullRequest) -> tuple[int, int]:
    """Return the maximum number of messages and of bytes in an answer."""
    count_max = min(header.max_msg_nums, options.bulk_pull_messages_max)
    bytes_max = min(header.max_msg_bytes or 0, options.bulk_pull_bytes_max)
    if count_max > options.pull_messages_max and bytes_max > options.pull_bytes_max:
        return count_max, bytes_max
    return min(max(header.max_msg_nums, 1), options.pull_messages_max), options.pull_bytes_max


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
    outputs = _answer_all(state, state.held_pulls.wake(queue, hashes), now_ms)
    if queue in state.held_pulls:  # by tags that are not among the new ones, or by SQL92
        matched = _matched_by_sql(state, queue, record.queue_offset)
        outputs += _answer_all(state, state.held_pulls.take(matched), now_ms)
    return outputs


def _matched_by_sql(state: BrokerState, queue: tuple[str, int], offset: int) -> list[HeldPull]:
    """Return the held pulls whose SQL92 filter matches one of the new messages of a queue.

    The others remember that they were compared with the new messages. Those that were not compared
    with all of them, because there are so many or one cannot be read, are returned too: their
    clients go on. All pulls together make a limited number of comparisons; those beyond it are left
    to `answer_held`.
    """
    index = state.store.queue(*queue)
    searches: dict[Condition, Scan] = {}  # pulls of one group have the same expression
    matched: list[HeldPull] = []
    compared = 0
    for pull in state.held_pulls.filtered_by_sql(queue):
        expression = pull.message_filter.sql
        assert expression is not None
        if expression not in searches:
            if compared >= COMPARED_MAX:
                continue
            try:
                found = scan(state.store, index, offset, expression, 1, 0)
            except (RocketMQError, OSError):  # the answer says why
                matched.append(pull)
                continue
            compared += (found.next_offset - offset) * max(expression.terms, 1)
            searches[expression] = found
        search = searches[expression]
        if search.found or search.next_offset < index.max_offset:
            matched.append(pull)
        if not search.found and pull.next_offset == offset:
            pull.next_offset = search.next_offset
    return matched


class _Searches:
    """The searches by SQL92 of one tick: all of them make a limited number of comparisons.

    The last one may exceed it. Most held pulls need none, because `wake` has compared them.

    Args:
        state: The broker.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._comparisons_left = COMPARED_MAX

    def begin(self, pull: HeldPull) -> bool:
        """Count the search for a held pull; return False if it must not be made in this tick."""
        expression = pull.message_filter.sql
        if expression is None or self._state.topics.get(pull.header.topic) is None:
            return True
        count = self._state.store.queue(*pull.queue).max_offset - pull.next_offset
        if count > 0 and self._comparisons_left <= 0:
            return False
        examined = min(max(count, 0), examined_max(expression))
        self._comparisons_left -= examined * max(expression.terms, 1)
        return True


def answer_held(state: BrokerState, now_ms: int) -> list[Output]:
    """Answer held pulls whose time is over; every few seconds also those whose queue grew.

    If their searches are too many for one tick, the client of a pull whose time is over goes on
    with a pull of its own, and the other pulls wait for the next tick.
    """
    searches = _Searches(state)
    outputs: list[Output] = [
        _answer_late(state, pull, now_ms, is_read=searches.begin(pull))
        for pull in state.held_pulls.expired(now_ms)
    ]
    if now_ms - state.held_pulls.checked_ms >= _RECHECK_MS:
        moved = _MovedPulls(state, searches)
        outputs += _answer_all(state, state.held_pulls.take_if(moved), now_ms)
        if not moved.is_any_left:
            state.held_pulls.checked_ms = now_ms  # else the next tick continues
    return outputs


class _MovedPulls:
    """A function that picks pulls whose queue grew, but only some with SQL92 filters.

    Args:
        state: The broker.
        searches: Of this tick.

    Attributes:
        is_any_left: Whether a pull whose queue grew was not picked.
    """

    def __init__(self, state: BrokerState, searches: _Searches) -> None:
        self.is_any_left = False
        self._state = state
        self._searches = searches
        self._sql_left = _SQL_CHECKED_MAX

    def __call__(self, pull: HeldPull) -> bool:
        if not _is_moved(self._state, pull.header):
            return False
        if pull.message_filter.sql is None:
            return True
        if not self._sql_left or not self._searches.begin(pull):
            self.is_any_left = True
            return False
        self._sql_left -= 1
        return True


def _is_moved(state: BrokerState, header: PullRequest) -> bool:
    """Whether a queue no longer ends at the offset of a pull, or was deleted."""
    if state.topics.get(header.topic) is None:
        return True
    return state.store.queue(header.topic, header.queue_id).max_offset != header.queue_offset


def answer_reset(
    state: BrokerState, group: GroupConfig, topic: TopicConfig, queue_ids: Iterable[int]
) -> list[Output]:
    """Tell a group that was reset to pull again, where its pulls are held.

    A held pull itself does not learn of the reset, which is told once. It may be that of a member
    that has lost the queue, or gives it up, and drops the answer. The owner of the queue pulls
    again, and learns of it then. Apache's brokers tell the held pull, when its time is over.
    """
    return [
        _pull_again(state, pull, group, topic)
        for queue_id in queue_ids
        for pull in state.held_pulls.take_group((topic.topic_name, queue_id), group.group_name)
    ]


def answer_refiltered(state: BrokerState, group_name: str, topic_name: str) -> list[Output]:
    """Tell a group whose subscription to a topic changed to pull again, where its pulls are held.

    They have the filter before, unless they brought their own. Apache's brokers go on with it, and
    read with the new one when a message matches the old one, or after up to five seconds.
    """
    group, topic = state.groups.get(group_name), state.topics.get(topic_name)
    if group is None or topic is None:
        return []
    return [
        _pull_again(state, pull, group, topic)
        for queue_id in range(topic.read_queue_nums)
        for pull in state.held_pulls.take(
            [
                each
                for each in state.held_pulls.of_group((topic_name, queue_id), group_name)
                if not each.header.sys_flag & _SUBSCRIPTION
            ]
        )
    ]


def _pull_again(
    state: BrokerState, pull: HeldPull, group: GroupConfig, topic: TopicConfig
) -> LateReply:
    """Return the answer to a held pull after which the client pulls again."""
    found = _Found(_RETRY, "NO_MATCHED_MESSAGE", pull.next_offset)
    answer = _answer(state, pull.header, topic, group, found)
    return LateReply(pull.peer.number, pull.request, answer)


def answer_all_held(state: BrokerState, now_ms: int) -> list[Output]:
    """Answer all held pulls, with messages or without: the broker stops."""
    return _answer_all(state, state.held_pulls.all(), now_ms)


def _answer_all(state: BrokerState, pulls: list[HeldPull], now_ms: int) -> list[Output]:
    return [_answer_late(state, pull, now_ms) for pull in pulls]


def _answer_late(
    state: BrokerState, pull: HeldPull, now_ms: int, *, is_read: bool = True
) -> LateReply:
    """Answer a held pull with what its queue has, or, unread, with the offset to go on with."""
    try:
        command = _read_for_held(state, pull, now_ms, is_read=is_read)
    except (RocketMQError, OSError) as error:  # concerns only this pull
        command = refusal(ResponseCode.SYSTEM_ERROR, str(error))
    return LateReply(pull.peer.number, pull.request, command)


def _read_for_held(state: BrokerState, pull: HeldPull, now_ms: int, *, is_read: bool) -> Command:
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
    was_examined = header.queue_offset < pull.next_offset
    header.queue_offset = pull.next_offset
    if not is_read:
        unread = _Found(_RETRY, "NO_MATCHED_MESSAGE", pull.next_offset)
        return _answer(state, header, topic, group, unread)
    found = _read(state, header, pull.message_filter)
    if was_examined and found.code == _NOT_FOUND:
        found = found._replace(code=_RETRY, status="NO_MATCHED_MESSAGE")
    return _answer(state, header, topic, group, found)


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.PULL_MESSAGE): _pull,
    int(RequestCode.LITE_PULL_MESSAGE): _pull,
}
