"""Clients: each does one thing again and again, and tells the ledger what it was promised.

A body begins with its message's tag, and no two messages have the same. Who gets no answer tries
again, so messages may be stored twice; who gets one believes it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from downrange.wire.bodies import GroupConfig, HeartbeatBody, ProducerMember
from downrange.wire.codes import PullFlag, RequestCode, ResponseCode, TransactionFlag
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CreateTopicRequest,
    DeleteTopicRequest,
    EndTransactionRequest,
    GroupOffsetRequest,
    OffsetReply,
    PullReply,
    PullRequest,
    SendReply,
    SendRequestV2,
)
from downrange.wire.ids import parse_offset_id
from downrange.wire.properties import encode_properties
from downrange.wire.records import BatchItem, decode_record, decode_records, encode_batch
from tests.simulation.ledger import Place
from tests.simulation.machine import OPTIONS
from tests.simulation.network import Caller, Lost

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.clock import VirtualLoop
    from tests.simulation.ledger import Ledger
    from tests.simulation.network import Network

MAIN_TOPIC = "orders"
AUTO_TOPICS = tuple(f"auto-{number}" for number in range(4))
QUEUES = 2
_TEMPORARY = tuple(f"temporary-{number}" for number in range(2))
_DELAYS_MS = {1: 1_000, 2: 3_000, 3: 10_000}
_POLL_MS = 6_000


class Story(Protocol):
    """What clients need of the world."""

    loop: VirtualLoop
    random: Random
    ledger: Ledger
    is_over: bool

    @property
    def network(self) -> Network:
        """Leads to the broker."""
        ...

    def note(self, text: str) -> None:
        """Write a line of the story."""
        ...


class Client:
    """What all of them share."""

    def __init__(self, story: Story, name: str) -> None:
        self.story = story
        self.name = name
        self._made = 0
        self._caller = Caller(story.network, self._asked, self._greeting)

    async def run(self) -> None:
        """Work until the story is over."""
        while not self.story.is_over:
            await self.work()
            await self.rest()

    async def work(self) -> None:
        """Do one thing."""
        raise NotImplementedError

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
        while True:
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
        """Hear what the broker asks."""

    def _greeting(self) -> list[Command]:
        """Return what is said first on a connection."""
        return []


#: No message is stored now, or maybe not durably: try again.
_PATIENCE = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SERVICE_NOT_AVAILABLE)


def properties_of(body: bytes) -> dict[str, str]:
    """Return the properties that every message has: its name twice, and its tag."""
    name = body.decode().rstrip(".").replace(" ", "-")
    return {"UNIQ_KEY": name, "KEYS": f"key-{name}", "TAGS": name[0]}


class Producer(Client):
    """Sends messages of every kind."""

    async def work(self) -> None:
        """Send something."""
        kinds = {self._send_one: 8, self._send_batch: 3, self._send_late: 3, self._tell: 1}
        (send,) = self.story.random.choices(list(kinds), weights=list(kinds.values()))
        await send()

    def _target(self) -> tuple[str, int]:
        random = self.story.random
        topic = MAIN_TOPIC if random.random() < 0.8 else random.choice(AUTO_TOPICS)
        return topic, random.randrange(QUEUES)

    async def _send_one(self) -> None:
        body = self.body()
        topic, queue_id = self._target()
        header = self.send_header(topic, queue_id, properties_of(body))
        reply = await self.insist(header, body, RequestCode.SEND_MESSAGE_V2)
        self._stored([body], topic, reply)

    async def _send_batch(self) -> None:
        bodies = [self.body() for _ in range(self.story.random.randrange(1, 5))]
        topic, queue_id = self._target()
        header = self.send_header(topic, queue_id, {"WAIT": "true"})
        header.batch = True
        batch = encode_batch(
            BatchItem(0, body, encode_properties(properties_of(body)).encode()) for body in bodies
        )
        reply = await self.insist(header, batch, RequestCode.SEND_BATCH_MESSAGE)
        self._stored(bodies, topic, reply)

    def _stored(self, bodies: list[bytes], topic: str, reply: SendReply) -> None:
        ledger = self.story.ledger
        ledger.topics[topic] = max(ledger.topics.get(topic, 0), reply.queue_id + 1)
        for number, (body, message_id) in enumerate(
            zip(bodies, reply.msg_id.split(","), strict=True)
        ):
            log_offset = parse_offset_id(message_id).log_offset
            ledger.delivery[body] = log_offset
            place = Place(
                body=body,
                topic=topic,
                queue_id=reply.queue_id,
                offset=reply.queue_offset + number,
                log_offset=log_offset,
            )
            ledger.places.append(place)

    async def _send_late(self) -> None:
        """Send a message that is delayed by a level or until a time."""
        body = self.body()
        random, now_ms = self.story.random, self.story.loop.wall_clock_ms()
        properties = properties_of(body)
        level = random.choice((None, *_DELAYS_MS))
        if level is None:
            delay_ms = random.randrange(1, 9_000)
            key = random.choice(("TIMER_DELAY_MS", "TIMER_DELIVER_MS"))
            is_absolute = key == "TIMER_DELIVER_MS"
            properties[key] = str(delay_ms + (now_ms if is_absolute else 0))
        else:
            delay_ms = _DELAYS_MS[level]
            properties["DELAY"] = str(level)
        self.story.ledger.due_ms[body] = now_ms + delay_ms
        header = self.send_header(MAIN_TOPIC, random.randrange(QUEUES), properties)
        reply = await self.insist(header, body, RequestCode.SEND_MESSAGE_V2)
        self.story.ledger.delivery[body] = parse_offset_id(reply.msg_id).log_offset

    async def _tell(self) -> None:
        """Send a message without asking for an answer; nothing is promised."""
        body = self.body()
        header = self.send_header(*self._target(), properties_of(body))
        try:
            self._caller.tell(request_command(header, body, code=RequestCode.SEND_MESSAGE_V2))
        except Lost as error:
            self.story.note(f"{self.name} tells: {error}")


class Transactor(Client):
    """Sends half messages; every second one is to be committed, the others are rolled back."""

    async def work(self) -> None:
        """Send a half, and mostly say what becomes of it."""
        ledger, random = self.story.ledger, self.story.random
        body = self.body()
        is_kept = self._made % 2 == 0
        if not is_kept:
            ledger.rolled_back.add(body)
        properties = properties_of(body) | {"TRAN_MSG": "true", "PGROUP": self.name}
        header = self.send_header(MAIN_TOPIC, random.randrange(QUEUES), properties)
        header.sys_flag = int(TransactionFlag.PREPARED)
        reply = await self.insist(header, body, RequestCode.SEND_MESSAGE_V2)
        log_offset = parse_offset_id(reply.msg_id).log_offset
        if is_kept:
            ledger.delivery[body] = log_offset
        if random.random() < 0.7:
            await self.rest(3.0)
            await self.call(self._end(body, reply.queue_offset, log_offset))

    def _end(self, body: bytes, offset: int, log_offset: int, *, is_asked: bool = False) -> Command:
        is_kept = body not in self.story.ledger.rolled_back
        outcome = TransactionFlag.COMMIT if is_kept else TransactionFlag.ROLLBACK
        name = properties_of(body)["UNIQ_KEY"]
        header = EndTransactionRequest(
            producer_group=self.name,
            tran_state_table_offset=offset,
            commit_log_offset=log_offset,
            commit_or_rollback=int(outcome),
            from_transaction_check=is_asked,
            msg_id=name,
            transaction_id=name,
        )
        return request_command(header)

    def _asked(self, request: Command) -> None:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        half = decode_record(request.body)
        fields = request.fields
        offset, log_offset = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
        self.story.note(f"{self.name} is asked about {offset}")
        self._caller.tell(self._end(half.body, offset, log_offset, is_asked=True))

    def _greeting(self) -> list[Command]:
        member = ProducerMember(group_name=self.name)
        body = HeartbeatBody(client_id=self.name, producer_data_set=[member])
        return [Command(int(RequestCode.HEART_BEAT), body=body.encode())]

    async def keep_in_touch(self) -> None:
        """Be there to be asked, to the end of the story and beyond."""
        while True:
            await asyncio.sleep(2.0)
            try:
                for command in self._greeting():
                    self._caller.tell(command)
            except Lost as error:
                self.story.note(f"{self.name} beats: {error}")


class Consumer(Client):
    """Reads one queue for ever, from where its group has come to.

    Args:
        story: The story.
        name: Its group.
        queue: What it reads.
        tags: Its filter.
    """

    def __init__(self, story: Story, name: str, queue: tuple[str, int], tags: str) -> None:
        super().__init__(story, name)
        self.tags = tags
        self._topic, self._queue_id = queue
        self._offset: int | None = None

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await self.work()
            await self.rest()

    async def work(self) -> None:
        """Pull once."""
        if not self._caller.is_connected:
            self._offset = None  # what it read may be gone: begin where its group is
        if self._offset is None:
            self._offset = await self._committed()
            return
        reply = await self.call(self._pull(self._offset), seconds=20.0)
        if reply is not None:
            self._take(reply, self._offset)

    def _take(self, reply: Command, offset: int) -> None:
        code = reply.code
        if code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER):
            assert self._topic in AUTO_TOPICS, reply.remark  # it is not there yet
            return
        assert code in _PULL_CODES, f"{code}: {reply.remark}"
        self._offset = PullReply.from_fields(reply.fields).next_begin_offset
        if code == ResponseCode.PULL_OFFSET_MOVED:  # by retention alone
            assert self._offset > offset, f"{self.name} had read to {offset}, not {self._offset}"
        if code == ResponseCode.SUCCESS:
            records = decode_records(reply.body)
            offsets = [record.queue_offset for record in records]
            if self.tags == "*":
                assert offsets == list(range(offset, self._offset))
            assert offsets == sorted(set(offsets))
            for record in records:
                self.story.ledger.saw(self.tags, record)

    async def _committed(self) -> int | None:
        header = GroupOffsetRequest(
            consumer_group=self.name, topic=self._topic, queue_id=self._queue_id
        )
        reply = await self.call(request_command(header))
        if reply is None:
            return None
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return 0
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        return OffsetReply.from_fields(reply.fields).offset

    def _pull(self, offset: int) -> Command:
        flags = PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
        header = PullRequest(
            consumer_group=self.name,
            topic=self._topic,
            queue_id=self._queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=int(flags),
            commit_offset=offset,
            suspend_timeout_millis=_POLL_MS,
            subscription=self.tags,
            expression_type="TAG",
        )
        return request_command(header)


_PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Administrator(Client):
    """Creates and deletes topics, makes use of them in between, and creates groups."""

    def __init__(self, story: Story, name: str) -> None:
        super().__init__(story, name)
        self._groups = 0

    async def work(self) -> None:
        """Do one of these."""
        random = self.story.random
        if random.random() < 0.3:
            await self._create_group()
            return
        topic = random.choice(_TEMPORARY)
        if topic in self.story.ledger.topics:
            await self._delete(topic)
        else:
            await self.create(topic, 3)
            await self._use(topic)
        await self.rest(2.0)

    async def _create_group(self) -> None:
        self._groups += 1
        group = f"group-{self._groups}"
        body = GroupConfig(group_name=group).encode()
        code = int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
        await self._insist(lambda: Command(code, body=body))
        self.story.ledger.groups.add(group)

    async def create(self, topic: str, queues: int) -> None:
        """Create a topic."""
        header = CreateTopicRequest(
            topic=topic, default_topic="", read_queue_nums=queues, write_queue_nums=queues, perm=6
        )
        self.story.ledger.deleted.discard(topic)
        await self._insist(lambda: request_command(header))
        self.story.ledger.topics[topic] = queues

    async def _use(self, topic: str) -> None:
        for number in range(self.story.random.randrange(4)):
            body = self.body()
            header = self.send_header(topic, 0, properties_of(body))
            reply = await self.call(request_command(header, body, code=RequestCode.SEND_MESSAGE_V2))
            if reply is None or reply.code != ResponseCode.SUCCESS:
                return
            sent = SendReply.from_fields(reply.fields)
            assert sent.queue_offset == number, "messages of a deleted topic are back"
            log_offset = parse_offset_id(sent.msg_id).log_offset
            self.story.ledger.places.append(
                Place(body=body, topic=topic, queue_id=0, offset=number, log_offset=log_offset)
            )

    async def _delete(self, topic: str) -> None:
        self.story.ledger.forget_topic(topic)
        await self._insist(lambda: request_command(DeleteTopicRequest(topic=topic)))
        self.story.ledger.deleted.add(topic)

    async def _insist(self, make: Callable[[], Command]) -> None:
        """Ask until it is done."""
        while True:
            reply = await self.call(make())
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                return
            if reply is not None:
                assert reply.code == ResponseCode.SYSTEM_ERROR, reply.remark
            await self.rest(1.0)


async def prepare(story: Story) -> None:
    """Create the main topic."""
    assert len(OPTIONS.delay_levels.split()) == len(_DELAYS_MS)
    await Administrator(story, "founder").create(MAIN_TOPIC, QUEUES)
