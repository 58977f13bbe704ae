"""Those who read: each one queue, for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.bodies import ConsumerMember, HeartbeatBody
from downrange.wire.codes import PullFlag, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    GroupOffsetRequest,
    OffsetReply,
    PullReply,
    PullRequest,
    SendBackRequest,
)
from downrange.wire.records import decode_records
from tests.simulation.clients import MAIN_TOPIC, Client, Story

if TYPE_CHECKING:
    from downrange.wire.records import Record

_POLL_MS = 6_000
_PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Consumer(Client):
    """Reads one queue for ever, from where its group has come to.

    Args:
        story: The story.
        name: Its group.
        queue: What it reads.
        tags: Its filter.
        reader: What the ledger knows it as.
        is_returning: Whether it gives messages back now and then.
    """

    def __init__(
        self,
        story: Story,
        name: str,
        queue: tuple[str, int],
        *,
        tags: str = "*",
        reader: str = "*",
        is_returning: bool = False,
    ) -> None:
        super().__init__(story, name)
        self.tags = tags
        self.reader = reader
        self.is_returning = is_returning
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
        if reply is None:
            return
        records = self._take(reply, self._offset)
        if records and self.is_returning and self.story.random.random() < 0.1:
            await self._give_back(self.story.random.choice(records))

    def _take(self, reply: Command, offset: int) -> list[Record]:
        """Look at what came, and note where to go on."""
        code = reply.code
        if code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER):
            assert self._topic != MAIN_TOPIC, reply.remark  # others may not be there yet
            return []
        assert code in _PULL_CODES, f"{code}: {reply.remark}"
        self._offset = PullReply.from_fields(reply.fields).next_begin_offset
        if code == ResponseCode.PULL_OFFSET_MOVED:  # by retention alone
            assert self._offset > offset, f"{self.name} had read to {offset}, not {self._offset}"
        records = decode_records(reply.body)
        offsets = [record.queue_offset for record in records]
        if self.tags == "*" and code == ResponseCode.SUCCESS:
            assert offsets == list(range(offset, self._offset))
        assert offsets == sorted(set(offsets))
        for record in records:
            self.story.ledger.saw(self.reader, record)
        return records

    async def _give_back(self, record: Record) -> None:
        """Ask for a message to be delivered again, by way of the group's retry topic."""
        header = SendBackRequest(
            offset=record.log_offset,
            group=self.name,
            delay_level=self.story.random.choice((0, 1)),
            origin_topic=self._topic,
        )
        reply = await self.call(request_command(header))
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            self.story.ledger.returned[record.body] = record.log_offset

    def _greeting(self) -> list[Command]:
        """Join the group, as all do who give messages back: so there is a topic for these."""
        member = ConsumerMember(group_name=self.name)
        body = HeartbeatBody(
            client_id=f"{self._topic}-{self._queue_id}", consumer_data_set=[member]
        )
        return [Command(int(RequestCode.HEART_BEAT), body=body.encode())]

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
