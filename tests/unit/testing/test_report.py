"""Messages as lines of a report."""

from __future__ import annotations

from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage
from downrange.testing.report import describe_message, describe_messages


def _message(
    body: bytes = b"1", *, offset: int = 0, attempts: int = 0, **properties: str
) -> ReceivedMessage:
    return ReceivedMessage(
        message_id="id",
        queue=QueueId("orders", "broker-a", 3),
        offset=QueueOffset(offset),
        body=body,
        properties=properties,
        offset_id="",
        log_offset=LogOffset(0),
        flag=0,
        born_at_ms=0,
        born_host="127.0.0.1:1",
        stored_at_ms=0,
        delivery_attempts=attempts,
    )


def test_line_has_place_body_tags_and_keys() -> None:
    message = _message(b"12 apples", offset=7, TAGS="new", KEYS="o-1 o-2", own="left out")
    assert describe_message(message) == (
        "broker-a queue 3 offset 7: '12 apples' (9 bytes), tags='new', keys=['o-1', 'o-2']"
    )


def test_line_names_attempts_of_a_retried_message() -> None:
    assert describe_message(_message(attempts=2)) == (
        "broker-a queue 3 offset 0: '1' (1 byte), delivery_attempts=2"
    )


def test_body_that_is_not_text_is_shown_as_hex() -> None:
    assert describe_message(_message(b"\xff\x00")).endswith(": hex ff00 (2 bytes)")
    assert describe_message(_message(b"a\x1bb")).endswith(": hex 611b62 (3 bytes)")
    assert describe_message(_message("a\tö\n".encode())).endswith(r": 'a\tö\n' (5 bytes)")


def test_long_parts_are_cut() -> None:
    line = describe_message(_message(b"x" * 100_000, TAGS="t" * 1000, KEYS="k" * 1000))
    assert "… (100000 bytes), tags='" in line
    assert len(line) < 500
    assert len(describe_message(_message(b"\xff" * 100_000))) < 300


def test_of_many_messages_the_first_and_the_last_are_listed() -> None:
    messages = [_message(offset=number) for number in range(9)]
    assert len(describe_messages(messages, 9)) == 9
    lines = describe_messages(messages, 4)
    assert [line.partition(":")[0].rpartition(" ")[2] for line in lines if "offset" in line] == [
        *("0", "1"),
        *("7", "8"),
    ]
    assert lines[2] == "… 5 more …"
