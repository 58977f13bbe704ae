"""Producers: they send messages of every kind, and transactions."""

from __future__ import annotations

import asyncio

from downrange.wire.bodies import HeartbeatBody, ProducerMember
from downrange.wire.codes import RequestCode, ResponseCode, TransactionFlag
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import EndTransactionRequest, RecallRequest, SendReply
from downrange.wire.ids import parse_offset_id
from downrange.wire.properties import encode_properties
from downrange.wire.records import BatchItem, decode_record, encode_batch
from tests.simulation.clients import AUTO_TOPICS, MAIN_TOPIC, QUEUES, Client
from tests.simulation.ledger import Place
from tests.simulation.machine import DELAYS_MS
from tests.simulation.names import properties_of
from tests.simulation.network import Lost

_REFUSALS = (ResponseCode.ILLEGAL_OPERATION, ResponseCode.SERVICE_NOT_AVAILABLE)


class Producer(Client):
    """Sends messages of every kind."""

    async def work(self) -> None:
        """Send something of a random kind."""
        kinds = {
            self._send_one: 8,
            self._send_batch: 3,
            self._send_delayed: 3,
            self._send_oneway: 1,
        }
        (send,) = self.scenario.random.choices(list(kinds), weights=list(kinds.values()))
        await send()

    def _target(self) -> tuple[str, int]:
        random = self.scenario.random
        topic = MAIN_TOPIC if random.random() < 0.8 else random.choice(AUTO_TOPICS)
        return topic, random.randrange(QUEUES)

    async def _send_one(self) -> None:
        body = self.body()
        topic, queue_id = self._target()
        header = self.send_header(topic, queue_id, properties_of(body))
        reply = await self.send_until_acknowledged(header, body, RequestCode.SEND_MESSAGE_V2)
        self._stored([body], topic, reply)

    async def _send_batch(self) -> None:
        bodies = [self.body() for _ in range(self.scenario.random.randrange(1, 5))]
        topic, queue_id = self._target()
        header = self.send_header(topic, queue_id, {"WAIT": "true"})
        header.batch = True
        batch = encode_batch(
            BatchItem(0, body, encode_properties(properties_of(body)).encode()) for body in bodies
        )
        reply = await self.send_until_acknowledged(header, batch, RequestCode.SEND_BATCH_MESSAGE)
        self._stored(bodies, topic, reply)

    def _stored(self, bodies: list[bytes], topic: str, reply: SendReply) -> None:
        ledger = self.scenario.ledger
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

    async def _send_delayed(self) -> None:
        """Send a message that is delayed by a level or until a time."""
        body = self.body()
        random, now_ms = self.scenario.random, self.scenario.loop.wall_clock_ms()
        properties = properties_of(body)
        level = random.choice((None, *DELAYS_MS))
        if level is None:
            delay_ms = random.randrange(1, 9_000)
            key = random.choice(("TIMER_DELAY_MS", "TIMER_DELIVER_MS"))
            is_absolute = key == "TIMER_DELIVER_MS"
            properties[key] = str(delay_ms + (now_ms if is_absolute else 0))
        else:
            delay_ms = DELAYS_MS[level]
            properties["DELAY"] = str(level)
        self.scenario.ledger.due_ms[body] = now_ms + delay_ms
        header = self.send_header(MAIN_TOPIC, random.randrange(QUEUES), properties)
        reply = await self.send_until_acknowledged(header, body, RequestCode.SEND_MESSAGE_V2)
        self.scenario.ledger.delivery[body] = parse_offset_id(reply.msg_id).log_offset
        # A second copy of the same message may have another due time, and is not recalled with it.
        if reply.recall_handle is not None and self.attempts == 1 and random.random() < 0.3:
            await self._recall(body, reply.recall_handle)

    async def _recall(self, body: bytes, handle: str) -> None:
        """Recall a timed message. Under "async" a power loss may undo the recall."""
        ledger = self.scenario.ledger
        reply = await self.call(request_command(RecallRequest(MAIN_TOPIC, handle)))
        if reply is not None and reply.code in _REFUSALS:
            return
        ledger.delivery.pop(body, None)  # it may be recalled, even without an answer
        if (
            reply is not None
            and reply.code == ResponseCode.SUCCESS
            and self.scenario.flush == "sync"
        ):
            ledger.forbid(body)

    async def _send_oneway(self) -> None:
        """Send a one-way message; the broker promises nothing."""
        body = self.body()
        header = self.send_header(*self._target(), properties_of(body))
        try:
            self._caller.notify(request_command(header, body, code=RequestCode.SEND_MESSAGE_V2))
        except Lost as error:
            self.scenario.note(f"{self.name} one-way: {error}")


class Transactor(Client):
    """Sends half messages; every second one is committed, the others are rolled back."""

    async def work(self) -> None:
        """Send a half message, and in most cases end its transaction."""
        ledger, random = self.scenario.ledger, self.scenario.random
        body = self.body()
        is_committed = self._made % 2 == 0
        if not is_committed:
            ledger.forbid(body)
        properties = properties_of(body) | {"TRAN_MSG": "true", "PGROUP": self.name}
        header = self.send_header(MAIN_TOPIC, random.randrange(QUEUES), properties)
        header.sys_flag = int(TransactionFlag.PREPARED)
        reply = await self.send_until_acknowledged(header, body, RequestCode.SEND_MESSAGE_V2)
        log_offset = parse_offset_id(reply.msg_id).log_offset
        if is_committed:
            ledger.delivery[body] = log_offset
        if random.random() < 0.7:
            await self.rest(3.0)
            await self.call(self._end(body, reply.queue_offset, log_offset))

    def _end(
        self, body: bytes, offset: int, log_offset: int, *, is_checked: bool = False
    ) -> Command:
        is_committed = body not in self.scenario.ledger.forbidden
        outcome = TransactionFlag.COMMIT if is_committed else TransactionFlag.ROLLBACK
        name = properties_of(body)["UNIQ_KEY"]
        header = EndTransactionRequest(
            producer_group=self.name,
            tran_state_table_offset=offset,
            commit_log_offset=log_offset,
            commit_or_rollback=int(outcome),
            from_transaction_check=is_checked,
            msg_id=name,
            transaction_id=name,
        )
        return request_command(header)

    def _on_request(self, request: Command) -> None:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        half = decode_record(request.body)
        fields = request.fields
        offset, log_offset = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
        self.scenario.note(f"{self.name} is checked for {offset}")
        self._caller.notify(self._end(half.body, offset, log_offset, is_checked=True))

    def _first_commands(self) -> list[Command]:
        member = ProducerMember(group_name=self.name)
        body = HeartbeatBody(client_id=self.name, producer_data_set=[member])
        return [Command(int(RequestCode.HEART_BEAT), body=body.encode())]

    async def send_heartbeats(self) -> None:
        """Stay connected, so that the broker can check transactions after the end of the work."""
        while True:
            await asyncio.sleep(2.0)
            try:
                for command in self._first_commands():
                    self._caller.notify(command)
            except Lost as error:
                self.scenario.note(f"{self.name} heartbeat: {error}")
