"""What becomes of messages that a handler was given: done, delivered again, or a dead letter.

returns              done
raises               delivered again, after the usual time
raises Retry         delivered again, after a time of its own
raises RetrySome     some of a batch are delivered again, the others are done; all without any
raises DeadLetter    dead letters

A handler that returns a coroutine or a generator has not done its work: that is an error, too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator
from typing import TYPE_CHECKING

import msgspec

from downrange.client.flows.consuming.send_back import (
    BROKERS_CHOICE,
    DEAD_LETTER_LEVEL,
    level_for,
)
from downrange.client.flows.names import without_namespace
from downrange.errors import DeadLetter, OptionError, Retry, RetrySome
from downrange.model import QueueId
from downrange.wire.properties import PropertyKey
from downrange.wire.reply_messages import place

if TYPE_CHECKING:  # the struct here is never decoded, so its annotations are not evaluated
    from collections.abc import Sequence  # noqa: TC004

    from downrange.model import ReceivedMessage  # noqa: TC004


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of messages that were handed out.

    Attributes:
        done: Those that are done.
        failed: Those to deliver again; perhaps none.
        level: The delay level for the broker.
        after: Seconds until the next attempt; None for the usual time.
        is_dead: Whether the failed ones become dead letters.
    """

    done: Sequence[ReceivedMessage]
    failed: Sequence[ReceivedMessage]
    level: int = BROKERS_CHOICE
    after: float | None = None
    is_dead: bool = False


def verdict_of(
    messages: Sequence[ReceivedMessage],
    error: BaseException,
    *,
    done: Sequence[ReceivedMessage] = (),
) -> Verdict:
    """Return what an exception of a handler means.

    Args:
        messages: The messages that the handler had.
        error: The exception.
        done: Messages that were handled before.
    """
    if isinstance(error, DeadLetter):
        return Verdict(done, messages, DEAD_LETTER_LEVEL, is_dead=True)
    if isinstance(error, Retry):
        return Verdict(done, messages, level_for(error.after), error.after)
    if isinstance(error, RetrySome):
        named = set(error.messages)
        handled = [message for message in messages if message not in named]
        failed = [message for message in messages if message in named]
        if not failed and named:  # it names others only: nothing says that these are done
            handled, failed = [], list(messages)
        return Verdict([*done, *handled], failed, level_for(error.after), error.after)
    return Verdict(done, messages)


def check_answer(answer: object) -> None:
    """Refuse what only promises the work of a handler: its message would count as done.

    A plain function returns it if it wraps a coroutine function, such as a decorator.

    Raises:
        OptionError: It is a coroutine, a generator or another awaitable.
    """
    if isinstance(answer, Awaitable | Generator | AsyncGenerator):
        if isinstance(answer, Coroutine | Generator):
            answer.close()
        raise OptionError(
            f"the handler returned a {type(answer).__name__}, so it has not handled the message; "
            "give an `async def` function to AsyncPushConsumer, or a plain function without yield"
        )


def as_dead(messages: Sequence[ReceivedMessage]) -> Verdict:
    """Return the verdict by which messages become dead letters."""
    return Verdict((), messages, DEAD_LETTER_LEVEL, is_dead=True)


def show_as_sent(message: ReceivedMessage, namespace: str | None) -> None:
    """Give a message the topic that it was sent to: a retried one was read from the retry topic.

    Only for a message that no user has seen yet.
    """
    topic = message.properties.get(PropertyKey.RETRY_TOPIC)
    if topic:
        shown = without_namespace(topic, namespace)
        place(message, QueueId(shown, message.queue.broker, message.queue.number), message.offset)


def is_done(error: BaseException) -> bool:
    """Return whether an exception of a handler says that no message failed."""
    return isinstance(error, RetrySome) and not error.messages


def is_used_up(message: ReceivedMessage, retries: int | None) -> bool:
    """Return whether a message that failed is not delivered again.

    Args:
        message: The message.
        retries: How often a message is delivered again; None for no limit.
    """
    return retries is not None and message.delivery_attempts >= retries


def plan_of(
    message: ReceivedMessage, seconds: float | None, retries: int | None, *, is_asked: bool
) -> str:
    """Return what the broker does with a failed message, for the log.

    Args:
        message: The message.
        seconds: Until it is delivered again; None for a dead letter.
        retries: How often a message is delivered again; None for no limit.
        is_asked: Whether the handler asked for a dead letter.
    """
    attempts = message.delivery_attempts
    if seconds is None:
        after = "" if is_asked else f" after {attempts + 1} attempts"
        return f"it becomes a dead letter{after}"
    limit = "" if retries is None or attempts >= retries else f" of {retries + 1}"
    return f"attempt {attempts + 2}{limit} follows in about {seconds:g} s"
