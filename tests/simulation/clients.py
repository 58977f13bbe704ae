"""Clients: each does one thing again and again, and tells the ledger what it was promised.

A body begins with its message's tag, and no two messages have the same. Who gets no answer tries
again, so messages may be stored twice; who gets one believes it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendReply, SendRequestV2
from downrange.wire.properties import encode_properties
from tests.simulation.network import Caller, Lost

if TYPE_CHECKING:
    from random import Random

    from downrange.options import FlushMode
    from downrange.wire.command import Command
    from tests.simulation.clock import VirtualLoop
    from tests.simulation.ledger import Ledger
    from tests.simulation.network import Network

MAIN_TOPIC = "orders"
AUTO_TOPICS = tuple(f"auto-{number}" for number in range(3))
QUEUES = 2


class Story(Protocol):
    """What clients need of the world."""

    loop: VirtualLoop
    random: Random
    flush: FlushMode
    ledger: Ledger
    is_over: bool

    @property
    def network(self) -> Network:
        """Leads to the broker."""
        ...

    def note(self, text: str) -> None:
        """Write a line of the story."""
        ...


class Client(ABC):
    """What all of them share.

    Attributes:
        attempts: How often the last message was sent before it was acknowledged.
    """

    def __init__(self, story: Story, name: str) -> None:
        self.story = story
        self.name = name
        self.attempts = 0
        self._made = 0
        self._caller = Caller(story.network, self._asked, self._greeting)

    async def run(self) -> None:
        """Work until the story is over."""
        while not self.story.is_over:
            await self.work()
            await self.rest()

    @abstractmethod
    async def work(self) -> None:
        """Do one thing."""

    async def rest(self, most: float = 0.4) -> None:
        """Wait for a moment."""
        await asyncio.sleep(self.story.random.uniform(0.001, most))

    def body(self) -> bytes:
        """Return a new body, and have it noted."""
        self._made += 1
        tag = self.story.random.choice("AB")
        padding = "." * self.story.random.choice((0, 10, 300, 1500))
        body = f"{tag} {self.name}-{self._made}{padding}".encode()
        self.story.ledger.tried.add(body)
        return body

    async def call(self, command: Command, seconds: float = 8.0) -> Command | None:
        """Ask once; None when nobody knows what became of it."""
        try:
            reply = await self._caller.call(command, seconds)
        except Lost as error:
            self.story.note(f"{self.name} {command.code}: {error}")
            return None
        self.story.note(f"{self.name} {command.code}: {reply.code} {reply.remark or ''}")
        return reply

    async def insist(self, header: SendRequestV2, body: bytes, code: RequestCode) -> SendReply:
        """Send until it is acknowledged."""
        self.attempts = 0
        while True:
            self.attempts += 1
            reply = await self.call(request_command(header, body, code=code))
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                return SendReply.from_fields(reply.fields)
            if reply is not None and reply.code == ResponseCode.INVALID_PARAMETER:
                # Power was lost before the topic was saved, and it came back with fewer queues.
                assert header.topic in AUTO_TOPICS, reply.remark
                header.queue_id = 0
            elif reply is not None:
                assert reply.code in _PATIENCE, f"{reply.code}: {reply.remark}"
            await self.rest(1.0)

    def send_header(self, topic: str, queue_id: int, properties: dict[str, str]) -> SendRequestV2:
        """Return the header of a send."""
        return SendRequestV2(
            producer_group=self.name,
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=self.story.loop.wall_clock_ms(),
            flag=0,
            properties=encode_properties(properties),
        )

    def _asked(self, request: Command) -> None:
        """Hear what the broker asks; most have nothing to say to it."""
        return

    def _greeting(self) -> list[Command]:
        """Return what is said first on a connection."""
        return []


#: No message is stored now, or maybe not durably: try again.
_PATIENCE = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SERVICE_NOT_AVAILABLE)
