"""Runs of plain sends and batches, native and in Python: same events, columns, bytes and errors."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downrange.wire import link as link_module
from downrange.wire.batches import pure_record_batch
from downrange.wire.codes import HeaderCodec
from downrange.wire.command import Command
from downrange.wire.limits import FRAME_BYTES_MAX
from downrange.wire.link import Link, LinkBroken, RequestArrived, RunArrived
from downrange.wire.records import Record, decode_records
from downrange.wire.send_replies import StoredForm
from downrange.wire.send_runs import pure_take_sends, single_requests
from tests.support.native_part import in_python
from tests.unit.native.pairs import native
from tests.unit.server.send_frames import batch, frame, send

if TYPE_CHECKING:
    from downrange.wire.batches import RecordRun

FORM = StoredForm(id_prefix="0A00000200002A9F", is_trace_on=True, region='Region "%d" é')
HOSTS: list[tuple[tuple[bytes, int], tuple[bytes, int], int]] = [
    ((b"\x0a\x00\x00\x01", 4242), (b"\x0a\x00\x00\x02", 10911), 0),
    ((bytes(range(16)), 4242), (b"\x0a\x00\x00\x02", 10911), 0x10),
    ((bytes(range(16)), 4242), (bytes(range(16, 32)), -1), 0x30),
]


def stream(random: Random, count: int, rare: float) -> bytes:
    """Return frames of sends; some are half messages, several in a row."""
    frames: list[bytes] = []
    is_half = False
    for number in range(count):
        if random.random() < 0.2:
            is_half = not is_half
        command = send(random, number, rare=rare, is_half=is_half)
        frames.append(frame(random, command, is_binary=random.random() < 0.3))
    return b"".join(frames)


def assert_same_run(random: Random, found: RecordRun, wanted: RecordRun) -> None:
    """Compare two runs, and what is written of them."""
    for name in ("queues", "counts", "requests", "has_nul"):
        assert list_of(getattr(found, name)) == list_of(getattr(wanted, name)), name
    assert len(found) == len(wanted)
    for _ in range(2):  # the second time as after a failure
        offsets = [random.randrange(2**40) for _ in wanted.queues]
        store_ms, log_offset = random.randrange(2**40), random.randrange(2**50)
        found.begin(store_ms, offsets)
        wanted.begin(store_ms, list(offsets))
        while True:
            room = random.choice((0, 300, 2_000, 1 << 20))
            parts, unfit_size = found.encode(log_offset, room)
            wanted_parts, wanted_size = wanted.encode(log_offset, room)
            assert (b"".join(parts), unfit_size) == (b"".join(wanted_parts), wanted_size)
            if not unfit_size:
                break
            log_offset += random.randrange(10_000)
        assert list_of(found.queue_offsets) == list_of(wanted.queue_offsets)
        assert list_of(found.queue_bytes) == list_of(wanted.queue_bytes)
        assert list_of(found.queue_units()) == list_of(wanted.queue_units())
        fronts = [random.randrange(2**32) for _ in wanted.queues]
        for index_tags in (False, True):
            entries = found.key_entries(fronts, index_tags)
            assert entries == wanted.key_entries(fronts, index_tags)


def list_of(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([b"MSG_REGION\x01r\x02", b""]),
)
@settings(max_examples=60)
def test_a_run_has_the_columns_and_bytes_of_its_sends(seed: int, rare: float, added: bytes) -> None:
    random = Random(seed)
    data = stream(random, 30, rare)
    at = 0
    while at < len(data):
        run = native.take_sends(data, at, FRAME_BYTES_MAX)
        if run is None:
            at += 4 + int.from_bytes(data[at : at + 4], "big")
            continue
        assert isinstance(run, native.RecordRun)
        made = in_python(run, at, data)
        names = ("reply_count", "is_flush_awaited", "body_bytes_max", "property_bytes_max", "end")
        for name in (*names, "is_half", "asked_queues"):
            assert getattr(run, name) == getattr(made, name), name
        assert run.frames() == made.frames()
        born, store, sys_flag = random.choice(HOSTS)
        for each in (run, made):
            each.prepare(born, store, sys_flag, added)
        assert_same_run(random, run, made)
        assert run.halves() == made.halves()
        assert bool(made.halves()) is made.is_half
        for each in (run, made):
            each.release()
        for code in (0, 10):
            assert run.replies(FORM, code) == made.replies(FORM, code)
        at = run.end


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("added", [b"", b"A\x01b\x02"])
@pytest.mark.parametrize("end", ["", "\x02"])
def test_a_separator_stands_only_between_properties(is_half: bool, added: bytes, end: str) -> None:
    random = Random(2)
    text = "UNIQ_KEY\x01K" + ("\x02PGROUP\x01g\x02TRAN_MSG\x01true" if is_half else "") + end
    command = send(random, 1, rare=0.0)
    for name in {"i", "properties"} & command.fields.keys():
        command.fields[name] = text
    data = frame(random, command, is_binary=False) * 2
    run = native.take_sends(data, 0, FRAME_BYTES_MAX)
    assert run is not None
    assert run.is_half is is_half
    made = in_python(run, 0, data)
    for each in (run, made):
        each.prepare(*HOSTS[0], added)
        each.begin(5, [0])
        parts, _ = each.encode(0, 1 << 20)
        for record in decode_records(b"".join(parts)):
            last = record.property_bytes[len(text) :]
            assert last.startswith(b"\x02") is (not end and (is_half or bool(added)))
            assert last.removeprefix(b"\x02").startswith(added)
    assert_same_run(random, run, made)
    assert run.halves() == made.halves()


def test_usual_sends_of_one_codec_are_one_run() -> None:
    random = Random(7)
    for is_binary in (False, True):
        commands = [send(random, number, rare=0.0) for number in range(50)]
        for command in commands:
            for name in ("i", "properties"):
                if name in command.fields:
                    command.fields[name] = command.fields[name].replace("false", "true")
        data = b"".join(frame(Random(3), each, is_binary=is_binary) for each in commands)
        run = native.take_sends(data, 0, FRAME_BYTES_MAX)
        assert run is not None
        assert (len(run), run.end) == (50, len(data))


def events_of(take: Any, data: bytes, sizes: list[int], frame_bytes_max: int) -> list[object]:
    """Return all requests in a stream that is read in chunks, and the error at its end."""
    received: list[object] = []
    link: Link[None] = Link(frame_bytes_max=frame_bytes_max, takes_runs=take is not None)
    at = turn = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_module, "take_sends", take)
        while at < len(data):
            size = sizes[turn % len(sizes)]
            turn += 1
            for event in link.receive(data[at : at + size]):
                match event:
                    case RequestArrived(command):
                        received.append(command)
                    case RunArrived(run):
                        received += single_requests(run)
                    case LinkBroken(error, _):
                        received.append((type(error), str(error)))
                    case _:
                        raise AssertionError(event)
            at += size
    return received


@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 5_000), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=4),
    st.sampled_from([600, FRAME_BYTES_MAX]),
)
@settings(max_examples=150)
def test_hostile_bytes_are_refused_at_the_same_place(
    seed: int, sizes: list[int], changes: list[tuple[int, int]], frame_bytes_max: int
) -> None:
    data = bytearray(stream(Random(seed), 12, 0.1))
    for at, byte in changes:
        data[at % len(data)] = byte
    wanted = events_of(None, bytes(data), sizes, frame_bytes_max)
    for take in (pure_take_sends, native.take_sends):
        assert events_of(take, bytes(data), sizes, frame_bytes_max) == wanted


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 2**40))
def test_any_bytes_are_taken_or_left_alone(data: bytes, start: int, length_max: int) -> None:
    assert native.take_sends(data, start, length_max) is None
    found = native.take_batch(data, b"T", 0, 0, 0, (b"abcd", 1), (b"abcd", 2), 0, 0)
    if found is not None:
        assert len(found) == len(pure_record_batch(Record(topic_bytes=b"T"), data))


@given(
    st.integers(0, 2**32),
    st.integers(0, 2),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=2),
)
@settings(max_examples=100)
def test_a_batch_has_the_bytes_of_its_messages(
    seed: int, hosts: int, changes: list[tuple[int, int]]
) -> None:
    random = Random(seed)
    data = bytearray(batch(random, 3))
    for at, byte in changes:
        data[at % len(data)] = byte
    born, store, sys_flag = HOSTS[hosts]
    shared = Record(
        topic_bytes="日志".encode(),
        queue_id=3,
        sys_flag=sys_flag | 1,
        born_ms=77,
        born_ip=born[0],
        born_port=born[1],
        store_ip=store[0],
        store_port=store[1],
        reconsume_times=2,
        prepared_offset=5,
    )
    found = native.take_batch(
        bytes(data), shared.topic_bytes, 3, sys_flag | 1, 77, born, store, 2, 5
    )
    if found is None:
        return  # Python decides
    wanted = pure_record_batch(shared, bytes(data))
    assert_same_run(random, found, wanted)
    assert found.ids("0A") == wanted.ids("0A")


def test_a_batch_with_a_long_topic_or_other_hosts_is_left_alone() -> None:
    data = batch(Random(1), 3)
    born, store, _ = HOSTS[0]
    assert native.take_batch(data, b"t" * 128, 0, 0, 0, born, store, 0, 0) is None
    assert native.take_batch(data, b"t", 0, 0x10, 0, born, store, 0, 0) is None
    assert native.take_batch(data, b"t", 0, 0, 0, (b"", 0), store, 0, 0) is None
    assert native.take_batch(data, b"t" * 127, 0, 0, 0, born, store, 0, 0) is not None


def test_wrong_use_is_an_error_and_not_a_panic() -> None:
    command = send(Random(5), 1, rare=0.0)
    command.codec = HeaderCodec.JSON
    data = frame(Random(3), command, is_binary=False)
    run = native.take_sends(data, 0, FRAME_BYTES_MAX)
    assert run is not None
    with pytest.raises(ValueError, match="one offset per queue"):
        run.begin(0, [])
    with pytest.raises(ValueError, match="one front per queue"):
        run.key_entries([], False)
    with pytest.raises(ValueError, match="IPv4"):
        run.prepare((b"", 1), (b"abcd", 1), 0, b"")
    run.release()
    with pytest.raises(ValueError, match="released"):
        run.encode(0, 1 << 20)
    with pytest.raises(ValueError, match="released"):
        run.frames()
    with pytest.raises(AttributeError):
        run.replies(Command(0), 0)
