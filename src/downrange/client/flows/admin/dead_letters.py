"""Dead letters: messages that a group failed to consume too often. List them, send them again.

A dead letter stays where it is: brokers cannot delete or change one message. So the message that is
sent again carries the mark. Its unique id is made of the dead letter's position, and is the same in
every run. A later run looks for this id in the index of the target topic, and skips what is there.
The property `RESENT_DEAD_LETTER` names the dead letter (docs/decisions/0024).

Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from downrange.checks import (
    check_between,
    check_flag,
    check_name,
    check_number,
    check_one_of,
    check_type,
    iterated,
)
from downrange.client.flows.admin.groups import group_settings
from downrange.client.flows.admin.messages import view_message
from downrange.client.flows.admin.reports import DeadLetterPage, DeadMessage, Resent
from downrange.client.flows.consuming.offsets import min_offset, ms_of, search_offset
from downrange.client.flows.consuming.pull import PullStatus, pull
from downrange.client.flows.effects import Flow, Pause
from downrange.client.flows.names import (
    named_queue,
    with_namespace,
    without_namespace,
)
from downrange.client.flows.routing.lookup import (
    ask_route,
    find_target,
    publish_queues,
    read_queues,
)
from downrange.client.flows.routing.selectors import by_hash
from downrange.client.flows.validation import RESERVED_PROPERTIES, check_group
from downrange.errors import NotFound, OptionError, RocketMQError, RouteNotFound
from downrange.wire.codes import ResponseCode
from downrange.wire.compression import flags_named
from downrange.wire.fields import request_command
from downrange.wire.headers import SendRequestV2
from downrange.wire.limits import INT32_MAX
from downrange.wire.properties import PropertyKey, encode_properties
from downrange.wire.system_names import (
    DEFAULT_TOPIC,
    TOOLS_GROUP,
    dead_letter_topic,
    retry_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.client_core import ClientCore
    from downrange.model import QueueId, ReceivedMessage

#: Where a dead letter goes: to the topic that it was sent to, for all groups that read it; or to
#: the retry topic of its group, for this group only.
ResendTarget: TypeAlias = Literal["topic", "retry"]
#: The property that names the dead letter of a message that was sent again, by its offset id.
RESENT_MARK: Final = "RESENT_DEAD_LETTER"
#: Properties of the protocol that a message keeps when it is sent again.
_KEPT: Final = frozenset(
    {
        PropertyKey.KEYS.value,
        PropertyKey.TAGS.value,
        PropertyKey.SHARDING_KEY.value,
        PropertyKey.ORIGIN_MESSAGE_ID.value,
    }
)
_DROPPED: Final = (RESERVED_PROPERTIES | {key.value for key in PropertyKey}) - _KEPT
#: The codes with which a broker says that it has stored a message.
_STORED: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.FLUSH_DISK_TIMEOUT),
        int(ResponseCode.SLAVE_NOT_AVAILABLE),
        int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
    }
)
#: By how much the clocks of two brokers may differ.
_SKEW: Final = timedelta(hours=1)
_PULL_COUNT: Final = 32


# ---- reading -------------------------------------------------------------------------------------


def dead_letters(
    core: ClientCore,
    group: str,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
    after: Mapping[QueueId, int] | None = None,
    max_count: int = 100,
    decode_body: bool = True,
    deadline: float,
) -> Flow[DeadLetterPage]:
    """Return a page of the dead letters of a group, by queue and offset.

    Args:
        core: The client.
        group: The group.
        begin: Only those that died at this time or later.
        end: Only those that died at this time or earlier.
        after: Where to go on: `next` of the page before.
        max_count: Most dead letters of a page.
        decode_body: Whether to decompress the bodies.
        deadline: When to give up.

    Raises:
        GroupNotFound: No broker has the group.
        RouteNotFound: The dead-letter topic cannot be read.
        RocketMQError: A broker did not answer.
    """
    check_group(group)
    check_between(1, INT32_MAX, "max_count", max_count)
    check_flag("decode_body", decode_body)
    end_ms = None if end is None else ms_of("end", end)
    begin_ms = 0 if begin is None else ms_of("begin", begin)
    if after is not None:
        check_type("after", after, Mapping, "`next` of the page before")
    topic = dead_letter_topic(group)
    name = with_namespace(topic, core.options.namespace)
    if (yield from ask_route(core, name, deadline)) is None:
        yield from group_settings(core, group, deadline=deadline)
        return DeadLetterPage(group=group)
    letters: list[DeadMessage] = []
    following: dict[QueueId, int] = {}
    is_complete = True
    for queue in (yield from read_queues(core, topic, deadline=deadline)):
        start = yield from _first_offset(core, queue, begin, after, deadline)
        room = max_count - len(letters)
        found, following[queue], is_read = yield from _read_queue(
            core, queue, start, (begin_ms, end_ms), room, decode_body, deadline
        )
        letters += [_letter(core, group, message) for message in found]
        is_complete = is_complete and is_read
    return DeadLetterPage(
        group=group, letters=tuple(letters), next=following, is_complete=is_complete
    )


def _first_offset(
    core: ClientCore,
    queue: QueueId,
    begin: datetime | None,
    after: Mapping[QueueId, int] | None,
    deadline: float,
) -> Flow[int]:
    if after is not None and queue in after:
        return after[queue]
    if begin is not None:
        return (yield from search_offset(core, queue, begin, deadline=deadline))
    return (yield from min_offset(core, queue, deadline=deadline))


def _read_queue(
    core: ClientCore,
    queue: QueueId,
    offset: int,
    times: tuple[int, int | None],
    room: int,
    decode_body: bool,
    deadline: float,
) -> Flow[tuple[list[ReceivedMessage], int, bool]]:
    """Return messages from an offset on, the next offset, and whether these were all.

    A 4.9 broker finds the message nearest to a time, which may be older than `times` begin.
    """
    begin_ms, end_ms = times
    found: list[ReceivedMessage] = []
    while True:
        batch = yield from pull(
            core,
            queue,
            offset,
            group=TOOLS_GROUP,
            max_count=min(max(room - len(found), 1), _PULL_COUNT),
            decode_body=decode_body,
            deadline=deadline,
        )
        for message in batch.messages:
            if end_ms is not None and message.stored_at_ms > end_ms:
                return found, message.offset, True
            if len(found) == room:
                return found, message.offset, False
            if message.stored_at_ms >= begin_ms:
                found.append(message)
        offset = batch.next_offset
        if batch.status is PullStatus.NO_NEW:
            return found, offset, True


def _letter(core: ClientCore, group: str, message: ReceivedMessage) -> DeadMessage:
    properties = message.properties
    topic = properties.get(PropertyKey.DEAD_LETTER_ORIGIN_TOPIC) or properties.get(
        PropertyKey.RETRY_TOPIC
    )
    return DeadMessage(
        group=group,
        message=message,
        topic=None if topic is None else without_namespace(topic, core.options.namespace),
        origin_id=_origin_id(message),
    )


def _origin_id(message: ReceivedMessage) -> str:
    properties = message.properties
    return (
        properties.get(PropertyKey.ORIGIN_MESSAGE_ID)
        or properties.get(PropertyKey.DEAD_LETTER_ORIGIN_MESSAGE_ID)
        or message.message_id
    )


# ---- sending again -------------------------------------------------------------------------------


def resend_dead_letters(
    core: ClientCore,
    letters: Iterable[DeadMessage],
    *,
    to: ResendTarget = "topic",
    skip_resent: bool = True,
    rate: float | None = None,
    timeout: float,
) -> Flow[list[Resent]]:
    """Send dead letters again, one after the other; return what became of each.

    Body, keys, tags and own properties stay the same; `ORIGIN_MESSAGE_ID` names the message as it
    was first sent. The number of deliveries starts again.

    Args:
        core: The client.
        letters: The dead letters.
        to: "topic" for the topic they were sent to, "retry" for their group only.
        skip_resent: Leave out those that an earlier run has sent to the same place.
        rate: The most messages per second.
        timeout: For each of them.

    Raises:
        OptionError: An argument is not valid; nothing was sent.
    """
    chosen = list(iterated("letters", letters, "a list of DeadMessage"))
    for letter in chosen:
        check_type("each of letters", letter, DeadMessage, "a DeadMessage of dead_letters()")
    check_one_of("to", to, ("topic", "retry"))
    check_flag("skip_resent", skip_resent)
    if rate is not None:
        check_number("rate", rate, "a number of messages per second")
    if rate is not None and not 0 < rate < float("inf"):
        raise OptionError(f"rate={rate!r} is not a number of messages per second, above 0")
    results: list[Resent] = []
    for letter in chosen:
        started = core.clock.now()
        results.append((yield from _resend(core, letter, to, skip_resent, started + timeout)))
        is_last = len(results) == len(chosen)
        if rate is not None and not is_last and results[-1].outcome != "skipped":
            yield Pause(max(started + 1 / rate - core.clock.now(), 0.0))
    return results


def _resend(
    core: ClientCore, letter: DeadMessage, to: ResendTarget, skip_resent: bool, deadline: float
) -> Flow[Resent]:
    topic = retry_topic(letter.group) if to == "retry" else letter.topic or ""
    result = Resent(letter=letter, outcome="sent", topic=topic, message_id=resent_id(letter))
    if not topic:
        problem = "the message does not name the topic that it was sent to"
        return msgspec.structs.replace(result, outcome="failed", problem=problem)
    try:
        if skip_resent and (yield from _is_resent(core, result, deadline)):
            return msgspec.structs.replace(result, outcome="skipped")
        properties = _properties(core, letter.message, letter.topic if to == "retry" else None)
        properties[RESENT_MARK] = letter.message.offset_id
        properties[PropertyKey.UNIQUE_KEY.value] = result.message_id
        yield from _send(core, topic, letter.message, properties, deadline)
    except RocketMQError as error:
        return msgspec.structs.replace(result, outcome="failed", problem=str(error))
    return result


def resent_id(letter: DeadMessage) -> str:
    """Return the unique id of a dead letter that is sent again: the same in every run.

    It has the form of a producer's ids: 32 upper-case hexadecimal digits. Digits 8 to 11 are not 0,
    so that it is never taken for an offset id, which has a port there.
    """
    origin = f"{letter.group} {letter.message.offset_id}"
    digest = blake2b(origin.encode(), digest_size=16).hexdigest().upper()
    return f"{digest[:8]}FF{digest[10:]}"


def _is_resent(core: ClientCore, result: Resent, deadline: float) -> Flow[bool]:
    since = result.letter.died_at - _SKEW
    try:
        yield from view_message(
            core,
            result.topic,
            result.message_id,
            since=since,
            decode_body=False,
            deadline=deadline,
        )
    except NotFound:
        return False
    return True


def _properties(
    core: ClientCore, message: ReceivedMessage, retried_topic: str | None
) -> dict[str, str]:
    """Return the properties of a message that is sent again; for a retry, with its real topic."""
    kept = {name: value for name, value in message.properties.items() if name not in _DROPPED}
    kept[PropertyKey.ORIGIN_MESSAGE_ID.value] = _origin_id(message)
    if retried_topic is not None:
        named = with_namespace(retried_topic, core.options.namespace)
        kept[PropertyKey.RETRY_TOPIC.value] = named
    return kept


def _send(
    core: ClientCore,
    topic: str,
    message: ReceivedMessage,
    properties: Mapping[str, str],
    deadline: float,
) -> Flow[None]:
    """Store a message in one attempt: a second one could store it twice.

    A body that is still compressed is sent so, with the flags of its format.
    """
    queues = yield from publish_queues(core, topic, deadline=deadline)
    word = properties.get(PropertyKey.SHARDING_KEY) or properties[PropertyKey.UNIQUE_KEY]
    chosen = queues[abs(by_hash(word).hash_code) % len(queues)]
    queue = named_queue(chosen, core.options.namespace)
    target, address = yield from find_target(core, queue, deadline)
    header = SendRequestV2(
        producer_group=TOOLS_GROUP,
        topic=target.topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=len(queues),
        queue_id=target.number,
        sys_flag=flags_named(message.compression),
        born_timestamp=core.clock.wall_ms(),
        flag=message.flag,
        properties=encode_properties(properties),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name=target.broker,
    )
    reply = yield from core.call(address, request_command(header, message.body), deadline)
    if reply.code not in _STORED:
        raise core.refused(reply, address, topic)


def retry_now(
    core: ClientCore, group: str, topic: str, message_id: str, *, deadline: float
) -> Flow[str]:
    """Put a copy of a message into a group's retry topic, so that a member gets it at once.

    The group's offsets do not change, and other groups do not get it. A retry of the message that
    waits for its delay is delivered, too, when it is due: brokers cannot take it back.

    Args:
        core: The client.
        group: The group.
        topic: The topic of the message.
        message_id: Either id of the message.
        deadline: When to give up.

    Returns:
        The unique id of the copy.

    Raises:
        NotFound: There is no such message.
        RouteNotFound: The group has no retry topic: no member was ever connected.
        RocketMQError: A broker did not answer, or refused.
    """
    check_group(group)
    check_name("topic", topic)
    found = yield from view_message(core, topic, message_id, decode_body=False, deadline=deadline)
    origin = found.properties.get(PropertyKey.RETRY_TOPIC) or found.topic
    properties = _properties(core, found, origin)
    new_id = core.unique_ids.make(core.clock.wall_ms())
    properties[PropertyKey.UNIQUE_KEY.value] = new_id
    target = retry_topic(group)
    try:
        yield from _send(core, target, found, properties, deadline)
    except RouteNotFound as error:
        problem = f": no member of group {group!r} was ever connected, so there is none to get it"
        raise RouteNotFound(target, error.addresses, problem) from error
    return new_id


def send_again(core: ClientCore, topic: str, message_id: str, *, deadline: float) -> Flow[str]:
    """Send a copy of a stored message to its topic, where all groups get it.

    Body, keys, tags, sharding key and own properties stay the same; a delay is not repeated.
    `ORIGIN_MESSAGE_ID` names the message that was copied.

    Args:
        core: The client.
        topic: The topic of the message.
        message_id: Either id of the message.
        deadline: When to give up.

    Returns:
        The unique id of the copy.

    Raises:
        NotFound: There is no such message.
        RouteNotFound: There is no such topic, or it cannot be written to.
        RocketMQError: A broker did not answer, or refused.
    """
    check_name("topic", topic)
    found = yield from view_message(core, topic, message_id, decode_body=False, deadline=deadline)
    properties = _properties(core, found, None)
    new_id = core.unique_ids.make(core.clock.wall_ms())
    properties[PropertyKey.UNIQUE_KEY.value] = new_id
    yield from _send(core, topic, found, properties, deadline)
    return new_id
