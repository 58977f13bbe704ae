"""Orders: the last batch of each queue that a group pops in order.

While a message of the batch is neither acknowledged nor visible again, the queue is blocked for the
group. A repeated request, with the same attempt id, gets the batch again. Acknowledging a message
moves the group's committed offset to the first message of the batch that is open; a pop in order
always reads from there. There are no checkpoints and no retry topics: a message that is not
acknowledged stays where it is (Java: QueueLevelConsumerManager). The head, which is the first open
message, becomes a dead letter after too many deliveries (`dead_letters_in_order.py`).

The table is saved in `config/consumerOrderInfo.json`, in Apache's form. Unlike Apache, a reply to a
pop or to an acknowledgement waits until it is saved, so that neither order nor acknowledgement is
lost when the broker is killed:

    {"table": {"<topic>@<group>": {<queue id>: {popTime, i: invisible time,
        o: offsets, the first absolute, the others relative to it,
        ot: when a message becomes visible, by offset, for those whose time was changed,
        oc: how often a message was delivered before, by offset,
        ht: how often the first message was delivered as the head, if that is not oc + 1,
        l: time of the last change, cm: bits of acknowledged messages, a: attempt id}}}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import field

from downrange.wire.bodies import Body, decode_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PATH: Final = "config/consumerOrderInfo.json"
#: An order that did not change for so long is forgotten.
_KEPT_MS: Final = 24 * 3600 * 1000
#: How often the broker looks for these.
_LOOK_INTERVAL_MS: Final = 60_000
_SEPARATOR: Final = "@"

#: Topic, group and queue id.
Place: TypeAlias = tuple[str, str, int]


class OrderBody(Body, kw_only=True):
    """One order, as the file has it."""

    attempt_id: str | None = field(name="a", default=None)
    acknowledged: int = field(name="cm", default=0)
    invisible_ms: int | None = field(name="i", default=None)
    changed_ms: int = field(name="l", default=0)
    offsets: list[int] = field(name="o", default_factory=list)
    counts: dict[int, int] = field(name="oc", default_factory=dict)
    head_tries: int | None = field(name="ht", default=None)
    visible_ms: dict[int, int] | None = field(name="ot", default=None)
    pop_time: int = 0


class OrdersBody(Body, kw_only=True):
    """The contents of consumerOrderInfo.json."""

    order_info_count: int = 0
    ordered_consumption_level: str = "QUEUE"
    table: dict[str, dict[int, OrderBody]] = field(default_factory=dict)


class Order:
    """The last batch of a queue that a group popped in order.

    Attributes:
        pop_ms: When it was popped.
        invisible_ms: For how long its messages are invisible.
        offsets: Of its messages.
        open: A bit for each message that is not acknowledged.
        visible_ms: When a message becomes visible again, by offset; only those that were changed.
        counts: How often a message was delivered before, by offset.
        attempt_id: Of the request that popped it.
        changed_ms: When it changed.
        head_tries: How often the first message was delivered as the head, the first open message of
            a batch. Those behind it are not handled before it is, so this counts for dead letters.
    """

    __slots__ = (
        "attempt_id",
        "changed_ms",
        "counts",
        "head_tries",
        "invisible_ms",
        "offsets",
        "open",
        "pop_ms",
        "visible_ms",
    )

    def __init__(
        self, offsets: Sequence[int], pop_ms: int, invisible_ms: int, attempt_id: str | None
    ) -> None:
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.offsets = list(offsets)
        self.open = (1 << len(self.offsets)) - 1
        self.visible_ms: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.attempt_id = attempt_id
        self.changed_ms = pop_ms
        self.head_tries = 1

    def blocked_until_ms(self) -> int:
        """Return when all open messages are visible again; 0 if none is open."""
        end_ms = self.pop_ms + self.invisible_ms
        return max(
            (
                self.visible_ms.get(offset, end_ms)
                for bit, offset in enumerate(self.offsets)
                if self.open >> bit & 1
            ),
            default=0,
        )

    def next_offset(self) -> int:
        """Return the offset of the first open message, or the one after the last message."""
        for bit, offset in enumerate(self.offsets):
            if self.open >> bit & 1:
                return offset
        return self.offsets[-1] + 1

    def tries_of(self, offset: int) -> int:
        """Return how often a message was delivered as the head, if it is the head now."""
        if offset == self.offsets[0]:
            return self.head_tries
        return 1 if offset in self.offsets else 0  # it became the head in this delivery


class DeadHead:
    """The head of a queue that becomes a dead letter; the queue is blocked meanwhile.

    Attributes:
        order: The batch; if another one has replaced it, this is void.
        offset: Of the message.
        log_end: Up to where the log must be durable; None before the dead letter is stored.
    """

    __slots__ = ("log_end", "offset", "order")

    def __init__(self, order: Order) -> None:
        self.order = order
        self.offset = order.next_offset()
        self.log_end: int | None = None


class Orders:
    """All orders.

    Attributes:
        version: The number of changes since the start.
        dead_heads: Heads that become dead letters; see `dead_letters_in_order.py`.
    """

    def __init__(self) -> None:
        self.version = 0
        self.dead_heads: dict[Place, DeadHead] = {}
        self._orders: dict[Place, Order] = {}
        self._looked_ms = 0

    def __len__(self) -> int:
        """Return the number of orders."""
        return len(self._orders)

    def get(self, place: Place) -> Order | None:
        """Return the order of a queue, or None."""
        return self._orders.get(place)

    def is_blocked(self, place: Place, attempt_id: str | None, now_ms: int) -> bool:
        """Whether a pop must wait until the last batch is acknowledged or visible again."""
        order = self._orders.get(place)
        if order is None or (attempt_id is not None and order.attempt_id == attempt_id):
            return False
        return order.blocked_until_ms() > now_ms

    def pop(self, place: Place, order: Order) -> None:
        """Replace the order of a queue by a new batch; counts of messages in both go on.

        A repeated request is not a further delivery.
        """
        last = self._orders.get(place)
        if last is not None:
            is_repeated = order.attempt_id is not None and last.attempt_id == order.attempt_id
            for offset in order.offsets:
                if offset in last.offsets:
                    count = last.counts.get(offset, 0) + (0 if is_repeated else 1)
                    if count:
                        order.counts[offset] = count
            tries = last.tries_of(order.offsets[0]) + (0 if is_repeated else 1)
            order.head_tries = max(tries, 1)
        self._orders[place] = order
        self.version += 1

    def acknowledge(self, place: Place, offset: int, pop_ms: int, now_ms: int) -> int | None:
        """Acknowledge a message; return the group's new offset, or None for a wrong receipt."""
        order = self._find(place, offset, pop_ms)
        if order is None:
            return None
        order.open &= ~(1 << order.offsets.index(offset))
        order.changed_ms = now_ms
        self.version += 1
        return order.next_offset()

    def pass_head(self, place: Place, now_ms: int) -> int:
        """Go on behind the first open message, a dead letter; return the group's new offset.

        The next one becomes the head, and was not delivered as such yet.
        """
        order = self._orders[place]
        number = order.offsets.index(order.next_offset()) + 1
        if number < len(order.offsets):
            order.offsets, order.open = order.offsets[number:], order.open >> number
            order.head_tries = 0
        else:
            order.open = 0
        order.changed_ms = now_ms
        self.version += 1
        return order.next_offset()

    def change(self, place: Place, offset: int, pop_ms: int, visible_ms: int, now_ms: int) -> bool:
        """Change when a message becomes visible; return False for a wrong receipt."""
        order = self._find(place, offset, pop_ms)
        if order is None:
            return False
        order.visible_ms[offset] = visible_ms
        order.changed_ms = now_ms
        self.version += 1
        return True

    def _find(self, place: Place, offset: int, pop_ms: int) -> Order | None:
        order = self._orders.get(place)
        if order is None or order.pop_ms != pop_ms or offset not in order.offsets:
            return None
        return order

    def committed(self, end_of: Callable[[str, int], int]) -> Iterable[tuple[Place, int]]:
        """Return the offset that each order commits, for a start after a crash.

        A loss of power can remove messages that were popped: the table is durable before the log.
        They are forgotten, because other messages get their offsets.

        Args:
            end_of: Takes topic and queue id; returns the offset after the last message.
        """
        found: list[tuple[Place, int]] = []
        for place, order in list(self._orders.items()):
            end = end_of(place[0], place[2])
            found.append((place, min(order.next_offset(), end)))
            if order.offsets[-1] >= end:
                self._cut(place, order, end)
        return found

    def _cut(self, place: Place, order: Order, end: int) -> None:
        kept = [offset for offset in order.offsets if offset < end]
        if kept:
            order.offsets = kept
            order.open &= (1 << len(kept)) - 1
        elif end:
            # All before it was acknowledged; only this table is sure to be durable.
            order.offsets, order.open = [end - 1], 0
        else:
            del self._orders[place]
        self.version += 1

    def forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """Forget orders whose topic or group was deleted."""
        for place in [place for place in self._orders if is_gone(place[0], place[1])]:
            del self._orders[place]
            self.version += 1

    def forget_old(self, now_ms: int) -> None:
        """Forget orders that did not change for a day; looks for them once a minute."""
        if abs(now_ms - self._looked_ms) < _LOOK_INTERVAL_MS:
            return
        self._looked_ms = now_ms
        old = [p for p, order in self._orders.items() if now_ms - order.changed_ms > _KEPT_MS]
        for place in old:
            del self._orders[place]
            self.version += 1

    def reset(self, place: Place) -> None:
        """Forget the order of a queue whose offset was set."""
        if self._orders.pop(place, None) is not None:
            self.version += 1

    # ---- the file ----

    def dump(self) -> bytes:
        """Encode consumerOrderInfo.json."""
        body = OrdersBody(order_info_count=len(self._orders), table={})
        for (topic, group, queue_id), order in self._orders.items():
            first = order.offsets[0]
            everything = (1 << len(order.offsets)) - 1
            bits = everything & ~order.open
            is_usual = order.head_tries == order.counts.get(first, 0) + 1
            body.table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = OrderBody(
                attempt_id=order.attempt_id,
                # Java reads a signed number of 64 bits.
                acknowledged=bits - (1 << 64) if bits >> 63 else bits,
                invisible_ms=order.invisible_ms,
                changed_ms=order.changed_ms,
                offsets=[first, *(offset - first for offset in order.offsets[1:])],
                counts=order.counts,
                head_tries=None if is_usual else order.head_tries,
                visible_ms=order.visible_ms or None,
                pop_time=order.pop_ms,
            )
        return body.encode()

    def load(self, data: bytes) -> None:
        """Decode consumerOrderInfo.json, written by this broker or by Java.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        body = decode_body(OrdersBody, data)
        for key, queues in body.table.items():
            topic, _, group = key.partition(_SEPARATOR)
            for queue_id, saved in queues.items():
                if not saved.offsets:
                    continue
                first = saved.offsets[0]
                offsets = [first, *(first + later for later in saved.offsets[1:])]
                order = Order(offsets, saved.pop_time, saved.invisible_ms or 0, saved.attempt_id)
                order.open &= ~saved.acknowledged
                order.counts = dict(saved.counts)
                order.head_tries = (
                    order.counts.get(first, 0) + 1 if saved.head_tries is None else saved.head_tries
                )
                order.visible_ms = dict(saved.visible_ms or {})
                order.changed_ms = saved.changed_ms
                self._orders[topic, group, queue_id] = order
