"""Records that the broker makes itself in one queue, without an object for each: its pops.

A `RunForm` has what all of them have in common, a `RunItem` the rest. Bodies and properties are
templates with values, which are put in when the record is written. A template is as for Python's
`%`: `%d` is a number, `%b` is bytes. The first value may be several numbers, for `%b`; they are
joined by commas.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias, cast
from zlib import crc32

from downrange.errors import Unencodable
from downrange.native import twin
from downrange.wire.batches import QUEUE_UNIT
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.pop_bodies import numbers_text
from downrange.wire.records import FORMS, V6_BITS, Record, encode_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: What is put into a template.
Values: TypeAlias = "tuple[int | bytes | Sequence[int], ...]"
#: Template and values of the body, template and values of the properties, and the tag hash of the
#: queue unit. A plain tuple, because two are made per pop.
RunItem: TypeAlias = "tuple[bytes, Values, bytes, Values, int]"

_BODY_SIZE_BYTES: Final = 4
_I16: Final = Struct(">h").pack
#: sysFlag's host bits -> the fixed part of a record as numbers and as bytes that do not change, and
#: where the born host ends and the part behind the store time begins.
_ITEM_FORMS: Final = {
    bits: (Struct(f">i4si8sqq4sq{born + 4}sq{store + 16}si").pack, 52 + born, 60 + born)
    for bits, (_, born, store) in FORMS.items()
}


class RunForm:
    """What all records of a run have in common, encoded once.

    Args:
        shared: The shared fields; body and properties are empty, and the topic is not a long one
            (V2). Offsets and times do not matter.

    Attributes:
        shared: See above.
        queue: Topic and queue id.
        head: The fixed part of a record.
        topic: Its topic, with the length.
        pieces: The parts of `head` that are the same in all records, and the function that joins
            them with the others.

    Raises:
        Unencodable: The shared fields cannot be written.
    """

    __slots__ = ("head", "pieces", "queue", "shared", "topic")

    def __init__(self, shared: Record) -> None:
        self.shared = shared
        self.queue = (shared.topic_bytes, shared.queue_id)
        self.head, _, tail = encode_parts(shared)
        self.topic = tail[:-2]  # without the length of the properties
        pack, born_end, store_at = _ITEM_FORMS[shared.sys_flag & V6_BITS]
        head = self.head
        hosts = head[48:born_end], head[store_at:-_BODY_SIZE_BYTES]
        self.pieces = (pack, head[4:8], head[12:20], head[36:40], *hosts)


def fill(template: bytes, values: Values) -> bytes:
    """Put values into a template."""
    first = values[0] if values else 0
    if type(first) is not int and type(first) is not bytes:
        values = (numbers_text(cast("Sequence[int]", first))[1:-1].encode(), *values[1:])
    return template % values


def pure_encode_items(
    form: RunForm,
    items: Iterable[RunItem],
    queue_offset: int,
    log_offset: int,
    born_ms: int,
    store_ms: int,
) -> tuple[bytes, bytes]:
    """Write the records of a run; return their bytes, and their units in the queue's index.

    Args:
        form: What they have in common.
        items: The records.
        queue_offset: Of the first one; the others follow it.
        log_offset: The position of the first one.
        born_ms: When they were made.
        store_ms: When they are stored.

    Raises:
        Unencodable: The properties of a record are too long, or have a NUL byte, which recovery
            would take for a torn write.
    """
    pack, magic, queue, flags, born, store = form.pieces
    topic = form.topic
    shared_size = len(form.head) + len(topic) + 2
    parts: list[bytes] = []
    units: list[bytes] = []
    for body_template, body_values, template, values, tag_code in items:
        body, properties = fill(body_template, body_values), fill(template, values)
        body_size, properties_size = len(body), len(properties)
        if properties_size > PROPERTIES_BYTES_MAX:
            raise Unencodable("record properties", f"{properties_size} bytes are too many")
        if 0 in properties:
            raise Unencodable("record properties", "a property has a NUL byte")
        size = shared_size + body_size + properties_size
        head = pack(
            size,
            magic,
            crc32(body) & 0x7FFFFFFF,
            queue,
            queue_offset,
            log_offset,
            flags,
            born_ms,
            born,
            store_ms,
            store,
            body_size,
        )
        parts += (head, body, topic, _I16(properties_size), properties)
        units.append(QUEUE_UNIT.pack(log_offset, size, tag_code))
        queue_offset += 1
        log_offset += size
    return b"".join(parts), b"".join(units)


encode_items = twin(pure_encode_items)
