"""What topics hold, as text for the report of a failed test; bounded in size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.testing.topic_reader import TopicReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from downrange import Client
    from downrange.model import ReceivedMessage
    from downrange.testing.topic_reader import LogEnds

#: The report of a failed test has at most so many topics, messages of a topic and characters.
TOPICS_MAX: Final = 20
MESSAGES_MAX: Final = 10
_BODY_CHARACTERS_MAX: Final = 200
_WORDS_CHARACTERS_MAX: Final = 100
#: Messages of a topic that are counted.
_COUNTED_MAX: Final = 1000


def describe_topics(client: Client, topics: Iterable[str], since: LogEnds, timeout: float) -> str:
    """Return what topics hold; those without messages are left out.

    Args:
        client: A running client.
        topics: The topics.
        since: Messages behind these ends of the brokers' logs.
        timeout: For everything.
    """
    core = client.core
    deadline = core.clock.now() + timeout
    lines: list[str] = []
    count = 0
    for topic in sorted(topics):
        reader = TopicReader(topic, since, max_count=_COUNTED_MAX)
        error: RocketMQError | None = None
        try:
            client.run(reader.read(core, deadline=deadline))
        except RocketMQError as failure:
            error = failure
        if not (reader.messages or reader.failures or error):
            continue
        count += 1
        if count <= TOPICS_MAX:
            lines += _describe_topic(reader, error)
    if count > TOPICS_MAX:
        lines.append(f"and {count - TOPICS_MAX} more topics with messages")
    return "\n".join(lines) or "no messages since the test began"


def _describe_topic(reader: TopicReader, error: RocketMQError | None) -> list[str]:
    count = len(reader.messages)
    shown = f"{count} or more" if reader.is_full else str(count)
    lines = [f"{reader.topic}: {shown} message{'' if count == 1 else 's'}"]
    lines += [f"  {line}" for line in describe_messages(reader.in_order(), MESSAGES_MAX)]
    lines += [f"  {name} cannot be read: {why.brief}" for name, why in reader.failures.items()]
    if error is not None:
        lines.append(f"  cannot be read: {error}")
    return lines


def describe_messages(messages: Sequence[ReceivedMessage], most: int) -> list[str]:
    """Return a line per message; of many messages, the first and the last."""
    if len(messages) <= most:
        return [describe_message(message) for message in messages]
    first, last = messages[: most // 2], messages[len(messages) - most // 2 :]
    return [
        *(describe_message(message) for message in first),
        f"… {len(messages) - len(first) - len(last)} more …",
        *(describe_message(message) for message in last),
    ]


def describe_message(message: ReceivedMessage) -> str:
    """Return one line about a message: its place, body, tags and keys."""
    queue = message.queue
    parts = [_shown_body(message.body)]
    if message.tags is not None:
        parts.append(f"tags={_cut(repr(message.tags), _WORDS_CHARACTERS_MAX)}")
    if message.keys:
        parts.append(f"keys={_cut(repr(message.keys), _WORDS_CHARACTERS_MAX)}")
    if message.delivery_attempts:
        parts.append(f"delivery_attempts={message.delivery_attempts}")
    return f"{queue.broker} queue {queue.number} offset {message.offset}: {', '.join(parts)}"


def _shown_body(body: bytes) -> str:
    """Return a body as text, or as hexadecimal digits if it is not text."""
    size = f"{len(body)} byte{'' if len(body) == 1 else 's'}"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and all(mark.isprintable() or mark in "\t\r\n" for mark in text):
        return f"{_cut(repr(text), _BODY_CHARACTERS_MAX)} ({size})"
    return f"hex {_cut(body.hex(), _BODY_CHARACTERS_MAX)} ({size})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
