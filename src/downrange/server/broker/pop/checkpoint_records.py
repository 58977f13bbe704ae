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

The bodies are `CheckpointBody` and `AckBody`. They are written by templates, because that is four
times as fast as by these classes (a test holds both equal).

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
from downrange.wire.limits import POPPED_MAX
from downrange.wire.pop_bodies import (
    AckBody,
    CheckpointBody,
    decode_pop_body,
    json_text,
)
from downrange.wire.properties import PropertyKey
from downrange.wire.records import Record
from downrange.wire.run_items import RunForm, fill
from downrange.wire.system_names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from downrange.server.broker.pop.checkpoints import CheckpointName, Checkpoints
    from downrange.server.broker.pop.rewinds import Rewinds
    from downrange.server.broker.record_fields import StoreHost
    from downrange.server.broker.tables.group_offsets import GroupOffsets
    from downrange.store.message_store import MessageStore
    from downrange.wire.run_items import RunItem

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
#: The number of queues of the revive topic.
REVIVE_QUEUES: Final = 8
#: A checkpoint is due this long before its messages become visible, as in Apache.
_EARLY_MS: Final = 1_000
_BATCH: Final = -1
#: The first numbers as text: those below 0, below 1 and so on.
_FIRST_NUMBERS: Final = [
    ",".join(map(str, range(count))).encode() for count in range(POPPED_MAX + 1)
]
_TIMER_TOPIC: Final = TIMER_TOPIC.encode()
_TAGS: Final = str(PropertyKey.TAGS)
_ACK_TAG: Final = ACK_TAG.encode()
_BATCH_ACK_TAG: Final = BATCH_ACK_TAG.encode()
_CHECKPOINT_HASH: Final = tag_hash(CHECKPOINT_TAG)
_ACK_HASH: Final = tag_hash(ACK_TAG)
_BATCH_ACK_HASH: Final = tag_hash(BATCH_ACK_TAG)


class _Templates(NamedTuple):
    """Bodies and properties of the records of a topic and group (`wire/run_items.py`)."""

    checkpoint_body: bytes
    suspended_body: bytes
    checkpoint_properties: bytes
    ack_body: bytes
    batch_ack_body: bytes
    ack_properties: bytes


@lru_cache(maxsize=4096)
def _templates(topic: str, group: str, broker: str, revive_topic: str) -> _Templates:
    def escaped(text: str) -> bytes:
        return text.replace("%", "%%").encode()

    json_topic, json_names = (
        escaped(json_text(topic)),
        escaped(f'"bn":{json_text(broker)},"c":{json_text(group)}'),
    )
    timer = escaped(f"REAL_TOPIC\x01{revive_topic}\x02TIMER_DELIVER_MS\x01") + b"%d\x02"
    key = b"UNIQ_KEY\x01%b@%%d@%%d@%b@%%d@%b" % tuple(map(escaped, (topic, group, broker)))
    end = b"\x02TIMER_OUT_MS\x01%d\x02REAL_QID\x01%d\x02"
    checkpoint = (
        b'{"bm":0,' + json_names + b',"d":[%b],"it":%d,"n":%d,"pt":%d,"q":%d,"reviveTime":%d'
        b',"ro":0,"so":%d,"sp":'
    )
    return _Templates(
        checkpoint + b'false,"t":' + json_topic + b"}",
        checkpoint + b'true,"t":' + json_topic + b"}",
        timer + key + b"@ck\x02TAGS\x01ck" + end,
        b'{"ao":%d,' + json_names + b',"pt":%d,"q":%d,"so":%d,"t":' + json_topic + b"}",
        b'{"ao":-1,"aol":[%b],' + json_names + b',"pt":%d,"q":%d,"so":%d,"t":' + json_topic + b"}",
        timer + key + b"@ack\x02TAGS\x01%b" + end,
    )


class PopRecords:
    """Writes records of pop consumption, and reads them into a table of checkpoints.

    Args:
        host: The broker's address.
        broker: Its name.
        revive_topic: The topic of checkpoints and acknowledgements.
        checkpoints: What the records describe.
        rewinds: Groups that were set back: older records do not move their progress.
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
        rewinds: Rewinds,
        is_older: Callable[[str, int, int, int], bool],
    ) -> None:
        self._broker = broker
        self._revive_topic = revive_topic
        shared = Record(
            sys_flag=host.sys_flag | host.born_flag,
            born_ip=host.ip,
            born_port=host.port,
            store_ip=host.ip,
            store_port=host.port,
            topic_bytes=_TIMER_TOPIC,
        )
        #: What all records have in common.
        self.form = RunForm(shared)
        self._checkpoints = checkpoints
        self._rewinds = rewinds
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
        body_template, body_values, template, values, _ = item
        record = replace(
            self.form.shared,
            born_ms=now_ms,
            body=fill(body_template, body_values),
            property_bytes=fill(template, values),
        )
        # Of these the store needs the tag. It would index UNIQ_KEY, too, as recovery does, but only
        # Apache's timer reads it, and not by the index.
        return record, {_TAGS: tag}

    def checkpoint_item(self, checkpoint: Checkpoint, now_ms: int) -> RunItem:
        """Return the record of a checkpoint with the offsets that are open, for a run."""
        topic, group, queue_id, start, pop_ms = checkpoint.name
        offsets, invisible_ms = checkpoint.offsets, checkpoint.invisible_ms
        count = len(offsets)
        if checkpoint.open_bits != (1 << count) - 1:
            offsets = checkpoint.open_offsets()
            count = len(offsets)
        differences: bytes | Sequence[int]
        if type(offsets) is range and offsets.start == start:
            differences = _FIRST_NUMBERS[count] if count <= POPPED_MAX else range(count)
        else:
            differences = [offset - start for offset in offsets]
        revive_ms = pop_ms + invisible_ms
        deliver_ms = revive_ms - _EARLY_MS
        if deliver_ms <= now_ms:
            deliver_ms = now_ms + 1
        out_ms = (deliver_ms - 1) // SLOT_MS * SLOT_MS
        templates = _templates(topic, group, self._broker, self._revive_topic)
        return (
            templates.suspended_body if checkpoint.is_suspended else templates.checkpoint_body,
            (differences, invisible_ms, count, pop_ms, queue_id, revive_ms, start),
            templates.checkpoint_properties,
            (deliver_ms, queue_id, start, pop_ms, out_ms, checkpoint.revive_queue),
            _CHECKPOINT_HASH,
        )

    def acknowledgement_item(
        self, checkpoint: Checkpoint, offsets: Sequence[int], now_ms: int, *, is_batch: bool
    ) -> RunItem:
        """Return the record that acknowledges messages of a checkpoint, for a run."""
        topic, group, queue_id, start, pop_ms = checkpoint.name
        templates = _templates(topic, group, self._broker, self._revive_topic)
        which: int | Sequence[int]
        if is_batch:
            body, which, offset = templates.batch_ack_body, offsets, _BATCH
            tag, tag_code = _BATCH_ACK_TAG, _BATCH_ACK_HASH
        else:
            body, which, offset = templates.ack_body, offsets[0], offsets[0]
            tag, tag_code = _ACK_TAG, _ACK_HASH
        deliver_ms = pop_ms + checkpoint.invisible_ms
        if deliver_ms <= now_ms:
            deliver_ms = now_ms + 1
        out_ms = (deliver_ms - 1) // SLOT_MS * SLOT_MS
        return (
            body,
            (which, pop_ms, queue_id, start),
            templates.ack_properties,
            (deliver_ms, queue_id, offset, pop_ms, tag, out_ms, checkpoint.revive_queue),
            tag_code,
        )

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
                        self._read_checkpoint(record.body, record.log_offset, None, queue_id)
                    else:
                        self._read_acknowledgement(record.body, is_left=True)
                except RocketMQError:
                    continue  # Apache ignores such a record, too

    def take_left_ends(self) -> dict[int, int]:
        """Return `left_ends`, and forget what was left: the whole timer's queue is read."""
        ends, self.left_ends, self._early_acks = self.left_ends, {}, {}
        return ends

    def _read_checkpoint(
        self, data: bytes, log_offset: int, timer_offset: int | None, revive_queue: int
    ) -> None:
        """Add a checkpoint; one of the revive topic is not in the timer's queue (None)."""
        body = decode_pop_body(CheckpointBody, data)
        differences = range(body.count) if body.differences is None else body.differences
        offsets = [body.start + difference for difference in differences]
        if offsets and self._is_older(body.topic, body.queue_id, offsets[-1], log_offset):
            checkpoint = Checkpoint(
                (body.topic, body.group, body.queue_id, body.start, body.pop_ms),
                offsets,
                invisible_ms=body.invisible_ms,
                revive_queue=revive_queue,
                timer_offset=timer_offset or 0,
                is_suspended=body.is_suspended,
            )
            is_old = timer_offset is not None and self._rewinds.is_before(
                (body.topic, body.group, body.queue_id), timer_offset
            )
            self._checkpoints.add(checkpoint, moves_next=not is_old)
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
