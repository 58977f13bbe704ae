"""Administrators: they create and delete topics, and create groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.bodies import GroupConfig
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import CreateTopicRequest, DeleteTopicRequest, SendReply
from downrange.wire.ids import parse_offset_id
from tests.simulation.clients import Client, Scenario
from tests.simulation.ledger import Place
from tests.simulation.names import properties_of

if TYPE_CHECKING:
    from collections.abc import Callable

_TEMPORARY = tuple(f"temporary-{number}" for number in range(2))


class Administrator(Client):
    """Creates, uses and deletes topics, and creates groups."""

    def __init__(self, scenario: Scenario, name: str) -> None:
        super().__init__(scenario, name)
        self._groups = 0

    async def work(self) -> None:
        """Create a group, or create or delete a topic."""
        random = self.scenario.random
        if random.random() < 0.3:
            await self._create_group()
            return
        topic = random.choice(_TEMPORARY)
        if topic in self.scenario.ledger.topics:
            await self._delete(topic)
        else:
            await self.create(topic, 3)
            await self._use(topic)
        await self.rest(2.0)

    async def _create_group(self) -> None:
        self._groups += 1
        await self.create_group(GroupConfig(group_name=f"group-{self._groups}"))

    async def create_group(self, config: GroupConfig) -> None:
        """Create a group."""
        body = config.encode()
        code = int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
        await self._call_until_done(lambda: Command(code, body=body))
        self.scenario.ledger.groups.add(config.group_name)

    async def create(self, topic: str, queues: int) -> None:
        """Create a topic."""
        header = CreateTopicRequest(
            topic=topic, default_topic="", read_queue_nums=queues, write_queue_nums=queues, perm=6
        )
        self.scenario.ledger.deleted.discard(topic)
        await self._call_until_done(lambda: request_command(header))
        self.scenario.ledger.topics[topic] = queues

    async def _use(self, topic: str) -> None:
        for number in range(self.scenario.random.randrange(4)):
            body = self.body()
            header = self.send_header(topic, 0, properties_of(body))
            reply = await self.call(request_command(header, body, code=RequestCode.SEND_MESSAGE_V2))
            if reply is None or reply.code != ResponseCode.SUCCESS:
                return
            sent = SendReply.from_fields(reply.fields)
            assert sent.queue_offset == number, "messages of a deleted topic are back"
            log_offset = parse_offset_id(sent.msg_id).log_offset
            self.scenario.ledger.places.append(
                Place(body=body, topic=topic, queue_id=0, offset=number, log_offset=log_offset)
            )

    async def _delete(self, topic: str) -> None:
        self.scenario.ledger.drop_topic(topic)
        await self._call_until_done(lambda: request_command(DeleteTopicRequest(topic=topic)))
        self.scenario.ledger.deleted.add(topic)

    async def _call_until_done(self, make: Callable[[], Command]) -> None:
        """Repeat a request until it succeeds."""
        while True:
            reply = await self.call(make())
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                return
            if reply is not None:
                assert reply.code == ResponseCode.SYSTEM_ERROR, reply.remark
            await self.rest(1.0)
