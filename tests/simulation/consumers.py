"""Consumers: each reads one queue, for ever."""

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
from tests.simulation.clients import MAIN_TOPIC, Client, Scenario

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
    """Reads one queue for ever, starting at the offset of its group.

    Args:
        scenario: The run.
        name: Its group.
        queue: The topic and queue to read.
        tags: Its filter.
        reader: Its key in `Ledger.seen`.
        sends_back: Whether it sends some messages back.
    """

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        queue: tuple[str, int],
        *,
        tags: str = "*",
        reader: str = "*",
        sends_back: bool = False,
    ) -> None:
        super().__init__(scenario, name)
        self.tags = tags
        self.reader = reader
        self.sends_back = sends_back
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
            self._offset = None  # a crash may have lost messages: start at the offset of the group
        if self._offset is None:
            self._offset = await self._committed()
            return
        reply = await self.call(self._pull(self._offset), seconds=20.0)
        if reply is None:
            return
        records = self._take(reply, self._offset)
        if records and self.sends_back and self.scenario.random.random() < 0.1:
            await self._send_back(self.scenario.random.choice(records))

    def _take(self, reply: Command, offset: int) -> list[Record]:
        """Check the messages, and keep the next offset."""
        code = reply.code
        if code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER):
            assert self._topic != MAIN_TOPIC, reply.remark  # other topics may not exist yet
            return []
        assert code in _PULL_CODES, f"{code}: {reply.remark}"
        self._offset = PullReply.from_fields(reply.fields).next_begin_offset
        if code == ResponseCode.PULL_OFFSET_MOVED:  # only retention may cause it
            assert self._offset > offset, (
                f"{self.name} read up to {offset}, moved to {self._offset}"
            )
        records = decode_records(reply.body)
        offsets = [record.queue_offset for record in records]
        if self.tags == "*" and code == ResponseCode.SUCCESS:
            assert offsets == list(range(offset, self._offset))
        assert offsets == sorted(set(offsets))
        for record in records:
            self.scenario.ledger.on_message(self.reader, record)
        return records

    async def _send_back(self, record: Record) -> None:
        """Have a message delivered again, through the group's retry topic."""
        header = SendBackRequest(
            offset=record.log_offset,
            group=self.name,
            delay_level=self.scenario.random.choice((0, 1)),
            origin_topic=self._topic,
        )
        reply = await self.call(request_command(header))
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            self.scenario.ledger.returned[record.body] = record.log_offset

    def _first_commands(self) -> list[Command]:
        """Join the group: this creates the retry topic that sent-back messages need."""
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
