"""Filters of a topic, one after the other, with what is sent while each of them counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange import Message, Sql

if TYPE_CHECKING:
    from downrange import Producer

_AMOUNTS: Final = {"A": 1, "B": 3, "C": 5}

#: A filter, the tags of the messages that are sent then, and the tags that match. The last message
#: of each matches: no pull is left before messages that an earlier filter did not let pass.
ROUNDS: Final[list[tuple[str | Sql, str, str]]] = [
    ("A", "ABA", "A"),
    ("B", "BAB", "B"),
    (Sql("amount > 3"), "CAC", "C"),
    ("*", "ABC", "ABC"),
    ("A || C", "CBA", "AC"),
]


def send_round(producer: Producer, topic: str, number: int) -> list[str]:
    """Send the messages of a round; return the bodies of those that match, in order."""
    _, sent, matching = ROUNDS[number]
    expected: list[str] = []
    for index, tag in enumerate(sent):
        body = f"{number}{index}{tag}"
        producer.send(Message(topic, body, tags=tag, properties={"amount": f"{_AMOUNTS[tag]}"}))
        if tag in matching:
            expected.append(body)
    return expected
