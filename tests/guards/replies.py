"""Replies to pulls whose cost for the client is counted: from the body of a reply to the messages.

A consumer that uses all fields of a message pays for all; most use the body and few others.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from benchmarks.wire import read_bodies, read_bodies_ids_and_tags, split_pull

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.guards.count import Operation

#: As many as Apache returns at once.
PULLED: Final = 32


@contextmanager
def bodies() -> Generator[Operation]:
    """Only the body of each message is used."""
    yield read_bodies


@contextmanager
def bodies_ids_and_tags() -> Generator[Operation]:
    """The body, the id and the tag of each message are used."""
    yield read_bodies_ids_and_tags


@contextmanager
def everything() -> Generator[Operation]:
    """All fields are used, as by a comparison."""
    yield lambda: split_pull() == split_pull()
