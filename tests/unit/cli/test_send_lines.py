from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from downrange.cli.message_input import InputLine, MessageDefaults, parse_lines
from downrange.cli.output import batch_facts
from downrange.cli.send_lines import LineSender, group_lines
from downrange.cli.send_progress import ProgressLines, RateLimit
from downrange.errors import BatchFailed, OptionError, SendUnreachable
from downrange.model import BatchReceipt, Message, QueueId, QueueOffset, SendReceipt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange import Producer


def _receipt(count: int = 1) -> SendReceipt:
    names = [f"m{number}" for number in range(count)]
    return SendReceipt(
        message_id=",".join(names),
        queue=QueueId("orders", "a", 1),
        offset=QueueOffset(10),
        offset_id=",".join(name.upper() for name in names),
    )


class FakeProducer:
    """Fails at the body "bad"; a batch is sent two by two, up to the first failure."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.oneway: list[bytes] = []
        self.requests: list[int] = []

    def send(self, message: Message) -> SendReceipt:
        if message.body == b"interrupt":
            raise KeyboardInterrupt
        if message.body == b"bad":
            raise SendUnreachable("orders", [], 0.0)
        self.bodies.append(message.body)
        self.requests.append(1)
        return _receipt()

    def send_oneway(self, message: Message) -> None:
        self.oneway.append(message.body)

    def send_batch(self, messages: list[Message]) -> BatchReceipt:
        receipts: list[SendReceipt] = []
        for start in range(0, len(messages), 2):
            part = messages[start : start + 2]
            if any(message.body == b"bad" for message in part):
                failure = SendUnreachable("orders", [], 0.0)
                if not receipts:
                    raise failure
                stored = BatchReceipt(tuple(receipts), (2,) * len(receipts))
                raise BatchFailed(failure, stored=stored, unsent=part)
            self.bodies += [message.body for message in part]
            self.requests.append(len(part))
            receipts.append(_receipt(len(part)))
        return BatchReceipt(tuple(receipts), (2,) * len(receipts))


def _sender(producer: FakeProducer, **settings: Any) -> LineSender:
    return LineSender(cast("Producer", producer), **settings)


def _lines(*bodies: bytes) -> Iterable[InputLine]:
    return parse_lines([body + b"\n" for body in bodies], MessageDefaults(topic="orders"), "text")


def test_messages_go_out_in_order_and_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    producer = FakeProducer()
    progress: list[tuple[int, int]] = []
    sender = _sender(
        producer, on_progress=lambda count, byte_count: progress.append((count, byte_count))
    )
    assert sender.send_all(_lines(b"1", b"22"), 1, RateLimit(None), stops_on_error=True) == 0
    assert producer.bodies == [b"1", b"22"]
    assert (sender.sent, sender.failed, progress) == (2, 0, [(1, 2), (1, 3)])
    assert capsys.readouterr().out.startswith("sent 2 messages in ")


def test_a_failure_stops_with_its_line_and_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    producer = FakeProducer()
    sender = _sender(producer)
    assert sender.send_all(_lines(b"1", b"bad", b"3"), 1, RateLimit(None), stops_on_error=True) == 3
    assert (producer.bodies, sender.sent, sender.failed) == ([b"1"], 1, 1)
    assert "downrange: line 2: a message for 'orders' was not stored" in capsys.readouterr().err


def test_a_failure_can_be_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    producer = FakeProducer()
    sender = _sender(producer)
    assert (
        sender.send_all(_lines(b"bad", b"2", b"bad"), 1, RateLimit(None), stops_on_error=False) == 1
    )
    assert (producer.bodies, sender.sent, sender.failed) == ([b"2"], 1, 2)
    assert ", 2 failed" in capsys.readouterr().out


def test_an_invalid_line_is_a_failure_and_not_wrong_use() -> None:
    sender = _sender(FakeProducer())
    lines = [InputLine(1, 1, OptionError("odd"))]
    assert sender.send_all(lines, 1, RateLimit(None), stops_on_error=True) == 1
    assert sender.failed == 1


def test_ctrl_c_still_prints_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    sender = _sender(FakeProducer())
    assert (
        sender.send_all(_lines(b"1", b"interrupt"), 1, RateLimit(None), stops_on_error=True) == 130
    )
    assert capsys.readouterr().out.startswith("sent 1 messages")


def test_oneway_messages_have_no_receipt(capsys: pytest.CaptureFixture[str]) -> None:
    producer = FakeProducer()
    sender = _sender(producer, is_oneway=True, as_json=True)
    assert sender.send_all(_lines(b"1", b"2"), 1, RateLimit(None), stops_on_error=True) == 0
    assert (producer.oneway, sender.sent) == ([b"1", b"2"], 2)
    assert capsys.readouterr().out == ""


def test_json_has_a_line_for_each_message_of_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    producer = FakeProducer()
    sender = _sender(producer, as_json=True)
    assert sender.send_all(_lines(b"1", b"2", b"3"), 2, RateLimit(None), stops_on_error=True) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert producer.requests == [2, 1]
    assert [each["line"] for each in facts] == [1, 2, 3]
    assert [each["message_id"] for each in facts] == ["m0", "m1", "m0"]
    assert [each["offset"] for each in facts] == [10, 11, 10]


def test_a_batch_that_is_sent_in_part_counts_both(capsys: pytest.CaptureFixture[str]) -> None:
    sender = _sender(FakeProducer(), as_json=True)
    assert sender.send_all(_lines(b"1", b"2", b"bad"), 3, RateLimit(None), stops_on_error=True) == 1
    captured = capsys.readouterr()
    assert (sender.sent, sender.failed) == (2, 1)
    assert [json.loads(line)["line"] for line in captured.out.splitlines()] == [1, 2]
    assert "downrange: line 1-3: " in captured.err


def test_an_offset_id_of_a_whole_batch_is_that_of_each_message() -> None:
    receipt = SendReceipt(
        message_id="m0,m1", queue=QueueId("t", "a", 0), offset=QueueOffset(0), offset_id="X"
    )
    assert [each["offset_id"] for each in batch_facts(receipt)] == ["X", "X"]


def test_lines_are_grouped_as_soon_as_a_group_is_full() -> None:
    taken: list[int] = []

    def source() -> Iterable[InputLine]:
        for line in _lines(b"1", b"2", b"3"):
            taken.append(line.number)
            yield line

    groups = group_lines(source(), 2)
    assert len(next(groups)) == 2
    assert taken == [1, 2]
    assert [line.number for line in next(groups)] == [3]


def test_lines_that_cannot_share_a_request_are_not_group_lines() -> None:
    lines = [
        InputLine(1, 1, Message("t", b"1")),
        InputLine(2, 1, OptionError("odd")),
        InputLine(3, 1, Message("t", b"1", sharding_key="a")),
        InputLine(4, 1, Message("t", b"1", sharding_key="a")),
        InputLine(5, 1, Message("t", b"1", sharding_key="b")),
        InputLine(6, 1, Message("t", b"1", delay_level=1)),
        InputLine(7, 1, Message("t", b"1", delay_level=1)),
    ]
    groups = [[line.number for line in group] for group in group_lines(lines, 10)]
    assert groups == [[1], [2], [3, 4], [5], [6], [7]]


class FakeTime:
    def __init__(self) -> None:
        self.seconds = 100.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(round(seconds, 6))
        self.seconds += seconds


def test_a_rate_limit_spreads_messages_over_time() -> None:
    time = FakeTime()
    rate = RateLimit(10.0, time.now, time.sleep)
    for count in (1, 1, 5, 1):
        rate.wait(count)
    assert time.sleeps == [0.1, 0.1, 0.5]


def test_a_rate_limit_has_no_burst_after_a_slow_period() -> None:
    time = FakeTime()
    rate = RateLimit(10.0, time.now, time.sleep)
    rate.wait(1)
    time.seconds += 60.0
    rate.wait(1)
    rate.wait(1)
    assert time.sleeps == [0.1]


def test_without_a_rate_there_is_no_wait() -> None:
    time = FakeTime()
    rate = RateLimit(None, time.now, time.sleep)
    rate.wait(1000)
    rate.wait(1000)
    assert time.sleeps == []


@pytest.mark.parametrize(("total", "line"), [(100, "3 messages (30 %)\n"), (None, "3 messages\n")])
def test_progress_without_a_terminal_is_a_line_every_few_seconds(
    total: int | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    time = FakeTime()
    progress = ProgressLines(total, time.now)
    progress(1, 10)
    time.seconds += 5.0
    progress(2, 20)
    progress(1, 10)
    assert capsys.readouterr().err == line
