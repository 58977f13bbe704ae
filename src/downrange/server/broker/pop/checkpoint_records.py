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

Each record has UNIQ_KEY: topic@queue@offset@group@pop time@broker@ck or @ack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.server.broker.scheduled.timed_messages import SLOT_MS
from downrange.wire.pop_bodies import (
    AckBody,
    CheckpointBody,
    decode_pop_body,
    encode_pop_body,
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
        self._host = host
        self._broker = broker
        self._revive_topic = revive_topic
        self._checkpoints = checkpoints
        self._is_older = is_older
        #: The ends of queues of the revive topic in which an Apache broker left records.
        self.left_ends: dict[int, int] = {}
        # Acknowledgements among these whose checkpoint is not known yet.
        self._early_acks: dict[CheckpointName, list[int]] = {}

    # ---- writing ----

    def checkpoint(self, checkpoint: Checkpoint, now_ms: int) -> tuple[Record, dict[str, str]]:
        """Return the record of a checkpoint with the offsets that are open, and its properties."""
        topic, group, queue_id, start, pop_ms = checkpoint.name
        offsets = checkpoint.open_offsets()
        if isinstance(offsets, range) and offsets.start == start:
            differences = list(range(len(offsets)))
        else:
            differences = [offset - start for offset in offsets]
        body = CheckpointBody(
            broker=self._broker,
            group=group,
            differences=differences,
            invisible_ms=checkpoint.invisible_ms,
            count=len(differences),
            pop_ms=pop_ms,
            queue_id=queue_id,
            revive_ms=checkpoint.due_ms,
            start=start,
            topic=topic,
        )
        key = f"{topic}@{queue_id}@{start}@{group}@{pop_ms}@{self._broker}@ck"
        due_ms = checkpoint.due_ms - _EARLY_MS
        return self._record(checkpoint, encode_pop_body(body), CHECKPOINT_TAG, key, due_ms, now_ms)

    def acknowledgement(
        self, checkpoint: Checkpoint, offsets: Sequence[int], now_ms: int, *, is_batch: bool
    ) -> tuple[Record, dict[str, str]]:
        """Return the record that acknowledges messages of a checkpoint, and its properties."""
        topic, group, queue_id, start, pop_ms = checkpoint.name
        offset = _BATCH if is_batch else offsets[0]
        body = AckBody(
            offset=offset,
            offsets=list(offsets) if is_batch else None,
            broker=self._broker,
            group=group,
            pop_ms=pop_ms,
            queue_id=queue_id,
            start=start,
            topic=topic,
        )
        key = f"{topic}@{queue_id}@{offset}@{group}@{pop_ms}@{self._broker}@ack"
        tag = BATCH_ACK_TAG if is_batch else ACK_TAG
        return self._record(checkpoint, encode_pop_body(body), tag, key, checkpoint.due_ms, now_ms)

    def _record(
        self, checkpoint: Checkpoint, body: bytes, tag: str, key: str, due_ms: int, now_ms: int
    ) -> tuple[Record, dict[str, str]]:
        deliver_ms = max(due_ms, now_ms + 1)
        text = (
            f"REAL_TOPIC\x01{self._revive_topic}\x02TIMER_DELIVER_MS\x01{deliver_ms}\x02"
            f"UNIQ_KEY\x01{key}\x02TAGS\x01{tag}\x02"
            f"TIMER_OUT_MS\x01{(deliver_ms - 1) // SLOT_MS * SLOT_MS}\x02"
            f"REAL_QID\x01{checkpoint.revive_queue}\x02"
        )
        host = self._host
        record = Record(
            sys_flag=host.sys_flag | host.born_flag,
            born_ms=now_ms,
            born_ip=host.ip,
            born_port=host.port,
            store_ip=host.ip,
            store_port=host.port,
            body=body,
            topic_bytes=_TIMER_TOPIC,
            property_bytes=text.encode(),
        )
        # Of these the store needs the tag. It would index UNIQ_KEY, too, as recovery does, but only
        # Apache's timer reads it, and not by the index: it costs a third of the write.
        return record, {_TAGS: tag}

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
