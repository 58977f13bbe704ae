from __future__ import annotations

from datetime import UTC, datetime

import pytest

from downrange.cli.message_input import InputLine, MessageDefaults, parse_lines
from downrange.cli.output import print_json
from downrange.client.exports import message_facts
from downrange.errors import OptionError, RocketMQError
from downrange.model import LogOffset, Message, QueueId, QueueOffset, ReceivedMessage

ORDERS = MessageDefaults(topic="orders")


def _messages(
    *lines: bytes, defaults: MessageDefaults = ORDERS, form: str = "json"
) -> list[Message]:
    made: list[Message] = []
    for line in parse_lines(lines, defaults, "json" if form == "json" else "text"):
        assert isinstance(line.outcome, Message), line.outcome
        made.append(line.outcome)
    return made


def _error(line: bytes, defaults: MessageDefaults = ORDERS) -> RocketMQError:
    (made,) = parse_lines([line], defaults, "json")
    assert isinstance(made.outcome, OptionError)
    return made.outcome


def test_each_line_is_a_body_without_its_end() -> None:
    bodies = [each.body for each in _messages(b"one\n", b"two\r\n", b" 3 ", form="text")]
    assert bodies == [b"one", b"two", b" 3 "]


def test_empty_lines_are_skipped_but_counted() -> None:
    lines = [line.number for line in parse_lines([b"\n", b"x\n", b"\r\n", b"y"], ORDERS, "text")]
    assert lines == [2, 4]
    assert list(parse_lines([b"  \n"], ORDERS, "json")) == []


def test_a_line_that_is_not_text_is_sent_unchanged() -> None:
    assert _messages(b"\xff\x00\n", form="text")[0].body == b"\xff\x00"


def test_options_of_the_command_apply_to_every_line() -> None:
    defaults = MessageDefaults(
        topic="orders",
        tags="new",
        keys=("k",),
        properties=(("color", "red"),),
        sharding_key="s",
        delay_level=3,
    )
    for message in _messages(b"1", b"2", defaults=defaults, form="text"):
        assert (message.topic, message.tags, message.keys) == ("orders", "new", ("k",))
        assert (message.properties, message.sharding_key) == ({"color": "red"}, "s")
        assert message.delay_level == 3


def test_a_line_of_json_overrides_the_options() -> None:
    defaults = MessageDefaults(
        topic="orders", tags="new", properties=(("a", "1"), ("b", "2")), delay_level=3
    )
    line = b'{"body": "x", "tags": "own", "keys": ["k"], "properties": {"b": "3"}, "deliver_in": 5}'
    (message,) = _messages(line, defaults=defaults)
    assert (message.tags, message.keys) == ("own", ("k",))
    assert message.properties == {"a": "1", "b": "3"}
    assert (message.delay_level, message.deliver_in) == (None, 5.0)


def test_a_time_in_json_is_when_to_deliver() -> None:
    (message,) = _messages(b'{"body": "x", "deliver_at": "2030-01-31T12:00:00Z"}')
    assert message.deliver_at == datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (b'{"body": "text"}', b"text"),
        (b'{"body": {"a": [1, null]}}', b'{"a":[1,null]}'),
        (b'{"body": null}', b"null"),
        (b'{"body_base64": "/wA="}', b"\xff\x00"),
    ],
)
def test_a_body_is_text_json_or_bytes(line: bytes, body: bytes) -> None:
    assert _messages(line)[0].body == body


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "invalid JSON line"),
        (b"[1]", "invalid JSON line"),
        (b"{}", "either 'body' or 'body_base64'"),
        (b'{"body": "x", "body_base64": "eA=="}', "either 'body' or 'body_base64'"),
        (b'{"body": "x", "tag": "new"}', "`tag`"),
        (b'{"body": "x", "properties": {"a": 1}}', "properties"),
        (b'{"body_base64": "x"}', "not base64"),
        (b'{"body": "x", "keys": ["a b"]}', "'a b'"),
        (b'{"body": "x", "delay_level": 1, "deliver_in": 2}', "one way only"),
    ],
)
def test_an_invalid_line_has_an_error(line: bytes, words: str) -> None:
    assert words in str(_error(line))


def test_the_next_line_is_parsed_after_an_invalid_one() -> None:
    lines = list(parse_lines([b"{\n", b'{"body": "x"}\n'], ORDERS, "json"))
    assert isinstance(lines[0].outcome, OptionError)
    assert isinstance(lines[1].outcome, Message)
    assert [line.byte_count for line in lines] == [2, 14]


def test_what_tail_prints_can_be_sent_again(capsys: pytest.CaptureFixture[str]) -> None:
    received = ReceivedMessage(
        message_id="id",
        queue=QueueId("old", "a", 1),
        offset=QueueOffset(7),
        body=b"\xff",
        properties={"TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": "id", "color": "red"},
        offset_id="00",
        log_offset=LogOffset(1),
        flag=0,
        born_at_ms=1,
        born_host="10.0.0.1:1",
        stored_at_ms=2,
    )
    print_json(message_facts(received))
    (message,) = _messages(capsys.readouterr().out.encode())
    assert (message.topic, message.body, message.tags) == ("orders", b"\xff", "new")
    assert (message.keys, message.properties) == (("k1", "k2"), {"color": "red"})


def test_a_line_has_its_size_for_the_progress() -> None:
    (line,) = parse_lines([b"four\n"], ORDERS, "text")
    assert line == InputLine(1, 5, line.outcome)
