"""A cluster inside this process: messages go in, come out, wait, and survive a crash.

python examples/embedded_cluster.py
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import downrange as mq
from downrange.embedded import Cluster
from downrange.server.remote import RemotePeer
from downrange.wire.codes import PullFlag, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import PullRequest, QueryByKeyRequest, SendReply, SendRequestV2
from downrange.wire.messages import properties_of, received
from downrange.wire.properties import encode_properties
from downrange.wire.records import decode_records

if TYPE_CHECKING:
    from downrange.wire.command import Command

TOPIC = "orders"
DEADLINE = 10.0

console = Console(width=100)


async def send(broker: RemotePeer, message: mq.Message, number: int) -> SendReply:
    """Send one message to queue 0; a producer will do this in one line."""
    properties = properties_of(message, f"7F00000104D20000000100546564{number:04X}")
    header = SendRequestV2(
        producer_group="shop",
        topic=message.topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=message.flag,
        properties=encode_properties(properties),
    )
    reply = await broker.ask(request_command(header, message.body), DEADLINE)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return SendReply.from_fields(reply.fields)


async def pull(broker: RemotePeer, offset: int, wait_ms: int = 0) -> list[mq.ReceivedMessage]:
    """Read queue 0 from an offset on, and wait there for a message if there is none."""
    request = PullRequest(
        consumer_group="warehouse",
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND),
        suspend_timeout_millis=wait_ms,
        subscription="*",
    )
    return messages_of(await broker.ask(request_command(request), DEADLINE))


def messages_of(reply: Command) -> list[mq.ReceivedMessage]:
    """Return the messages in a reply."""
    return [
        message
        for record in decode_records(reply.body)
        for message in received(record, "broker-a", body_bytes_max=1 << 20)
    ]


def show(title: str, messages: list[mq.ReceivedMessage]) -> None:
    """Print messages as a table."""
    table = Table(title=title, title_justify="left")
    for column in ("offset", "body", "tags", "keys"):
        table.add_column(column)
    for message in messages:
        keys = ", ".join(message.keys)
        table.add_row(str(message.offset), message.body.decode(), message.tags, keys)
    console.print(table)


async def main() -> None:
    logging.getLogger("downrange").setLevel(logging.ERROR)  # the crash below is on purpose
    began = time.perf_counter()
    async with Cluster() as cluster:
        console.print(f"cluster started in {(time.perf_counter() - began) * 1000:.0f} ms")
        console.print("the topic is made by the first send, as on every RocketMQ cluster\n")
        broker = RemotePeer(cluster.brokers[0])
        for number, fruit in enumerate(("apples", "pears", "plums")):
            message = mq.Message(TOPIC, f"{number} {fruit}", tags="new", keys=[f"o-{number}"])
            await send(broker, message, number)
        show("pulled", await pull(broker, offset=0))

        query = QueryByKeyRequest(
            topic=TOPIC, key="o-1", max_num=8, begin_timestamp=0, end_timestamp=1 << 62
        )
        show("found by key o-1", messages_of(await broker.ask(request_command(query), DEADLINE)))

        sent = time.perf_counter()
        await send(broker, mq.Message(TOPIC, "cherries, in a second", deliver_in=1.0), 8)
        late = await pull(broker, offset=3, wait_ms=5000)
        show(f"delivered after {time.perf_counter() - sent:.2f} s", late)

        await broker.close()
        await cluster.server.brokers[0].kill()  # no flush, no good-bye
        await cluster.server.brokers[0].start()
        broker = RemotePeer(cluster.brokers[0])
        show("after a crash and a restart", await pull(broker, offset=0))
        await broker.close()


if __name__ == "__main__":
    asyncio.run(main())
