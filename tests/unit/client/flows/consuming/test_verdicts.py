"""What becomes of messages that a handler was given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.consuming.send_back import delay_of, level_for, usual_delay
from downrange.client.flows.consuming.verdicts import (
    as_dead,
    check_answer,
    is_done,
    is_used_up,
    plan_of,
    show_as_sent,
    verdict_of,
)
from downrange.errors import DeadLetter, OptionError, Retry, RetrySome
from downrange.model import QueueId
from downrange.wire.properties import encode_properties
from tests.unit.client.flows.consuming.test_delivery_window import messages_at

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from downrange.model import ReceivedMessage

ONE, TWO = messages_at(1, 2)
OTHER = messages_at(9)[0]


@pytest.mark.parametrize(
    ("error", "done", "failed", "level", "is_dead"),
    [
        (ValueError("bad"), [], [ONE, TWO], 0, False),
        (Retry(), [], [ONE, TWO], 0, False),
        (Retry(after=20), [], [ONE, TWO], 4, False),
        (DeadLetter("why"), [], [ONE, TWO], -1, True),
        (RetrySome([TWO], after=1), [ONE], [TWO], 1, False),
        (RetrySome([OTHER]), [], [ONE, TWO], 0, False),  # nothing says that these are done
        (RetrySome([]), [ONE, TWO], [], 0, False),
    ],
)
def test_what_an_exception_means(
    error: Exception,
    done: list[ReceivedMessage],
    failed: list[ReceivedMessage],
    level: int,
    *,
    is_dead: bool,
) -> None:
    verdict = verdict_of([ONE, TWO], error)
    assert list(verdict.done) == done
    assert list(verdict.failed) == failed
    assert (verdict.level, verdict.is_dead) == (level, is_dead)


def test_messages_that_were_handled_before_are_done() -> None:
    assert verdict_of([TWO], ValueError("bad"), done=[ONE]).done == [ONE]
    assert verdict_of([TWO], DeadLetter("why"), done=[ONE]).done == [ONE]
    some = verdict_of([TWO, OTHER], RetrySome([OTHER]), done=[ONE])
    assert (some.done, some.failed) == ([ONE, TWO], [OTHER])


def test_only_results_are_answers_of_handlers() -> None:
    async def wait() -> None: ...

    async def both() -> AsyncGenerator[int]:
        yield 1

    class Promise:
        def __await__(self) -> Generator[None]:
            yield

    for answer in (wait(), both(), (each for each in "ab"), Promise()):
        with pytest.raises(OptionError, match=f"the handler returned a {type(answer).__name__}"):
            check_answer(answer)
    for result in (None, 0, "done", [1], object()):
        check_answer(result)


def test_dead_letters_are_sent_back_with_a_level_of_their_own() -> None:
    verdict = as_dead([ONE])
    assert (list(verdict.done), verdict.failed) == ([], [ONE])
    assert (verdict.level, verdict.is_dead) == (-1, True)


def test_a_retried_message_is_shown_with_the_topic_that_it_was_sent_to() -> None:
    properties = encode_properties({"RETRY_TOPIC": "prod%other"})
    retried = messages_at(1, properties=properties)[0]
    show_as_sent(retried, "prod")
    assert (retried.queue, retried.offset) == (QueueId("other", "a", 0), 1)
    first = messages_at(1)[0]
    show_as_sent(first, "prod")
    assert first.topic == "orders"


@pytest.mark.parametrize(
    ("after", "level"), [(None, 0), (0, 1), (1, 1), (1.5, 2), (7200, 18), (9999, 18)]
)
def test_the_level_is_the_first_that_is_long_enough(after: float | None, level: int) -> None:
    assert level_for(after) == level


def test_the_usual_delay_grows_with_the_attempts() -> None:
    assert [usual_delay(attempts) for attempts in (0, 1, 15, 99)] == [10, 30, 7200, 7200]


def test_the_delay_of_a_level() -> None:
    assert [delay_of(level, 1) for level in (0, 1, 18)] == [30, 1, 7200]


def test_only_an_empty_list_says_that_all_messages_are_done() -> None:
    errors = (RetrySome([]), RetrySome([ONE]), Retry(), ValueError())
    assert [is_done(error) for error in errors] == [True, False, False, False]


def test_a_message_is_used_up_when_it_was_delivered_again_so_often() -> None:
    second = replace(ONE, delivery_attempts=1)
    assert [is_used_up(second, retries) for retries in (0, 1, 2, None)] == [
        *(True, True, False, False)
    ]


@pytest.mark.parametrize(
    ("seconds", "retries", "is_asked", "plan"),
    [
        (None, 16, True, "it becomes a dead letter"),
        (None, 1, False, "it becomes a dead letter after 2 attempts"),
        (30, 16, False, "attempt 3 of 17 follows in about 30 s"),
        (2.5, None, False, "attempt 3 follows in about 2.5 s"),
        (0.0, 1, True, "attempt 3 follows in about 0 s"),  # it was too late for a dead letter
    ],
)
def test_the_plan_for_the_log(
    seconds: float | None, retries: int | None, plan: str, *, is_asked: bool
) -> None:
    second = replace(ONE, delivery_attempts=1)
    assert plan_of(second, seconds, retries, is_asked=is_asked) == plan


def test_signals_say_what_they_ask_for() -> None:
    assert str(Retry()) == "deliver the message again after the usual time"
    assert str(Retry(2.5)) == "deliver the message again after 2.5 s"
    assert str(RetrySome([ONE])) == "deliver 1 of the messages again after the usual time"
    assert DeadLetter("why").reason == "why"
    with pytest.raises(OptionError, match="after=-1"):
        Retry(-1)
