"""What becomes of messages that a handler was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.consuming.send_back import level_for, usual_delay
from downrange.client.flows.consuming.verdicts import as_sent, plan_of, verdict_of
from downrange.errors import DeadLetter, OptionError, Retry, RetrySome
from tests.unit.client.flows.consuming.test_delivery_window import messages_at

if TYPE_CHECKING:
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
    verdict = verdict_of([ONE, TWO], [ONE, TWO], error)
    assert list(verdict.done) == done
    assert list(verdict.failed) == failed
    assert (verdict.level, verdict.is_dead) == (level, is_dead)


def test_retry_some_names_messages_as_the_handler_saw_them() -> None:
    stored = messages_at(1, properties="RETRY_TOPIC\x01other\x02")[0]
    shown = as_sent(stored)
    assert shown.topic == "other"
    assert verdict_of([stored], [shown], RetrySome([shown])).failed == [stored]


@pytest.mark.parametrize(
    ("after", "level"), [(None, 0), (0, 1), (1, 1), (1.5, 2), (7200, 18), (9999, 18)]
)
def test_the_level_is_the_first_that_is_long_enough(after: float | None, level: int) -> None:
    assert level_for(after) == level


def test_the_usual_delay_grows_with_the_attempts() -> None:
    assert [usual_delay(attempts) for attempts in (0, 1, 15, 99)] == [10, 30, 7200, 7200]


@pytest.mark.parametrize(
    ("error", "retries", "plan"),
    [
        (DeadLetter("why"), 16, "it becomes a dead letter"),
        (ValueError(), 16, "attempt 2 of 17 follows in about 10 s"),
        (Retry(2.5), None, "attempt 2 follows in about 2.5 s"),
        (ValueError(), 0, "it becomes a dead letter after 1 attempts"),
    ],
)
def test_the_plan_for_the_log(error: Exception, retries: int | None, plan: str) -> None:
    assert plan_of(verdict_of([ONE], [ONE], error), retries) == plan


def test_signals_say_what_they_ask_for() -> None:
    assert str(Retry()) == "try again"
    assert str(Retry(2.5)) == "try again after 2.5 s"
    assert DeadLetter("why").reason == "why"
    with pytest.raises(OptionError, match="after=-1"):
        Retry(-1)
    with pytest.raises(OptionError, match="messages is empty"):
        RetrySome([])
