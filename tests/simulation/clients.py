"""Clients: each repeats one kind of work, and records in the ledger what the broker promised.

A body begins with its message's tag, and every message has another body. A request without an
answer is repeated, so messages may be stored twice; an answer is a promise.
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


class Scenario(Protocol):
    """What clients use of the `World` that they run in."""

    loop: VirtualLoop
    random: Random
    flush: FlushMode
    ledger: Ledger
    is_over: bool

    @property
    def network(self) -> Network:
        """The connections to the broker."""
        ...

    def note(self, text: str) -> None:
        """Add a line to the log of the run."""
        ...


class Client(ABC):
    """The base of all clients.

    Attributes:
        attempts: How many times the last message was sent until it was acknowledged.
    """

    def __init__(self, scenario: Scenario, name: str) -> None:
        self.scenario = scenario
        self.name = name
        self.attempts = 0
        self._made = 0
        self._caller = Caller(scenario.network, self._on_request, self._first_commands)

    async def run(self) -> None:
        """Work until the run is over."""
        while not self.scenario.is_over:
            await self.work()
            await self.rest()

    @abstractmethod
    async def work(self) -> None:
        """Do one piece of work."""

    async def rest(self, most: float = 0.4) -> None:
        """Sleep for a random time."""
        await asyncio.sleep(self.scenario.random.uniform(0.001, most))

    def body(self) -> bytes:
        """Return a new body, and record it in the ledger."""
        self._made += 1
        tag = self.scenario.random.choice("AB")
        padding = "." * self.scenario.random.choice((0, 10, 300, 1500))
        body = f"{tag} {self.name}-{self._made}{padding}".encode()
        self.scenario.ledger.tried.add(body)
        return body

    def cut(self) -> None:
        """Drop the connection."""
        self._caller.cut()

    async def call(self, command: Command, seconds: float = 8.0) -> Command | None:
        """Send a request once; return None if its outcome is unknown."""
        try:
            reply = await self._caller.call(command, seconds)
        except Lost as error:
            self.scenario.note(f"{self.name} {command.code}: {error}")
            return None
        self.scenario.note(f"{self.name} {command.code}: {reply.code} {reply.remark or ''}")
        return reply

    async def send_until_acknowledged(
        self, header: SendRequestV2, body: bytes, code: RequestCode
    ) -> SendReply:
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
                assert reply.code in _RETRY_CODES, f"{reply.code}: {reply.remark}"
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
            born_timestamp=self.scenario.loop.wall_clock_ms(),
            flag=0,
            properties=encode_properties(properties),
        )

    def _on_request(self, request: Command) -> None:
        """Handle a request of the broker; most clients ignore it."""
        return

    def _first_commands(self) -> list[Command]:
        """Return the commands to send first on every new connection."""
        return []


#: The message is not stored, or may not be durable: repeat it.
_RETRY_CODES = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SERVICE_NOT_AVAILABLE)
