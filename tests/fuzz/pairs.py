"""Targets that feed a native function and its twin in Python, which must do the same.

Where the native part is not built there are none.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from downrange.model import QueueId
from downrange.native import find_binary
from downrange.store.indexed_run import pure_index_run
from downrange.wire.batches import pure_record_batch
from downrange.wire.command import decode
from downrange.wire.frames import FrameSplitter
from downrange.wire.hashes import pure_java_hash
from downrange.wire.records import LOG_OFFSET_AT, Record
from downrange.wire.reply_messages import pure_usual_records
from downrange.wire.send_answers import pure_stored_answers
from downrange.wire.send_runs import pure_take_sends, single_requests
from tests.fuzz import corpus
from tests.support.native_part import assert_same
from tests.unit.server.send_frames import frame, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from downrange.wire.batches import BatchRun
    from downrange.wire.command import Command
    from downrange.wire.send_runs import SendRun

#: Room for the largest fixed part behind a record: a record close to the end is left to Python.
_ROOM: Final = 120
_BYTES_MAX: Final = 1 << 20


def both(pure: Callable[[bytes], Any], native_twin: Callable[[bytes], Any]) -> Callable[..., Any]:
    """Return a reader that calls both and compares them; it does what the one in Python does."""

    def read(data: bytes) -> Any:
        assert_same(pure, native_twin, data)
        return pure(data)

    return read


def pairs() -> list[tuple[str, Callable[[bytes], Any], tuple[bytes, ...]]]:
    """Return names, readers and seeds of all pairs."""
    native, _ = find_binary()
    return [] if native is None else _pairs(native)


def _pairs(native: ModuleType) -> list[tuple[str, Callable[[bytes], Any], tuple[bytes, ...]]]:
    return [
        (
            "both: java_hash",
            both(lambda data: pure_java_hash(_text(data)), lambda d: native.java_hash(_text(d))),
            corpus.PROPERTIES,
        ),
        (
            "both: take_sends",
            both(partial(_requests, pure_take_sends), partial(_requests, native.take_sends)),
            _sends(),
        ),
        (
            "both: take_batch",
            both(partial(_stored, None), partial(_stored, native.take_batch)),
            corpus.BATCHES,
        ),
        (
            "both: usual_records",
            both(
                lambda data: pure_usual_records(data, 0, _queue),
                lambda data: native.usual_records(data, 0, _queue),
            ),
            tuple(record + bytes(_ROOM) for record in corpus.RECORDS),
        ),
        (
            "both: replies to sends",
            both(
                lambda data: _replies(pure_stored_answers, data),
                lambda data: _replies(native.stored_answers, data),
            ),
            corpus.FRAMES,
        ),
        (
            "both: index_run",
            both(partial(_indexed, pure_index_run), partial(_indexed, native.index_run)),
            tuple(record + bytes(_ROOM) for record in (*corpus.RECORDS, *corpus.SEGMENTS)),
        ),
    ]


def _sends() -> tuple[bytes, ...]:
    """Return frames of sends, some of them together."""
    random = Random(17)
    frames = [
        frame(
            random, send(random, number, rare=0.1, is_half=number > 12), is_binary=number % 4 == 0
        )
        for number in range(24)
    ]
    return (*frames[:4], b"".join(frames[:4]), b"".join(frames[1:4]), b"".join(frames[4:]))


def _requests(take: Callable[[bytes, int, int], SendRun | None], data: bytes) -> list[Command]:
    """Return the requests in a read, of which plain sends are taken together."""
    frames = FrameSplitter()
    frames.receive(data)
    requests: list[Command] = []
    while True:
        if (run := frames.next_run(take)) is not None:
            requests += single_requests(run)
        elif (one := frames.next_frame()) is not None:
            requests.append(decode(one))
        else:
            return requests


def _stored(take: Callable[..., BatchRun | None] | None, data: bytes) -> list[bytes]:
    """Return what is stored of a batch: records, units and keys."""
    host = (b"\x0a\x00\x00\x01", 1)
    batch = None if take is None else take(data, b"T", 1, 0, 7, host, host, 0, 0)
    if batch is None:
        shared = Record(
            topic_bytes=b"T", queue_id=1, born_ms=7, born_ip=host[0], born_port=1, store_ip=host[0]
        )
        shared.store_port = 1
        batch = pure_record_batch(shared, data)
    batch.begin(5, [9])
    parts, _ = batch.encode(1000, 1 << 30)
    return [b"".join(parts), *batch.queue_units(), batch.key_entries([3], True)]


def _indexed(index_run: Any, data: bytes) -> Any:
    """Return what the indexes need of the records of a log that begins with the first of them."""
    log_offset = int.from_bytes(data[LOG_OFFSET_AT : LOG_OFFSET_AT + 8], "big", signed=True)
    if not 0 <= log_offset < 2**62:
        log_offset = 0
    return index_run(data, 0, log_offset, -1, True, b"SCHEDULE_TOPIC_XXXX")


def _queue(topic: bytes, number: int) -> QueueId:
    return QueueId(topic.decode(errors="replace"), "b", number)


def _replies(stored_answers: Any, data: bytes) -> list[tuple[int, dict[str, str]]]:
    """Read frames: plain replies to sends by this function, all others as commands.

    Which of the two reads a reply with escapes or blanks may differ, but not what is read.
    """
    found: list[tuple[int, dict[str, str]]] = []
    while data:
        answers, end = stored_answers(data, 0, len(data))
        found += [(answer.request_id, answer.fields) for answer in answers]
        splitter = FrameSplitter(_BYTES_MAX)
        splitter.receive(data[end:])
        frame = splitter.next_frame()
        if frame is None:
            break
        command = decode(frame)
        found.append((command.request_id, command.fields))
        data = data[end + 8 + len(frame.header) + len(frame.body) :]
    return found


def _text(data: bytes) -> str:
    """Return a text with lone surrogates where the bytes are no UTF-8."""
    return data.decode("utf-8", "surrogateescape")
