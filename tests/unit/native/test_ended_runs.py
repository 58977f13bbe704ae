"""Ends of half messages, native and in Python: same columns, bytes and errors."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downrange.wire.ended_runs import pure_ended_run
from downrange.wire.records import Record, encode_record
from downrange.wire.send_runs import half_properties
from tests.unit.native.pairs import native
from tests.unit.native.test_send_runs import HOSTS, assert_same_run
from tests.unit.server.send_frames import property_text

TOPICS = ("orders", "bills", "日志", "t" * 127)


def half(random: Random, number: int, topic: str, queue_id: int) -> bytes:
    """Return the record of a half message."""
    born, store, sys_flag = random.choice(HOSTS)
    text = property_text(random, number, rare=0.0, is_half=True)
    own = half_properties(f"K{number:031}", topic, queue_id)
    return encode_record(
        Record(
            flag=random.choice((0, 7, -1)),
            queue_offset=random.randrange(2**40),
            log_offset=random.randrange(2**50),
            sys_flag=sys_flag | random.choice((0, 1, 0x703)),
            born_ms=random.choice((0, 1_800_000_000_000)),
            born_ip=born[0],
            born_port=born[1],
            store_ms=5,
            store_ip=store[0],
            store_port=store[1],
            reconsume_times=random.choice((0, 3)),
            body=random.randbytes(random.choice((1, 300))),
            topic_bytes=b"RMQ_SYS_TRANS_HALF_TOPIC",
            property_bytes=f"{text.rstrip(chr(2))}\x02{own}".encode(),
        )
    )


@given(st.integers(0, 2**32), st.integers(0, 12))
@settings(max_examples=80)
def test_ends_have_the_same_columns_and_bytes(seed: int, count: int) -> None:
    random = Random(seed)
    _, store, _ = random.choice(HOSTS)
    runs = native.ended_run(store), pure_ended_run(store)
    assert_same_run(random, *runs)
    for number in range(count):
        topic, queue_id = random.choice(TOPICS), random.randrange(3)
        record = half(random, number, topic, queue_id) if random.random() < 0.7 else None
        for run in runs:
            run.add_end(record, topic, queue_id, 10**number, 1_800_000_000_000 + number)
    assert_same_run(random, *runs)
    assert not runs[0].is_half
    assert runs[0].halves() == []


def test_what_is_not_a_half_with_this_place_is_refused() -> None:
    record = half(Random(1), 1, "orders", 2)
    runs = native.ended_run(HOSTS[0][1]), pure_ended_run(HOSTS[0][1])
    for run in runs:
        for topic, queue_id in (("bills", 2), ("orders", 3), ("orders", 12)):
            with pytest.raises(ValueError, match="not the bytes of a half"):
                run.add_end(record, topic, queue_id, 0, 0)
        for end in range(len(record)):
            with pytest.raises(ValueError, match="not the bytes of a half"):
                run.add_end(record[:end], "orders", 2, 0, 0)
        assert len(run) == 0
    with pytest.raises(ValueError, match="IPv4"):
        native.ended_run((b"", 1))


def test_only_a_run_of_ends_takes_ends() -> None:
    batch = native.take_batch(b"", b"T", 0, 0, 0, (b"abcd", 1), (b"abcd", 2), 0, 0)
    assert batch is not None
    with pytest.raises(ValueError, match="not the bytes of a half"):
        batch.add_end(None, "orders", 2, 0, 0)
