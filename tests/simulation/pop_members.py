"""Members of groups that pop messages: they acknowledge, change times, forget, and come back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from msgspec.json import encode

from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import SendReply
from downrange.wire.ids import parse_offset_id
from downrange.wire.pop_bodies import BatchAck, BatchAckBody, bit_set
from downrange.wire.pop_headers import (
    AckRequest,
    ChangeInvisibleReply,
    ChangeInvisibleRequest,
    PopReply,
    PopRequest,
)
from downrange.wire.pop_receipts import PLAIN, Receipt, parse_receipt
from downrange.wire.records import decode_records
from tests.simulation.clients import QUEUES, Client, Scenario
from tests.simulation.ledger import Place
from tests.simulation.names import properties_of
from tests.simulation.order_ledger import Batch
from tests.simulation.pop_ledger import Delivery

if TYPE_CHECKING:
    from downrange.wire.records import Record
    from tests.simulation.order_ledger import OrderLedger
    from tests.simulation.pop_ledger import PopLedger

ALL_QUEUES = -1
#: No message, or the broker could not do it now. The request has changed nothing that counts.
_LATER = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.POLLING_FULL,
    ResponseCode.SYSTEM_ERROR,
)


class PopScenario(Scenario, Protocol):
    """What members use of the `PopWorld` that they run in.

    Attributes:
        pops: The promises about pops.
        orders: The promises about pops in order.
        is_calm: Whether members do everything right.
    """

    pops: PopLedger
    orders: OrderLedger
    is_calm: bool

    @property
    def log_end(self) -> int:
        """The end of the broker's log."""
        ...

    def note_retention(self) -> None:
        """Note which messages retention has removed."""
        ...


class OnceProducer(Client):
    """Sends every body once, so that it is stored once or not at all."""

    def __init__(self, scenario: PopScenario, name: str, topics: tuple[str, ...]) -> None:
        super().__init__(scenario, name)
        self._topics = topics

    async def work(self) -> None:
        """Send one message."""
        body, random = self.body(), self.scenario.random
        topic = random.choice(self._topics)
        header = self.send_header(topic, random.randrange(QUEUES), properties_of(body))
        command = request_command(header, body, code=RequestCode.SEND_MESSAGE_V2)
        reply = await self.call(command)
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        sent = SendReply.from_fields(reply.fields)
        place = Place(
            body=body,
            topic=topic,
            queue_id=sent.queue_id,
            offset=sent.queue_offset,
            log_offset=parse_offset_id(sent.msg_id).log_offset,
        )
        self.scenario.ledger.places.append(place)


class PopClient(Client):
    """The base of members: requests that all of them send."""

    def __init__(self, scenario: PopScenario, name: str, topic: str, group: str) -> None:
        super().__init__(scenario, name)
        self.world = scenario
        self.topic = topic
        self.group = group

    async def run(self) -> None:
        """Pop for ever."""
        while True:
            await self.work()
            await self.rest()

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.scenario.loop.wall_clock_ms()

    async def pop(
        self, queue_id: int, invisible_ms: int, attempt_id: str | None = None
    ) -> tuple[PopReply, list[Record]] | None:
        """Pop once; return None if no messages came.

        Raises:
            AssertionError: The broker refused.
        """
        random = self.scenario.random
        poll_ms = random.choice((0, 500, 3_000))
        header = PopRequest(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=queue_id,
            max_msg_nums=random.randrange(1, 9),
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self.now_ms,
            init_mode=0,
            order=True if attempt_id is not None else None,
            attempt_id=attempt_id,
        )
        reply = await self.call(request_command(header), seconds=8.0 + poll_ms / 1000)
        if reply is None:
            return None
        self.on_answer()
        if reply.code != ResponseCode.SUCCESS:
            assert reply.code in _LATER, f"{reply.code}: {reply.remark}"
            return None
        self.world.note_retention()
        records = decode_records(reply.body)
        for record in records:
            self.scenario.ledger.on_message(self.group, record)
        return PopReply.from_fields(reply.fields), records

    def on_answer(self) -> None:
        """Handle that a pop was answered, with messages or without."""
        return

    async def acknowledge_one(self, receipt: Receipt, topic: str) -> bool:
        """Acknowledge a message; return whether that was answered with success."""
        header = AckRequest(
            consumer_group=self.group,
            topic=topic,
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
        )
        return self._is_done(await self.call(request_command(header)))

    async def acknowledge_many(self, receipts: list[Receipt]) -> bool:
        """Acknowledge messages in one request; return whether it was answered with success."""
        groups: dict[Receipt, list[int]] = {}
        for receipt in receipts:
            groups.setdefault(receipt._replace(offset=0), []).append(receipt.offset)
        acks = [
            BatchAck(
                bits=bit_set(receipt.start, offsets),
                group=self.group,
                invisible_ms=receipt.invisible_ms,
                pop_ms=receipt.pop_ms,
                queue_id=receipt.queue_id,
                kind=receipt.kind,
                revive_queue=receipt.revive_queue,
                start=receipt.start,
                topic=self.topic,
            )
            for receipt, offsets in groups.items()
        ]
        body = encode(BatchAckBody(acks=acks, broker_name="broker-a"))
        code = int(RequestCode.BATCH_ACK_MESSAGE)
        return self._is_done(await self.call(Command(code, body=body)))

    async def change(self, receipt: Receipt, invisible_ms: int) -> Command | None:
        """Change when a message becomes visible."""
        header = ChangeInvisibleRequest(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
            invisible_time=invisible_ms,
        )
        return await self.call(request_command(header))

    @staticmethod
    def _is_done(reply: Command | None) -> bool:
        if reply is None:
            return False
        codes = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.NO_MESSAGE)
        assert reply.code in codes, f"{reply.code}: {reply.remark}"
        return reply.code == ResponseCode.SUCCESS


class PopMember(PopClient):
    """Pops one queue or all queues of a topic, and keeps messages for a while."""

    def __init__(self, scenario: PopScenario, name: str, topic: str, group: str) -> None:
        super().__init__(scenario, name, topic, group)
        self._kept: list[Delivery] = []

    async def work(self) -> None:
        """Pop, or do something with the messages that it has."""
        random = self.scenario.random
        if not self._kept:
            await self._pop()
            return
        if self.world.is_calm or self.scenario.is_over:
            await self._acknowledge(self._kept)
            return
        match random.randrange(10):
            case 0:
                self.scenario.note(f"{self.name} forgets {len(self._kept)}")
                self._kept.clear()
            case 1:
                self.cut()  # it dies, and comes back with nothing
                self._kept.clear()
            case 2 | 3:
                await self._change(random.choice(self._kept))
            case 4 | 5:
                await self._pop()
            case 6:
                await asyncio.sleep(random.uniform(0.5, 4.0))
            case _:
                count = random.randrange(1, len(self._kept) + 1)
                await self._acknowledge(random.sample(self._kept, count))

    async def _pop(self) -> None:
        random = self.scenario.random
        queue_id = random.choice((ALL_QUEUES, ALL_QUEUES, *range(QUEUES)))
        is_patient = self.world.is_calm or self.scenario.is_over
        popped = await self.pop(queue_id, 30_000 if is_patient else random.randrange(300, 6_000))
        if popped is None:
            return
        reply, records = popped
        log_end = self.world.log_end
        for record, receipt in zip(records, receipts_of(reply), strict=True):
            assert (record.queue_id, record.queue_offset) == (receipt.queue_id, receipt.offset)
            assert record.topic == self.topic
            if receipt.kind != PLAIN:
                assert parse_receipt(record.properties()["POP_CK"]) == receipt
            delivery = Delivery(
                body=record.body,
                topic=self.topic,
                group=self.group,
                pop_ms=receipt.pop_ms,
                receipt=receipt,
                visible_ms=receipt.pop_ms + receipt.invisible_ms,
                reconsume_times=record.reconsume_times,
                log_end=log_end,
            )
            self.world.pops.on_delivery(delivery, record.log_offset)
            self._kept.append(delivery)

    async def _acknowledge(self, deliveries: list[Delivery]) -> None:
        ledger, chosen = self.world.pops, list(deliveries)
        for delivery in chosen:
            ledger.on_ack_sent(delivery, self.now_ms)
            self._kept.remove(delivery)
        if self.scenario.random.random() < 0.5:
            if await self.acknowledge_many([delivery.receipt for delivery in chosen]):
                for delivery in chosen:
                    ledger.on_acknowledged(delivery, self.now_ms, self.world.log_end)
            return
        for delivery in chosen:
            topic = delivery.receipt.topic(self.topic, self.group)
            while not await self.acknowledge_one(delivery.receipt, topic):
                if not self.world.is_calm:
                    break
                await self.rest(0.5)
            else:
                ledger.on_acknowledged(delivery, self.now_ms, self.world.log_end)

    async def _change(self, delivery: Delivery) -> None:
        invisible_ms = self.scenario.random.choice((0, 200, 1_000, 5_000))
        was_certain, delivery.is_certain = delivery.is_certain, False
        reply = await self.change(delivery.receipt, invisible_ms)
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return  # either receipt may be the valid one
        changed = ChangeInvisibleReply.from_fields(reply.fields)
        receipt = delivery.receipt
        delivery.is_certain, delivery.log_end = was_certain, self.world.log_end
        delivery.visible_ms = changed.pop_time + changed.invisible_time
        delivery.receipt = receipt._replace(
            start=receipt.offset,
            pop_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )


class OrderedMember(PopClient):
    """Pops in order; repeats a pop without an answer with the same attempt id."""

    def __init__(self, scenario: PopScenario, name: str, topic: str, group: str) -> None:
        super().__init__(scenario, name, topic, group)
        self._attempts = 0
        self._is_repeated = False

    def on_answer(self) -> None:
        self._is_repeated = False

    async def work(self) -> None:
        """Pop a batch and acknowledge it, or a part of it."""
        random = self.scenario.random
        is_careful = self.world.is_calm or self.scenario.is_over
        if not self._is_repeated or random.random() < 0.2:
            self._attempts += 1
        self._is_repeated = True  # until there is an answer
        attempt_id = f"{self.name}-{self._attempts}"
        queue_id = random.choice((ALL_QUEUES, *range(QUEUES)))
        invisible_ms = 30_000 if is_careful else random.randrange(300, 6_000)
        popped = await self.pop(queue_id, invisible_ms, attempt_id)
        if popped is None:
            return
        reply, records = popped
        batches: dict[int, Batch] = {}
        receipts = receipts_of(reply)
        for record, receipt in zip(records, receipts, strict=True):
            assert record.queue_offset == receipt.offset
            assert receipt.is_in_order
            visible_ms = receipt.pop_ms + receipt.invisible_ms
            batch = batches.setdefault(
                receipt.queue_id,
                Batch(
                    queue_id=receipt.queue_id,
                    bodies={},
                    pop_ms=receipt.pop_ms,
                    attempt_id=attempt_id,
                    visible_ms={},
                ),
            )
            batch.bodies[receipt.offset] = record.body
            batch.visible_ms[receipt.offset] = visible_ms
        for batch in batches.values():
            self.world.orders.on_batch(batch)
        await self._acknowledge(batches, receipts, is_careful=is_careful)

    async def _acknowledge(
        self, batches: dict[int, Batch], receipts: list[Receipt], *, is_careful: bool
    ) -> None:
        random, ledger = self.scenario.random, self.world.orders
        if not is_careful:
            await self.rest(1.0)
            match random.randrange(6):
                case 0:
                    random.shuffle(receipts)
                case 1:
                    receipts = receipts[: random.randrange(len(receipts))]
                case 2:
                    receipt = random.choice(receipts)
                    await self._change(batches[receipt.queue_id], receipt)
                case _:
                    pass
        together = [receipts] if receipts and random.random() < 0.5 else [[r] for r in receipts]
        for group in together:
            for receipt in group:
                ledger.on_ack_sent(batches[receipt.queue_id], receipt.offset, self.now_ms)
            is_done = (
                await self.acknowledge_many(group)
                if len(group) > 1
                else await self.acknowledge_one(group[0], self.topic)
            )
            for receipt in group if is_done else ():
                batch = batches[receipt.queue_id]
                ledger.on_acknowledged(batch, receipt.offset, self.now_ms)

    async def _change(self, batch: Batch, receipt: Receipt) -> None:
        batch.visible_ms[receipt.offset] = min(batch.visible_ms[receipt.offset], self.now_ms)
        reply = await self.change(receipt, self.scenario.random.choice((200, 5_000)))
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        changed = ChangeInvisibleReply.from_fields(reply.fields)
        if changed.pop_time:  # otherwise the receipt was not valid any more
            batch.visible_ms[receipt.offset] = changed.pop_time + changed.invisible_time


def receipts_of(reply: PopReply) -> list[Receipt]:
    """Return the receipts of the messages of a reply, in their order."""
    receipts: list[Receipt] = []
    starts = (reply.start_offset_info or "").split(";")
    offsets = (reply.msg_offset_info or "").split(";")
    for start_text, offsets_text in zip(starts, offsets, strict=True):
        kind, queue_id, start = start_text.split(" ")
        assert offsets_text.startswith(f"{kind} {queue_id} ")
        receipts += [
            Receipt(
                start=int(start),
                pop_ms=reply.pop_time,
                invisible_ms=reply.invisible_time,
                revive_queue=reply.revive_qid,
                kind=kind,
                broker="broker-a",
                queue_id=int(queue_id),
                offset=int(offset),
            )
            for offset in offsets_text.split(" ")[2].split(",")
        ]
    return receipts
