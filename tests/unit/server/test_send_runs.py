"""Sends that arrive together: the same files, replies and errors as one request after the other."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest

from downrange.server.net.interception import drop, refuse
from downrange.wire.codes import CommandFlag, ResponseCode
from downrange.wire.command import encode
from downrange.wire.records import decode_record
from tests.unit.server.broker.broker_stage import pull_request, send_request
from tests.unit.server.send_frames import frame, send
from tests.unit.server.send_paths import PATHS, PEERS, SMALL, FailingLog, SendStage, take_path

RUN_PATHS = PATHS[1:]


def sends(count: int, first: int = 0, *, topic: str = "orders", wait: str = "true") -> bytes:
    """Return plain sends to queue 0."""
    frames: list[bytes] = []
    for number in range(first, first + count):
        properties = {"UNIQ_KEY": f"K{number}", "WAIT": wait}
        request = send_request(f"body {number}".encode(), topic, properties=properties)
        request.request_id = number
        frames.append(encode(request))
    return b"".join(frames)


def codes(stage: SendStage) -> list[tuple[int, int]]:
    """Return request ids and codes of all replies."""
    return [(reply.request_id, reply.code) for reply in stage.transport.replies()]


def bodies(stage: SendStage, topic: str = "orders") -> list[bytes]:
    """Return what is stored in queue 0."""
    store = stage.state.store
    return [
        decode_record(bytes(store.read(unit))).body for unit in store.queue(topic, 0).units(0, 9999)
    ]


def perform(stage: SendStage, seed: int, is_sync: bool) -> None:
    """Let a peer send everything there is, in reads of any size, with turns in between."""
    random = Random(seed)
    data = b""
    for number in range(120):
        if random.random() < 0.04:
            request = pull_request(0, "orders", suspend_ms=50_000)
            request.request_id = 1_000 + number  # ids of requests in flight differ
            data += encode(request)
        command = send(random, number, rare=random.choice((0.0, 0.05)))
        data += frame(random, command, is_binary=random.random() < 0.2)
    at = 0
    while at < len(data):
        size = random.choice((1, 50, 700, 5_000, 20_000))
        stage.read(data[at : at + size])
        at += size
        if random.random() < 0.5:
            stage.commit()
        if random.random() < 0.3:
            stage.publish()
        if is_sync and random.random() < 0.2:
            stage.flush()
        if random.random() < 0.1:
            stage.tick(random.choice((1, 10, 6_000)))
    stage.commit()
    stage.tick(6_000)


@pytest.mark.parametrize("seed", range(12))
def test_the_same_bytes_lead_to_the_same_files_and_replies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    is_sync = seed % 2 == 1
    peer = random.choice(PEERS)
    in_flight_max = random.choice((7, 4096))
    wanted: SendStage | None = None
    for path in PATHS:
        take_path(monkeypatch, path)
        stage = SendStage(
            takes_runs=path != "single",
            peer=peer,
            in_flight_max=in_flight_max,
            flush="sync" if is_sync else "async",
            message_bytes_max=2_000,
        )
        perform(stage, seed, is_sync)
        assert (stage.runs > 0) is (path != "single")
        if wanted is None:
            wanted = stage
            continue
        assert stage.written == wanted.written
        assert stage.contents() == wanted.contents()
        now_ms = stage.now_ms
        assert stage.state.statistics.totals(now_ms) == wanted.state.statistics.totals(now_ms)
        assert stage.connection.unanswered == wanted.connection.unanswered


@pytest.mark.parametrize("path", RUN_PATHS)
def test_a_flush_that_is_late_turns_the_replies_of_a_run_into_code_10(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True, flush="sync", flush_timeout=5.0)
    stage.read(sends(3))
    stage.commit()
    stage.read(sends(3, 3))
    stage.commit()
    assert (stage.runs, stage.written, stage.connection.unanswered) == (2, b"", 6)
    stage.tick(5_000)
    timed_out = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    assert codes(stage) == [(number, timed_out) for number in range(6)]
    first = stage.transport.replies()[0]
    assert (first.fields["queueOffset"], first.fields["transactionId"]) == ("0", "K0")
    stage.flush()
    assert len(codes(stage)) == 6
    assert stage.connection.unanswered == 0
    assert len(bodies(stage)) == 6


@pytest.mark.parametrize("path", RUN_PATHS)
def test_only_sends_that_wait_for_a_flush_do(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True, flush="sync")
    stage.read(sends(2) + sends(2, 2, wait="false") + sends(2, 4))
    stage.commit()
    assert stage.runs == 3
    assert codes(stage) == [(2, 0), (3, 0)]
    stage.flush()
    assert codes(stage) == [(number, 0) for number in (2, 3, 0, 1, 4, 5)]


@pytest.mark.parametrize("path", RUN_PATHS)
@pytest.mark.parametrize(
    "detour", ["unwritable", "forbidden", "unknown", "retry", "large", "queue"]
)
def test_a_run_that_needs_a_closer_look_is_handled_one_by_one(
    path: str, detour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[bytes] = []
    for each in ("single", path):
        take_path(monkeypatch, each)
        options: dict[str, Any] = {"permission": 4} if detour == "forbidden" else {}
        stage = SendStage(takes_runs=each != "single", message_bytes_max=10, **options)
        if detour == "unwritable":
            stage.state.unwritable = "the disk is full"
        topic = {"unknown": "new", "retry": "%RETRY%group"}.get(detour, "orders")
        data = sends(2) + sends(3, 2, topic=topic)
        if detour in ("large", "queue"):
            settings: dict[str, Any] = {"queue_id": 9} if detour == "queue" else {}
            properties = {"UNIQ_KEY": "K"}
            odd = send_request(b"b" * 11, "orders", properties=properties, **settings)
            data = sends(2) + encode(odd) + sends(2, 7)
        stage.read(data)
        stage.commit()
        stage.publish()
        assert stage.runs == 0
        replies.append(stage.written)
    assert replies[0] == replies[1] != b""


@pytest.mark.parametrize("path", RUN_PATHS)
def test_interception_and_the_log_of_requests_see_each_send(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True)
    seen: list[int] = []

    def rule(request: object, _: object) -> object:
        number = request.request_id  # type: ignore[attr-defined]
        seen.append(number)
        return {1: drop(), 2: refuse(14, "no")}.get(number)

    stage.dispatcher.intercept = rule  # type: ignore[assignment]
    stage.read(sends(4))
    stage.commit()
    assert seen == [0, 1, 2, 3]
    assert codes(stage) == [(2, 14), (0, 0), (3, 0)]
    assert bodies(stage) == [b"body 0", b"body 3"]
    stage.dispatcher.intercept = None
    with caplog.at_level(logging.DEBUG, "downrange.server"):
        stage.read(sends(3, 4))
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"< 310 {number} 10.0.0.7:4242" for number in (4, 5, 6)]
    assert stage.runs == 0


@pytest.mark.parametrize("path", RUN_PATHS)
def test_the_limit_of_requests_in_flight_counts_messages(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True, in_flight_max=10)
    stage.read(sends(8))
    assert (stage.connection.unanswered, stage.transport.is_reading) == (8, True)
    stage.read(sends(8, 8))
    assert (stage.connection.unanswered, stage.transport.is_reading) == (10, False)
    assert stage.runs == 1
    stage.commit()
    stage.commit()
    assert codes(stage) == [(number, 0) for number in range(16)]
    assert (stage.connection.unanswered, stage.transport.is_reading) == (0, True)


@pytest.mark.parametrize("path", RUN_PATHS)
def test_what_cannot_be_stored_together_is_stored_apart(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True)
    large = send_request(b"b" * SMALL.log_segment_bytes, "orders", properties={"UNIQ_KEY": "L"})
    large.request_id = 99
    stage.read(sends(2) + encode(large) + sends(2, 2))
    assert stage.runs == 1
    stage.commit()
    illegal = int(ResponseCode.MESSAGE_ILLEGAL)
    assert codes(stage) == [(0, 0), (1, 0), (99, illegal), (2, 0), (3, 0)]
    assert bodies(stage) == [b"body %d" % number for number in range(4)]
    assert "larger than a segment" in str(stage.transport.replies()[2].remark)


@pytest.mark.parametrize("path", RUN_PATHS)
def test_a_run_on_a_full_disk_is_refused_message_by_message(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True)
    stage.files.capacity = 100
    stage.read(sends(3))
    stage.commit()
    full = int(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert codes(stage) == [(number, full) for number in range(3)]
    assert stage.state.unwritable is not None
    assert stage.connection.unanswered == 0


@pytest.mark.parametrize("path", RUN_PATHS)
def test_a_run_that_failed_once_is_stored_message_by_message(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True)
    FailingLog(stage, monkeypatch).failures = 2
    stage.read(sends(3))
    stage.commit()
    assert [code for _, code in codes(stage)] == [int(ResponseCode.MESSAGE_ILLEGAL), 0, 0]
    assert bodies(stage) == [b"body 1", b"body 2"]


@pytest.mark.parametrize("path", RUN_PATHS)
def test_a_handler_that_fails_gets_the_sends_one_by_one(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True)

    def fail(*_: object) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(stage.broker, "handle_run", fail)
    stage.read(sends(2))
    stage.commit()
    assert codes(stage) == [(0, 0), (1, 0)]
    assert "2 sends of 10.0.0.7:4242 failed together" in caplog.text


@pytest.mark.parametrize("path", RUN_PATHS)
def test_one_way_sends_are_stored_and_not_answered(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True, flush="sync")
    requests = [send_request(b"b", "orders", properties={"UNIQ_KEY": "K"}) for _ in range(3)]
    for request in requests:
        request.flags = int(CommandFlag.ONEWAY)
    stage.read(b"".join(map(encode, requests)))
    stage.commit()
    stage.flush()
    assert (stage.runs, stage.written, stage.connection.unanswered) == (1, b"", 0)
    assert bodies(stage) == [b"b"] * 3


@pytest.mark.parametrize("path", RUN_PATHS)
def test_a_run_wakes_the_pulls_that_wait_for_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True)
    pull = pull_request(0, "orders", suspend_ms=50_000)
    pull.request_id = 500
    stage.read(encode(pull))
    stage.publish()
    assert stage.written == b""
    stage.read(sends(2))
    stage.commit()
    stage.publish()
    assert sorted(codes(stage)) == [(0, 0), (1, 0), (500, 0)]
    pulled = next(reply for reply in stage.transport.replies() if reply.request_id == 500)
    assert pulled.fields["nextBeginOffset"] == "2"


@pytest.mark.parametrize("path", RUN_PATHS)
def test_a_connection_that_ended_gets_no_replies(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True, in_flight_max=2)
    stage.read(sends(2))
    stage.read(sends(2, 2))  # they wait, and are dropped
    stage.connection.connection_lost(None)
    stage.commit()
    assert stage.written == b""
    assert bodies(stage) == [b"body 0", b"body 1"]


@pytest.mark.parametrize("path", RUN_PATHS)
def test_a_connection_that_is_being_closed_gets_no_replies(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_path(monkeypatch, path)
    stage = SendStage(takes_runs=True)
    stage.read(sends(2))
    stage.connection.close()
    stage.commit()
    assert stage.written == b""
