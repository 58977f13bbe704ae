"""Records of pop consumption: checkpoints and acknowledgements in the log, in Apache's form.

    ck     a checkpoint                      due one second before its messages become visible
    ack    one acknowledged message          due when the message would become visible
    bAck   several of one checkpoint         the same

All are timed messages: they are stored in the timer's queue, with the revive topic as their own
topic. Apache delivers them there when they are due and joins acknowledgements to checkpoints. Our
broker joins them as soon as they are stored and delivers none; it writes them so that nothing is
lost when it is killed, or when the store moves to an Apache broker.

One rule: the order of the timer's queue decides. A record of ours therefore always goes to that
queue: one that is due already, such as a late acknowledgement, becomes due a moment later. (Apache
stores it in the revive topic directly.)

The bodies are `CheckpointBody` and `AckBody`. They are written as text, because that is twice as
fast as by these classes (a test holds both equal).

Each record has UNIQ_KEY: topic@queue@offset@group@pop time@broker@ck or @ack.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from downrange.errors import RocketMQError
from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.server.broker.scheduled.timed_messages import SLOT_MS
from downrange.wire.hashes import tag_hash
from downrange.wire.pop_bodies import (
    AckBody,
    CheckpointBody,
    decode_pop_body,
    json_text,
    numbers_text,
)
from downrange.wire.properties import PropertyKey
from downrange.wire.records import Record
from downrange.wire.system_names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from downrange.server.broker.pop.checkpoints import CheckpointName, Checkpoints
    from downrange.server.broker.record_fields import StoreHost
    from downrange.server.broker.tables.group_offsets import GroupOffsets
    from downrange.store.message_store import MessageStore
    from downrange.wire.batches import RunItem

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
#: The number of queues of the revive topic.
REVIVE_QUEUES: Final = 8
#: A checkpoint is due this long before its messages become visible, as in Apache.
_EARLY_MS: Final = 1_000
_BATCH: Final = -1
_TIMER_TOPIC: Final = TIMER_TOPIC.encode()
_TAGS: Final = str(PropertyKey.TAGS)
_CHECKPOINT_HASH: Final = tag_hash(CHECKPOINT_TAG)
_ACK_HASH: Final = tag_hash(ACK_TAG)
_BATCH_ACK_HASH: Final = tag_hash(BATCH_ACK_TAG)


class _JsonNames(NamedTuple):
    """Names as they are in a body, encoded."""

    broker_and_group: str
    topic: str


@lru_cache(maxsize=4096)
def _json_names(topic: str, group: str, broker: str) -> _JsonNames:
    topic_text, group_text, broker_text = (json_text(name) for name in (topic, group, broker))
    return _JsonNames(f'"bn":{broker_text},"c":{group_text}', topic_text)


@lru_cache(maxsize=64)
def _counting(count: int) -> str:
    """Return the numbers below a count, joined by commas."""
    return ",".join(map(str, range(count)))


class PopRecords:
    """Writes records of pop consumption, and reads them into a table of checkpoints.

    Args:
        host: The broker's address.
        broker: Its name.
        revive_topic: The topic of checkpoints and acknowledgements.
        checkpoints: What the records describe.
        is_older: Takes topic, queue id, offset and a position in the log; returns whether that
            message exists and was stored before. A checkpoint of messages that are younger than its
            record belongs to a topic that was deleted and created again.
    """

    def __init__(
        self,
        host: StoreHost,
        broker: str,
        revive_topic: str,
        checkpoints: Checkpoints,
        is_older: Callable[[str, int, int, int], bool],
    ) -> None:
        self._broker = broker
        self._revive_topic = revive_topic
        self._properties_begin = f"REAL_TOPIC\x01{revive_topic}\x02TIMER_DELIVER_MS\x01"
        #: What all records have in common.
        self.shared = Record(
            sys_flag=host.sys_flag | host.born_flag,
            born_ip=host.ip,
            born_port=host.port,
            store_ip=host.ip,
            store_port=host.port,
            topic_bytes=_TIMER_TOPIC,
        )
        self._checkpoints = checkpoints
        self._is_older = is_older
        #: The ends of queues of the revive topic in which an Apache broker left records.
        self.left_ends: dict[int, int] = {}
        # Acknowledgements among these whose checkpoint is not known yet.
        self._early_acks: dict[CheckpointName, list[int]] = {}

    # ---- writing ----

    def checkpoint(self, checkpoint: Checkpoint, now_ms: int) -> tuple[Record, dict[str, str]]:
        """Return the record of a checkpoint with the offsets that are open, and its properties."""
        return self._record(self.checkpoint_item(checkpoint, now_ms), CHECKPOINT_TAG, now_ms)

    def acknowledgement(
        self, checkpoint: Checkpoint, offsets: Sequence[int], now_ms: int, *, is_batch: bool
    ) -> tuple[Record, dict[str, str]]:
        """Return the record that acknowledges messages of a checkpoint, and its properties."""
        item = self.acknowledgement_item(checkpoint, offsets, now_ms, is_batch=is_batch)
        return self._record(item, BATCH_ACK_TAG if is_batch else ACK_TAG, now_ms)

    def _record(self, item: RunItem, tag: str, now_ms: int) -> tuple[Record, dict[str, str]]:
        body, property_bytes, _ = item
        record = replace(self.shared, born_ms=now_ms, body=body, property_bytes=property_bytes)
        # Of these the store needs the tag. It would index UNIQ_KEY, too, as recovery does, but only
        # Apache's timer reads it, and not by the index.
        return record, {_TAGS: tag}

    def checkpoint_item(self, checkpoint: Checkpoint, now_ms: int) -> RunItem:
        """Return the record of a checkpoint with the offsets that are open, for a run."""
        topic, group, queue_id, start, pop_ms = checkpoint.name
        offsets = checkpoint.open_offsets()
        count = len(offsets)
        if type(offsets) is range and offsets.start == start:
            differences = _counting(count)
        else:
            differences = ",".join([str(offset - start) for offset in offsets])
        invisible_ms = checkpoint.invisible_ms
        revive_ms = pop_ms + invisible_ms
        deliver_ms = max(revive_ms - _EARLY_MS, now_ms + 1)
        names = _json_names(topic, group, self._broker)
        body = (
            f'{{"bm":0,{names.broker_and_group},"d":[{differences}],"it":{invisible_ms},"n":{count}'
            f',"pt":{pop_ms},"q":{queue_id},"reviveTime":{revive_ms},"ro":0,"so":{start},"sp":false'
            f',"t":{names.topic}}}'
        )
        properties = (
            f"{self._properties_begin}{deliver_ms}\x02"
            f"UNIQ_KEY\x01{topic}@{queue_id}@{start}@{group}@{pop_ms}@{self._broker}@ck\x02"
            f"TAGS\x01ck\x02TIMER_OUT_MS\x01{(deliver_ms - 1) // SLOT_MS * SLOT_MS}\x02"
            f"REAL_QID\x01{checkpoint.revive_queue}\x02"
        )
        return body.encode(), properties.encode(), _CHECKPOINT_HASH

    def acknowledgement_item(
        self, checkpoint: Checkpoint, offsets: Sequence[int], now_ms: int, *, is_batch: bool
    ) -> RunItem:
        """Return the record that acknowledges messages of a checkpoint, for a run."""
        topic, group, queue_id, start, pop_ms = checkpoint.name
        if is_batch:
            offset, tag, tag_code = _BATCH, BATCH_ACK_TAG, _BATCH_ACK_HASH
            which = f'"ao":-1,"aol":{numbers_text(offsets)}'
        else:
            offset, tag, tag_code = offsets[0], ACK_TAG, _ACK_HASH
            which = f'"ao":{offset}'
        deliver_ms = max(pop_ms + checkpoint.invisible_ms, now_ms + 1)
        names = _json_names(topic, group, self._broker)
        body = (
            f'{{{which},{names.broker_and_group},"pt":{pop_ms},"q":{queue_id},"so":{start},'
            f'"t":{names.topic}}}'
        )
        properties = (
            f"{self._properties_begin}{deliver_ms}\x02"
            f"UNIQ_KEY\x01{topic}@{queue_id}@{offset}@{group}@{pop_ms}@{self._broker}@ack\x02"
            f"TAGS\x01{tag}\x02TIMER_OUT_MS\x01{(deliver_ms - 1) // SLOT_MS * SLOT_MS}\x02"
            f"REAL_QID\x01{checkpoint.revive_queue}\x02"
        )
        return body.encode(), properties.encode(), tag_code

    # ---- reading ----

    @property
    def version(self) -> int:
        """The number of changes of the checkpoints."""
        return self._checkpoints.version

    def first_offset(self) -> int | None:
        """Return the offset in the timer's queue before which no record is needed, or None."""
        return self._checkpoints.first_timer_offset()

    def holds(self, topic: str | None) -> bool:
        """Whether timed messages of a topic belong to pop consumption."""
        return topic is not None and topic.startswith(REVIVE_TOPIC_PREFIX)

    def read(
        self, record: Record, properties: Mapping[str, str], timer_offset: int, revive_queue: int
    ) -> None:
        """Apply a record that was read from the timer's queue or from the revive topic.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        tag = properties.get(_TAGS)
        if tag == CHECKPOINT_TAG:
            self._read_checkpoint(record.body, record.log_offset, timer_offset, revive_queue)
        elif tag in (ACK_TAG, BATCH_ACK_TAG):
            self._read_acknowledgement(record.body)

    def read_left(self, store: MessageStore, offsets: GroupOffsets) -> None:
        """Read what an Apache broker left in the revive topic, before the timer's queue is read.

        A checkpoint may be here and its acknowledgement still in the timer's queue, or the other
        way round.
        """
        topic = self._revive_topic
        for queue_id in range(REVIVE_QUEUES):
            queue = store.queue(topic, queue_id)
            begin = max(offsets.get(REVIVE_GROUP, topic, queue_id) or 0, queue.min_offset)
            if begin >= queue.max_offset:
                continue
            self.left_ends[queue_id] = queue.max_offset
            for unit in queue.walk(begin):
                try:
                    record = store.read_record(unit)
                    properties = record.properties()
                    if properties.get(_TAGS) == CHECKPOINT_TAG:
                        self._read_checkpoint(record.body, record.log_offset, 0, queue_id)
                    else:
                        self._read_acknowledgement(record.body, is_left=True)
                except RocketMQError:
                    continue  # Apache ignores such a record, too

    def take_left_ends(self) -> dict[int, int]:
        """Return `left_ends`, and forget what was left: the whole timer's queue is read."""
        ends, self.left_ends, self._early_acks = self.left_ends, {}, {}
        return ends

    def _read_checkpoint(
        self, data: bytes, log_offset: int, timer_offset: int, revive_queue: int
    ) -> None:
        body = decode_pop_body(CheckpointBody, data)
        differences = range(body.count) if body.differences is None else body.differences
        offsets = [body.start + difference for difference in differences]
        if offsets and self._is_older(body.topic, body.queue_id, offsets[-1], log_offset):
            checkpoint = Checkpoint(
                (body.topic, body.group, body.queue_id, body.start, body.pop_ms),
                offsets,
                invisible_ms=body.invisible_ms,
                revive_queue=revive_queue,
                timer_offset=timer_offset,
            )
            self._checkpoints.add(checkpoint)
            early = self._early_acks.pop(checkpoint.name, None)
            if early is not None:
                self._checkpoints.close(checkpoint, checkpoint.bits_of(early))

    def _read_acknowledgement(self, data: bytes, *, is_left: bool = False) -> None:
        body = decode_pop_body(AckBody, data)
        name = (body.topic, body.group, body.queue_id, body.start, body.pop_ms)
        checkpoint = self._checkpoints.get(name)
        offsets = [body.offset] if body.offsets is None else body.offsets
        if checkpoint is not None:
            self._checkpoints.close(checkpoint, checkpoint.bits_of(offsets))
        elif is_left:
            self._early_acks.setdefault(name, []).extend(offsets)
