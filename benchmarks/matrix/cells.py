"""The cells of the matrix: one client that does one work with one server.

A work means the same for each client that supports it:

- "sync-1": one message is sent after the other. With asyncio, one task awaits each send.
- "sync-64": the same in 64 threads; with asyncio, in 64 tasks; the generator has 64 connections.
- "async-256": 256 messages are in flight, from one thread. With asyncio, 256 tasks; in threads,
  futures of `submit`; in Java, callbacks.
- "one-way": only each 500th message is a normal one with a reply: otherwise a server that is too
  slow would drop messages.
- "batch": batches of 100, eight of them in flight. In Java, from eight threads.
- "auto-batch": as "async-256", and the client puts messages into batches.
- "transactions": half message, local work that does nothing, commit; in 64 threads or tasks.
- "pull": a topic is read from its first to its last message, repeatedly, with one request of up
  to 32 messages in flight for each of its four queues.
- "pull-commit", "pop-ack": the same as a consumer group, a new one for each pass. After each reply,
  the offset is committed, or the popped messages are acknowledged in one request. Only by the
  generator: the server's CPU for both is compared.
- "push": a push consumer of a new group handles a filled topic from its first to its last message,
  repeatedly; the handler reads the length of the body. Java's has its defaults: 20 threads, pulls
  of 32 messages. Measured from the first to the last call of the handler.
- "push-one": from the call of `send` until the handler begins, one message after the other, with
  producer and push consumer in one process. "push-paced": the same with 500 messages per second.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

ClientName: TypeAlias = Literal["java", "threads", "awake", "asyncio", "generator"]
ServerName: TypeAlias = Literal["downrange", "apache"]
FlushName: TypeAlias = Literal["async", "sync"]
WorkName: TypeAlias = Literal[
    "sync-1",
    "sync-64",
    "async-256",
    "one-way",
    "batch",
    "auto-batch",
    "transactions",
    "pull",
    "pull-commit",
    "pop-ack",
    "push",
    "push-one",
    "push-paced",
]

CLIENTS: Final[tuple[ClientName, ...]] = ("java", "threads", "asyncio")
SERVERS: Final[tuple[ServerName, ...]] = ("downrange", "apache")
BODIES: Final = (100, 1024, 16_384)
USUAL_BODY: Final = 1024
#: Numbers of threads or tasks, of messages in flight, and of messages in a batch.
SENDERS: Final = 64
WINDOW: Final = 256
BATCH: Final = 100
BATCHES_IN_FLIGHT: Final = 8
ONE_WAY_FENCE: Final = 500
#: Messages per second of the work "push-paced".
PACED_RATE: Final = 500

WORK_TITLES: Final[dict[WorkName, str]] = {
    "sync-1": "one sender",
    "sync-64": f"{SENDERS} senders",
    "async-256": f"{WINDOW} in flight",
    "one-way": "one-way",
    "batch": f"batches of {BATCH}",
    "auto-batch": "automatic batches",
    "transactions": "transactions",
    "pull": "pull",
    "pull-commit": "pull and commit",
    "pop-ack": "pop and acknowledge",
    "push": "push",
    "push-one": "send to handler, one at a time",
    "push-paced": f"send to handler, {PACED_RATE} per second",
}
#: Works that read a topic, which must be filled, and those of them that only the generator does.
READS: Final[tuple[WorkName, ...]] = ("pull", "pull-commit", "pop-ack", "push")
GROUP_READS: Final[tuple[WorkName, ...]] = ("pull-commit", "pop-ack")
#: Works of push consumers: those that measure latencies have only bodies of the usual size.
PUSHES: Final[tuple[WorkName, ...]] = ("push", "push-one", "push-paced")
_PUSH_BODIES: Final = (100, USUAL_BODY)
#: Works with large bodies, which fill the disk.
_LARGE_WORKS: Final[tuple[WorkName, ...]] = ("sync-1", "async-256", "batch", "pull")
CLIENT_TITLES: Final[dict[ClientName, str]] = {
    "java": "Java",
    "threads": "threads",
    "awake": "threads, busy polling",
    "asyncio": "asyncio",
    "generator": "generator",
}
SERVER_TITLES: Final[dict[ServerName, str]] = {"downrange": "embedded", "apache": "Apache"}


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One client that does one work with one server.

    Attributes:
        client: The client.
        server: The server.
        work: The work; see above.
        body_bytes: Size of each body.
        flush: "sync" if the server flushes to disk before it acknowledges.
    """

    client: ClientName
    server: ServerName
    work: WorkName
    body_bytes: int = USUAL_BODY
    flush: FlushName = "async"

    @property
    def name(self) -> str:
        """The name on the command line, such as "java/apache/sync-1/1024/async"."""
        return f"{self.client}/{self.server}/{self.work}/{self.body_bytes}/{self.flush}-flush"

    @property
    def topic(self) -> str:
        """The topic of its messages; other clients with the same work use it, too."""
        return f"bench-{self.work}-{self.body_bytes}"

    def matches(self, patterns: Sequence[str]) -> bool:
        """Whether a pattern matches: a part of its name, or a glob for the whole name."""
        parts = self.name.split("/")
        return any(
            fnmatchcase(self.name, pattern) if "/" in pattern else pattern in parts
            for pattern in patterns
        )


def size_title(body_bytes: int) -> str:
    """Return a size as text, such as "16 KB"."""
    return f"{body_bytes} B" if body_bytes < 1024 else f"{body_bytes // 1024} KB"


def all_cells() -> list[Cell]:
    """Return the whole matrix, in the order of the tables."""
    cells = [
        Cell(client=client, server=server, work=work, body_bytes=body)
        for body in BODIES
        for work in WORK_TITLES
        if work not in GROUP_READS and _has_size(work, body)
        for client in CLIENTS
        for server in SERVERS
    ]
    # The client that busy-polls for replies; this helps only the work "sync-1".
    cells += [Cell(client="awake", server=server, work="sync-1") for server in SERVERS]
    generated: tuple[WorkName, ...] = ("sync-1", "async-256", "batch", "pull", *GROUP_READS)
    cells += [
        Cell(client="generator", server=server, work=work)
        for work in generated
        for server in SERVERS
    ]
    flushed: tuple[ClientName, ...] = (*CLIENTS, "generator")
    cells += [
        Cell(client=client, server=server, work="sync-64", flush="sync")
        for client in flushed
        for server in SERVERS
    ]
    return cells


def _has_size(work: WorkName, body_bytes: int) -> bool:
    """Return whether a work is measured with bodies of this size."""
    if work not in PUSHES:
        return body_bytes <= USUAL_BODY or work in _LARGE_WORKS
    return body_bytes in _PUSH_BODIES if work == "push" else body_bytes == USUAL_BODY
