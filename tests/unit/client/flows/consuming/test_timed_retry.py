"""Messages that come again after any number of seconds, by the timer of a broker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.timed_retry import send_timed_retry
from downrange.client.flows.notices import HandlerFailed
from downrange.errors import ConnectionLost, DeadLetter, Retry, RetrySome
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.compression import Compression, flags_of
from downrange.wire.headers import SendReply, SendRequestV2
from downrange.wire.properties import decode_properties, encode_properties
from tests.unit.client.flows.consuming.group_stage import A0, GROUP, Stage
from tests.unit.client.flows.consuming.test_delivery_window import messages_at
from tests.unit.client.flows.fake_servers import refusal, reply

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage

SEND = RequestCode.SEND_MESSAGE_V2
STORED = reply(SendReply("0A00000200002A9F00000000000003E8", 0, 5))


def sent(
    message: ReceivedMessage, retries: int | None = 16, namespace: str | None = None
) -> tuple[SendRequestV2, dict[str, str], bytes]:
    """Send a message to the retry topic; return what the broker got."""
    stage = Stage(namespace=namespace)
    stage.servers.answer("a:1", SEND, STORED)
    inner, until = stage.push.inner, stage.now + 5
    stage.run(send_timed_retry(inner, GROUP, message, "a", 2.5, retries, deadline=until))
    (command,) = [command for _, command in stage.servers.calls if command.code == SEND]
    header = SendRequestV2.from_fields(command.fields)
    return header, decode_properties(header.properties or ""), command.body


def test_the_message_goes_to_the_retry_topic_with_its_delay_and_its_attempts() -> None:
    (message,) = messages_at(7, body=b"hello", properties=encode_properties({"TAGS": "new"}))
    header, properties, body = sent(message)
    assert (header.topic, body) == ("%RETRY%billing", b"hello")
    assert (header.reconsume_times, header.max_reconsume_times) == (1, 16)
    assert properties["TIMER_DELAY_MS"] == "2500"
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == message.offset_id
    assert properties["TAGS"] == "new"


def test_what_brokers_added_for_an_earlier_delivery_is_left_out() -> None:
    properties = {
        "TIMER_OUT_MS": "1",
        "DELAY": "3",
        "RETRY_TOPIC": "prod%orders",
        "ORIGIN_MESSAGE_ID": "first",
    }
    (message,) = messages_at(7, properties=encode_properties(properties))
    message = replace(message, delivery_attempts=2)
    header, found, _ = sent(message, None, "prod")
    assert header.topic == "%RETRY%prod%billing"
    assert (header.reconsume_times, header.max_reconsume_times) == (3, None)
    assert not {"TIMER_OUT_MS", "DELAY"} & found.keys()
    assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == ("prod%orders", "first")


def test_the_flag_and_the_compression_stay() -> None:
    (message,) = messages_at(7)
    header, _, _ = sent(replace(message, flag=9, compression="zlib"))
    assert (header.flag, header.sys_flag) == (9, flags_of(Compression.ZLIB))


# ---- by a member -----------------------------------------------------------------------------


def handled(
    error: BaseException, *answers: Any, has_timer: bool = True, retries: int | None = None
) -> Stage:
    """Let a handler fail once."""
    stage = Stage(start="earliest", retries=retries)
    stage.enter()
    stage.window().has_timer = has_timer
    stage.servers.answer("a:1", SEND, *answers)
    stage.errors = [error]
    stage.fill(A0, 1)
    stage.work()
    return stage


def test_a_broker_with_a_timer_keeps_the_time() -> None:
    stage = handled(Retry(2.5), STORED)
    assert (stage.asked(SEND), stage.sent_back) == (1, [])
    assert stage.member.counts.sent_back == 1
    assert stage.window().position == 1
    (notice,) = stage.published(HandlerFailed)
    assert notice.plan == "attempt 2 of 17 follows in about 2.5 s"


@pytest.mark.parametrize(
    ("error", "has_timer", "level"),
    [
        (Retry(2.5), False, 2),
        (Retry(), True, 0),
        (Retry(0), True, 1),
        (ValueError("bad"), True, 0),
        (DeadLetter("why"), True, -1),
    ],
)
def test_anything_else_is_sent_back(error: Exception, level: int, *, has_timer: bool) -> None:
    stage = handled(error, STORED, has_timer=has_timer)
    assert (stage.asked(SEND), stage.sent_back) == (0, [(0, level)])


@pytest.mark.parametrize("error", [Retry(6), RetrySome(messages_at(0), 6), ValueError("bad")])
def test_a_message_that_is_used_up_is_a_dead_letter_at_once(error: Exception) -> None:
    """Not after the time that the handler asked for."""
    stage = handled(error, STORED, retries=0)
    assert (stage.asked(SEND), stage.sent_back) == (0, [(0, -1)])
    assert (stage.member.counts.dead, stage.member.counts.sent_back) == (1, 0)
    (notice,) = stage.published(HandlerFailed)
    assert notice.plan == "it becomes a dead letter after 1 attempts"


@pytest.mark.parametrize(
    ("error", "seconds"), [(Retry(864000), 7200), (Retry(1.5), 5), (Retry(0), 1), (Retry(), 10)]
)
def test_the_plan_has_the_time_of_the_level(error: Exception, seconds: int) -> None:
    stage = handled(error, refusal(ResponseCode.MESSAGE_ILLEGAL, "timer message illegal"))
    (notice,) = stage.published(HandlerFailed)
    assert notice.plan == f"attempt 2 of 17 follows in about {seconds} s"


def test_a_message_that_the_timer_refuses_is_sent_back() -> None:
    stage = handled(Retry(2.5), refusal(ResponseCode.MESSAGE_ILLEGAL, "timer message illegal"))
    assert (stage.asked(SEND), stage.sent_back) == (1, [(0, 2)])
    assert stage.member.counts.sent_back == 1


def test_a_message_that_may_be_stored_is_not_sent_back_as_well() -> None:
    stage = handled(Retry(2.5), ConnectionLost("a:1", "cut"))
    assert stage.sent_back == []
    assert stage.window().position == 0
    assert len(stage.window().postponed) == 1
    (notice,) = stage.published(HandlerFailed)
    assert "could not be sent back" in notice.plan
