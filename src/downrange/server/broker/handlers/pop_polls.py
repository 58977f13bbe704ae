"""Long polling of pops and notifications: hold them, and serve them when there are messages.

A held request is tried again when a message arrives for it, when a queue that is popped in order
becomes free, and once more when its time is over. `pop/held_pops.py` keeps them, and says how much
they may search by filters.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.server.broker.pop.held_pops import ALL_QUEUES, HeldPop
from downrange.server.broker.pop.pop_plan import retry_topics
from downrange.server.broker.record_scan import COMPARED_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.server.broker.message_filter import MessageFilter
    from downrange.server.broker.pop.held_pops import Place
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output, Peer
    from downrange.wire.command import Command
    from downrange.wire.pop_headers import NotificationRequest, PopRequest
    from downrange.wire.records import Record

#: How many held pops of one requested queue may be tried in vain at a time. The others would hardly
#: find more; their filters or attempt ids would have to differ.
_MISSES_MAX: Final = 16


def hold(
    state: BrokerState,
    request: Command,
    header: PopRequest | NotificationRequest,
    peer: Peer,
    wanted: MessageFilter,
    attempt: Callable[[int], Sequence[Output] | None],
    give_up: Callable[[int], Sequence[Output]],
    now_ms: int,
) -> bool:
    """Hold a request, without the parts that its answer does not need.

    Args:
        state: The broker.
        request: The request.
        header: Its fields.
        peer: Who asked.
        wanted: Its filter.
        attempt: See `HeldPop.retry`.
        give_up: See `HeldPop.give_up`.
        now_ms: The time.

    Returns:
        False if there are too many.
    """
    place = topic, group = header.topic, header.consumer_group
    until_ms, is_filtered = now_ms + header.poll_time, not wanted.is_all
    held = HeldPop(
        place, header.queue_id, peer, until_ms, attempt, give_up, is_filtered=is_filtered
    )
    topics = [topic] if header.order else [topic, *(name for _, name in retry_topics(topic, group))]
    if not state.held_pops.hold(held, topics):
        return False
    request.fields, request.body, header.exp = {}, b"", None
    if header.order:
        _wake_when_free(state, place, now_ms)
    return True


def _wake_when_free(state: BrokerState, place: Place, now_ms: int) -> None:
    """Serve a place when the first of its blocked queues becomes free."""
    config = state.topics.get(place[0])
    queue_ids = range(0 if config is None else config.read_queue_nums)
    orders = [state.orders.get((*place, queue_id)) for queue_id in queue_ids]
    times = [order.blocked_until_ms() for order in orders if order is not None]
    wake_ms = min((time_ms for time_ms in times if time_ms > now_ms), default=None)
    if wake_ms is not None:
        state.held_pops.wake_at(place, wake_ms)


def wake(state: BrokerState, record: Record, now_ms: int) -> list[Output]:
    """Serve the held pops that a stored record may concern."""
    outputs: list[Output] = []
    for place in state.held_pops.places_of(record.topic):
        if state.held_pops.is_searching(place):  # its turn comes in a tick
            continue
        is_own = record.topic == place[0]
        outputs += serve(state, place, record.queue_id if is_own else None, now_ms)
    return outputs


def serve(state: BrokerState, place: Place, queue_id: int | None, now_ms: int) -> list[Output]:
    """Try held pops of a place again, in order, as long as there are messages.

    Args:
        state: The broker.
        place: Topic and group.
        queue_id: The queue that has a new message or is free again; None for any.
        now_ms: The time.
    """
    outputs: list[Output] = []
    misses: dict[int, int] = {}  # by requested queue: one may be free while others are blocked
    for held in state.held_pops.at(place):
        if queue_id is not None and held.queue_id not in (queue_id, ALL_QUEUES):
            continue
        missed = misses.get(held.queue_id, 0)
        if missed > _MISSES_MAX:
            continue
        found = _retry(state, held, now_ms)
        if found is None:
            if state.held_pops.is_searching(place):  # it goes on in a later tick
                break
            misses[held.queue_id] = missed + 1
            continue
        state.held_pops.remove(held)
        outputs += found
    return outputs


def serve_when_free(
    state: BrokerState, place: tuple[str, str, int], now_ms: int
) -> Sequence[Output]:
    """Serve the held pops of a queue whose block has changed: now, or when it ends."""
    topic, group, queue_id = place
    order = state.orders.get(place)
    if order is not None and order.blocked_until_ms() > now_ms:
        state.held_pops.wake_at((topic, group), order.blocked_until_ms())
        return ()
    return serve(state, (topic, group), queue_id, now_ms)


def answer_held(state: BrokerState, now_ms: int) -> list[Output]:
    """Go on with searches; answer held pops whose queue is free again, or whose time is over."""
    outputs: list[Output] = []
    held_pops = state.held_pops
    held_pops.comparisons_left = COMPARED_MAX
    for place in chain(held_pops.turns(), held_pops.woken(now_ms)):
        outputs += serve(state, place, None, now_ms)
        _wake_when_free(state, place, now_ms)
    for held in held_pops.expired(now_ms):
        outputs += _retry(state, held, now_ms) or held.give_up(now_ms)
    state.orders.forget_old(now_ms)
    held_pops.comparisons_left = COMPARED_MAX  # for the messages until the next tick
    return outputs


def answer_all_held(state: BrokerState, now_ms: int) -> list[Output]:
    """Answer all held pops without messages: the broker stops."""
    return [output for held in state.held_pops.all() for output in held.give_up(now_ms)]


def _retry(state: BrokerState, held: HeldPop, now_ms: int) -> Sequence[Output] | None:
    """Try a request again, or let its place join the line if no search may begin now.

    One that fails is answered without messages, the others go on.
    """
    if held.is_filtered and state.held_pops.comparisons_left <= 0:
        state.held_pops.search_on(held.place)
        return None
    try:
        return held.retry(now_ms)
    except (RocketMQError, OSError):  # the next request of this consumer reports it
        return held.give_up(now_ms)
