"""The wire layer without a server: a message is sent, stored, and read back.

python examples/wire_tour.py

It needs the extra `cli`, for the tables of rich.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

import downrange as mq
from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.compression import Compression, compress
from downrange.wire.fields import request_command
from downrange.wire.headers import SendReply, SendRequestV2
from downrange.wire.ids import parse_offset_id, parse_unique_id
from downrange.wire.link import Link, ReplyArrived, RequestArrived
from downrange.wire.messages import properties_of
from downrange.wire.properties import encode_properties
from downrange.wire.records import Record, encode_record, scan_segment
from downrange.wire.reply_messages import messages_in

NOW_MS = 1_800_000_000_000
UNIQUE_ID = "7F00000104D200000001005465640001"


def main() -> None:
    console = Console(width=100)
    message = mq.Message("orders", "42 apples", tags="new", keys=["o-1"])
    properties = encode_properties(properties_of(message, UNIQUE_ID))
    header = SendRequestV2(
        producer_group="shop",
        topic=message.topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=0,
        born_timestamp=NOW_MS,
        flag=message.flag,
        properties=properties,
    )

    table = Table("header codec", "request", "reply", title="One send over two links", width=100)
    for codec in HeaderCodec:
        client: Link[str] = Link(codec=codec)
        server: Link[str] = Link()
        request = client.request(request_command(header, message.body), "the sender")
        (arrived,) = server.receive(request)
        assert isinstance(arrived, RequestArrived)
        received_header = SendRequestV2.from_fields(arrived.command.fields)
        stored = SendReply(
            msg_id="7F00000100002A9F0000000000000400",
            queue_id=received_header.queue_id,
            queue_offset=7,
        )
        reply = server.reply(
            arrived.command, Command(int(ResponseCode.SUCCESS), stored.to_fields())
        )
        (answer,) = client.receive(reply)
        assert isinstance(answer, ReplyArrived)
        offset = SendReply.from_fields(answer.command.fields).queue_offset
        table.add_row(
            codec.name,
            f"{RequestCode(arrived.command.code).name}, {len(request)} bytes",
            f"offset {offset} for {answer.waiter}, {len(reply)} bytes",
        )
    console.print(table)

    packed, flags = compress(message.body * 100, Compression.ZSTD)
    record = Record(
        queue_id=1,
        queue_offset=7,
        log_offset=1024,
        sys_flag=int(flags),
        born_ms=NOW_MS,
        born_ip=b"\x7f\x00\x00\x01",
        born_port=50_000,
        store_ms=NOW_MS + 1,
        store_ip=b"\x7f\x00\x00\x01",
        store_port=10_911,
        body=packed,
        topic_bytes=message.topic.encode(),
        property_bytes=properties.encode(),
    )
    segment = encode_record(record) + bytes(64)
    (found,) = scan_segment(segment)
    (back,) = messages_in(
        segment[: found.size], "broker-a", mq.ReceivedMessage, body_bytes_max=1 << 22
    )
    console.print(f"\nStored in {found.size} bytes, read back: {back}")
    console.print(f"body: {len(back.body)} bytes, stored as {len(packed)} bytes (zstd)")
    console.print(f"unique id: {parse_unique_id(back.message_id)}")
    console.print(f"offset id: {parse_offset_id(back.offset_id)}")


if __name__ == "__main__":
    main()
