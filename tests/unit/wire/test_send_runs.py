"""Plain sends that arrive together, in Python; tests/unit/native compares the native twin."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from downrange.wire.batches import KEY_ENTRY, QUEUE_UNIT
from downrange.wire.codes import CommandFlag, HeaderCodec
from downrange.wire.command import Command, encode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendRequest, SendRequestV2
from downrange.wire.limits import FRAME_BYTES_MAX
from downrange.wire.link import Link, RequestArrived, RunArrived
from downrange.wire.records import decode_records, encode_record
from downrange.wire.send_replies import StoredForm, StoredReply
from downrange.wire.send_runs import QUEUES_MAX, SendRun, pure_take_sends, single_requests

FORM = StoredForm(id_prefix="0A", is_trace_on=False, region="R")


def send(number: int = 0, *, is_v1: bool = False, **changes: Any) -> Command:
    """Return a plain send, or one with changes."""
    settings: dict[str, Any] = {
        "topic": "orders",
        "queue_id": 1,
        "sys_flag": 0x7FF,
        "born_timestamp": 5,
        "flag": 7,
        "properties": f"UNIQ_KEY\x01K{number}\x02TAGS\x01t\x02",
    }
    header = (SendRequest if is_v1 else SendRequestV2)(**(settings | changes))
    command = request_command(header, b"body %d" % number)
    command.request_id = number
    return command


def taken(*commands: Command) -> SendRun | None:
    """Return the run at the beginning of these."""
    return pure_take_sends(b"".join(map(encode, commands)), 0, FRAME_BYTES_MAX)


def test_both_versions_are_one_run() -> None:
    run = taken(send(0), send(1, is_v1=True), send(2, queue_id=2, reconsume_times=3))
    assert run is not None
    assert (len(run), run.requests, run.reply_count) == (3, 3, 3)
    assert not run.has_nul
    assert (run.queues, run.counts) == ([(b"orders", 1), (b"orders", 2)], [2, 1])
    assert (run.body_bytes_max, run.property_bytes_max) == (6, 19)
    assert [request.request_id for request in single_requests(run)] == [0, 1, 2]


def test_records_have_what_the_broker_adds() -> None:
    run = taken(send(0), send(1, properties="UNIQ_KEY\x01K1", reconsume_times=3))
    assert run is not None
    run.prepare((b"\x0a\x00\x00\x01", 42), (bytes(16), 10911), 0x20, b"A\x01b\x02")
    run.begin(99, [10])
    assert run.encode(1000, 50) == ([], 138)
    first, unfit_size = run.encode(1000, 140)
    second, _ = run.encode(5000, unfit_size)
    records = decode_records(b"".join([*first, *second]))
    assert [record.log_offset for record in records] == [1000, 5000]
    assert [record.queue_offset for record in records] == [10, 11]
    assert [record.sys_flag for record in records] == [0x723, 0x723]
    assert [record.reconsume_times for record in records] == [0, 3]
    assert {record.store_ms for record in records} == {99}
    assert [record.properties() for record in records] == [
        {"UNIQ_KEY": "K0", "TAGS": "t", "A": "b"},
        {"UNIQ_KEY": "K1", "A": "b"},
    ]
    assert all(record.is_intact for record in records)
    assert run.queue_bytes == [sum(record.size for record in records)]


@pytest.mark.parametrize("codec", list(HeaderCodec))
def test_replies_are_those_of_single_requests(codec: HeaderCodec) -> None:
    requests = [send(0), send(1, queue_id=2), send(2), send(3)]
    requests[2].flags = int(CommandFlag.ONEWAY)
    for request in requests:
        request.codec = codec
    run = taken(*requests)
    assert run is not None
    assert run.reply_count == 3
    run.begin(0, [10, 20])
    run.encode(0, 1 << 20)
    offsets = [entry[1] for entry in _entries(run)]
    run.release()
    for code in (0, 10):
        wanted = [
            StoredReply(FORM, queue_id, f"K{number}", offsets[number], offset, code).encode(
                requests[number]
            )
            for number, queue_id, offset in ((0, 1, 10), (1, 2, 20), (3, 1, 12))
        ]
        assert run.replies(FORM, code) == b"".join(wanted)


def _entries(run: SendRun) -> list[tuple[int, int]]:
    return list(KEY_ENTRY.iter_unpack(run.key_entries([0] * len(run.queues), False)))


def test_tags_are_keys_on_request() -> None:
    run = taken(send(0), send(1))
    assert run is not None
    run.begin(0, [0])
    run.encode(0, 1 << 20)
    assert len(run.key_entries([7], True)) == 2 * len(run.key_entries([7], False))
    (units,) = run.queue_units()
    assert [unit[2] for unit in QUEUE_UNIT.iter_unpack(units)] == [ord("t")] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": None},
        {"properties": "UNIQ_KEY\x01"},
        {"properties": "UNIQ_KEY\x01é\x02"},
        {"properties": 'UNIQ_KEY\x01a"\x02'},
        {"properties": "UNIQ_KEY\x01a\\\x02"},
        {"properties": "UNIQ_KEY\x01a\x03\x02"},
        {"properties": f"UNIQ_KEY\x01{'k' * 257}\x02"},
        {"properties": "UNIQ_KEY\x01K\x02nul\x01\x00"},
        {"properties": "UNIQ_KEY\x01K\x02WAIT\x01false"},
        {"properties": "UNIQ_KEY\x01K\x02DELAY\x013"},
        {"properties": "UNIQ_KEY\x01K\x02TRAN_MSG\x01true"},
        {"properties": "UNIQ_KEY\x01K\x02CLUSTER\x01c"},
        {"topic": ""},
        {"topic": "t" * 128},
        {"batch": True},
    ],
    ids=str,
)
def test_a_run_ends_before_a_send_that_is_not_plain(changes: dict[str, Any]) -> None:
    run = taken(send(0), send(1), send(2, **changes), send(3))
    assert run is not None
    assert len(run) == 2


def test_a_run_ends_before_another_request_and_before_what_is_not_whole() -> None:
    empty, other, reply, missing, wrong = send(2), send(2), send(2), send(2), send(2)
    empty.body = b""
    other.code = 11
    reply.flags = int(CommandFlag.REPLY)
    del missing.fields["b"]
    wrong.fields["e"] = "x"
    binary = send(2)
    binary.codec = HeaderCodec.BINARY
    for command in (empty, other, reply, missing, wrong, binary):
        run = taken(send(0), send(1), command)
        assert run is not None
        assert len(run) == 2
    data = encode(send(0)) + encode(send(1))
    broken = data.replace(b'"flag":0', b'"flag":"')
    for rest in (b"", b"\x00" * 7, encode(send(2))[:-1], bytes(8), broken[: len(broken) // 2]):
        run = pure_take_sends(data + rest, 0, FRAME_BYTES_MAX)
        assert run is not None
        assert run.end == len(data)
    assert pure_take_sends(data, 0, 50) is None
    assert taken(other, send(0)) is None
    assert taken(missing, send(0)) is None
    assert taken(send(0)) is None  # alone, it costs less as a request


HALF = "UNIQ_KEY\x01K{}\x02TRAN_MSG\x01true\x02PGROUP\x01makers\x02TAGS\x01t"


def test_half_messages_are_a_run_in_the_half_queue() -> None:
    run = taken(*[send(each, properties=HALF.format(each), queue_id=each) for each in (1, 2, 1)])
    assert run is not None
    assert run.is_half
    assert (run.queues, run.counts) == (((b"RMQ_SYS_TRANS_HALF_TOPIC", 0),), [3])
    assert run.asked_queues == [(b"orders", 1), (b"orders", 2)]
    added = len("__transactionId__\x01K1\x02REAL_TOPIC\x01orders\x02REAL_QID\x011\x02")
    assert run.property_bytes_max == len(HALF.format(1)) + added
    run.prepare((b"\x0a\x00\x00\x01", 42), (b"\x0a\x00\x00\x02", 10911), 0, b"A\x01b\x02")
    run.begin(99, [10])
    first, unfit_size = run.encode(1000, 300)
    second, _ = run.encode(5000, 1 << 20)
    assert unfit_size > 0
    records = decode_records(b"".join([*first, *second]))
    assert [record.queue_offset for record in records] == [10, 11, 12]
    assert [(record.topic, record.queue_id) for record in records] == [
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    ] * 3
    assert records[1].properties() == {
        "UNIQ_KEY": "K2",
        "TRAN_MSG": "true",
        "PGROUP": "makers",
        "TAGS": "t",
        "A": "b",
        "__transactionId__": "K2",
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
    }
    assert run.queue_bytes == [sum(record.size for record in records)]
    (units,) = run.queue_units()
    assert [unit[0] for unit in QUEUE_UNIT.iter_unpack(units)] == [
        1000,
        5000,
        records[2].log_offset,
    ]
    assert len(_entries(run)) == 3
    assert run.halves() == [
        (each.log_offset, (each.queue_offset, 5, "makers", "orders", queue_id, encode_record(each)))
        for each, queue_id in zip(records, (1, 2, 1), strict=True)
    ]
    run.release()
    assert run.halves() == []
    replies = run.replies(FORM, 0)
    assert [replies.count(b'"queueId":"%d"' % number) for number in (1, 2)] == [2, 1]


@pytest.mark.parametrize(
    "properties",
    [
        "UNIQ_KEY\x01K\x02",
        f"{HALF}\x02TRAN_MSG\x01false",
        "UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02",
        f"{HALF}\x02REAL_TOPIC\x01other",
        f"{HALF}\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160",
        f"{HALF}\x02DELAY\x013",
    ],
)
def test_a_run_of_halves_ends_before_another_message(properties: str) -> None:
    run = taken(*[send(each, properties=HALF) for each in (0, 1)], send(2, properties=properties))
    assert run is not None
    assert len(run) == 2


def test_half_a_surrogate_pair_is_a_question_mark_as_in_java() -> None:
    command = send(1)
    command.fields["b"] += "~~~~~~"  # as many characters as the escape has
    data = encode(send(0)) + encode(command).replace(b"~~~~~~", b"\\ud800")
    run = pure_take_sends(data, 0, FRAME_BYTES_MAX)
    assert run is not None
    assert run.queues == [(b"orders", 1), (b"orders?", 1)]


def test_a_run_has_a_limited_number_of_queues() -> None:
    run = taken(*[send(number, queue_id=number) for number in range(QUEUES_MAX + 3)])
    assert run is not None
    assert len(run) == QUEUES_MAX


def test_a_link_takes_runs_only_on_request() -> None:
    random = Random(4)
    commands = [send(number) for number in range(40)]
    commands[17].code = 11
    data = b"".join(map(encode, commands))
    for takes_runs in (False, True):
        link: Link[None] = Link(takes_runs=takes_runs)
        received: list[int] = []
        kinds: set[type] = set()
        at = 0
        while at < len(data):
            size = random.randrange(1, 3_000)
            for event in link.receive(data[at : at + size]):
                kinds.add(type(event))
                if isinstance(event, RunArrived):
                    received += [each.request_id for each in single_requests(event.run)]
                else:
                    assert isinstance(event, RequestArrived)
                    received.append(event.command.request_id)
            at += size
        assert received == list(range(40))
        assert (RunArrived in kinds) is takes_runs
