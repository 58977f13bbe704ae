"""CPU cost of the wire layer and of SQL92 filters, compared with the floor of a bare library call.

Ours and the floor are timed in turns in this process, best of several rounds; compare the ratios,
not the microseconds. The floor processes the same bytes with only `orjson` and `struct`: no types,
no checks, no objects.

    python benchmarks/wire.py [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from struct import Struct
from time import perf_counter, process_time
from typing import NamedTuple

import orjson

from downrange.filters.match import Expression
from downrange.model import ReceivedMessage
from downrange.wire.command import Command, decode, encode
from downrange.wire.fields import request_command
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import SendReply, SendRequestV2
from downrange.wire.records import (
    BatchItem,
    Record,
    decode_batch,
    decode_records,
    encode_batch,
    encode_record,
)
from downrange.wire.reply_messages import messages_in

BODY = bytes(range(256)) * 4
PROPERTIES = (
    "KEYS\x01order-1\x02UNIQ_KEY\x017F0000010001000000000000000000010001\x02WAIT\x01true\x02"
    "TAGS\x01paid\x02"
)
ROUNDS = 7
ROUND_SECONDS = 0.15

Operation = Callable[[], object]


class Row(NamedTuple):
    """One operation: ours and the floor, in microseconds of CPU."""

    name: str
    ours_us: float
    floor_us: float

    @property
    def ratio(self) -> float:
        """Our time as a multiple of the floor."""
        return self.ours_us / self.floor_us


def cost_us(operation: Operation) -> float:
    """Return the CPU time of one call in one round."""
    count, started = 0, perf_counter()
    while perf_counter() - started < ROUND_SECONDS / 4:
        operation()
        count += 1
    cpu_started = process_time()
    for _ in range(count * 4):
        operation()
    return (process_time() - cpu_started) / (count * 4) * 1e6


def measure(name: str, ours: Operation, floor: Operation) -> Row:
    """Time ours and the floor in turns, so that other load affects both."""
    pairs = [(cost_us(ours), cost_us(floor)) for _ in range(ROUNDS)]
    return Row(name, min(pair[0] for pair in pairs), min(pair[1] for pair in pairs))


# ---- a send request ------------------------------------------------------------------------------

WORDS = Struct(">ii")


def build_send() -> bytes:
    header = SendRequestV2(
        producer_group="shop",
        topic="orders",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1_794_775_023_391,
        flag=0,
        properties=PROPERTIES,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="broker-a",
    )
    return encode(request_command(header, BODY))


SEND_FRAME = build_send()
SEND_HEADER: dict[str, object] = orjson.loads(SEND_FRAME[8 : -len(BODY)])


def build_send_floor() -> bytes:
    header = orjson.dumps(SEND_HEADER)
    return WORDS.pack(4 + len(header) + len(BODY), len(header)) + header + BODY


# ---- its reply -----------------------------------------------------------------------------------

REPLY_FRAME = encode(
    Command(
        0,
        SendReply(
            msg_id="7F000001000055D80000000001403B62",
            queue_id=3,
            queue_offset=123_456,
            transaction_id="7F000001000100000000000000000001",
            region="DefaultRegion",
            trace_on=True,
        ).to_fields(),
        request_id=1003,
        flags=1,
    )
)


def read_reply() -> SendReply:
    frames = SPLITTER
    frames.receive(REPLY_FRAME)
    frame = frames.next_frame()
    assert frame is not None
    return SendReply.from_fields(decode(frame).fields)


SPLITTER = FrameSplitter()


def read_reply_floor() -> object:
    length, header_length = WORDS.unpack_from(REPLY_FRAME)
    return orjson.loads(REPLY_FRAME[8 : 8 + header_length]), REPLY_FRAME[8 + header_length : length]


# ---- records and batches -------------------------------------------------------------------------

PULL_BODY = b"".join(
    encode_record(
        Record(
            queue_id=1,
            queue_offset=number,
            log_offset=number * 1200,
            born_ms=1_794_775_023_391,
            store_ms=1_794_775_023_392,
            born_ip=b"\x7f\x00\x00\x01",
            store_ip=b"\x7f\x00\x00\x01",
            born_port=40_000,
            store_port=10_911,
            body=BODY,
            topic_bytes=b"orders",
            property_bytes=PROPERTIES.encode(),
        )
    )
    for number in range(32)
)
RECORD_HEAD = Struct(">iiiiiqqiq4siq4siiqi")
I16 = Struct(">h")


def decode_pull_floor() -> object:
    data, at, found = PULL_BODY, 0, []
    while at < len(data):
        head = RECORD_HEAD.unpack_from(data, at)
        body_at = at + 88
        topic_at = body_at + head[-1] + 1
        properties_at = topic_at + data[topic_at - 1] + 2
        (size,) = I16.unpack_from(data, properties_at - 2)
        found.append(
            (
                head,
                data[body_at : topic_at - 1],
                data[topic_at : properties_at - 2],
                data[properties_at : properties_at + size],
            )
        )
        at += head[0]
    return found


def split_pull() -> list[ReceivedMessage]:
    return messages_in(PULL_BODY, "broker-a", ReceivedMessage, body_bytes_max=1 << 22)


def read_bodies() -> object:
    return [message.body for message in split_pull()]


def read_bodies_ids_and_tags() -> object:
    return [(message.body, message.message_id, message.tags) for message in split_pull()]


def read_bodies_floor() -> object:
    data, at, found = PULL_BODY, 0, []
    while at < len(data):
        head = RECORD_HEAD.unpack_from(data, at)
        found.append(data[at + 88 : at + 88 + head[-1]])
        at += head[0]
    return found


def read_bodies_ids_and_tags_floor() -> object:
    data, at, found = PULL_BODY, 0, []
    while at < len(data):
        head = RECORD_HEAD.unpack_from(data, at)
        end, topic_at = at + head[0], at + 88 + head[-1]
        properties = data[topic_at + data[topic_at] + 3 : end]
        message_id = properties.partition(b"\x02UNIQ_KEY\x01")[2].partition(b"\x02")[0]
        tags = properties.partition(b"\x02TAGS\x01")[2].partition(b"\x02")[0]
        found.append((data[at + 88 : topic_at], message_id.decode(), tags.decode()))
        at = end
    return found


BATCH_BODY = encode_batch(BatchItem(0, b"x" * 100, PROPERTIES.encode()) for _ in range(100))
BATCH_HEAD = Struct(">iiiii")


def split_batch_floor() -> object:
    data, at, found = BATCH_BODY, 0, []
    while at < len(data):
        size, _, _, flag, body_size = BATCH_HEAD.unpack_from(data, at)
        properties_at = at + 22 + body_size
        (properties_size,) = I16.unpack_from(data, properties_at - 2)
        found.append(
            (
                flag,
                data[at + 20 : properties_at - 2],
                data[properties_at : properties_at + properties_size],
            )
        )
        at += size
    return found


# ---- an SQL92 filter -----------------------------------------------------------------------------

FILTER = Expression("amount > 100 AND color = 'red' AND count <= 5")
FILTERED = {
    "KEYS": "order-1",
    "TAGS": "paid",
    "UNIQ_KEY": "7F0000010001000000000000000000010001",
    "amount": "150",
    "color": "red",
    "count": "5",
}


def match_floor() -> bool:
    values = FILTERED
    return int(values["amount"]) > 100 and values["color"] == "red" and int(values["count"]) <= 5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    rows = [
        measure("build a 1 KB V2 send request", build_send, build_send_floor),
        measure("read its reply", read_reply, read_reply_floor),
        measure(
            "decode a pull reply of 32 records",
            lambda: decode_records(PULL_BODY),
            decode_pull_floor,
        ),
        measure("its messages: bodies", read_bodies, read_bodies_floor),
        measure(
            "its messages: bodies, ids and tags",
            read_bodies_ids_and_tags,
            read_bodies_ids_and_tags_floor,
        ),
        measure("split a batch of 100", lambda: decode_batch(BATCH_BODY), split_batch_floor),
        measure("match an SQL92 filter of 3", lambda: FILTER.matches(FILTERED), match_floor),
    ]
    pair = Row(
        "send request and reply together",
        rows[0].ours_us + rows[1].ours_us,
        rows[0].floor_us + rows[1].floor_us,
    )
    rows.append(pair)
    if arguments.json:
        print(json.dumps([{**row._asdict(), "ratio": row.ratio} for row in rows]))
        return
    print(f"Python {platform.python_version()}, µs of CPU per operation\n")
    print(f"{'operation':<36}{'ours':>9}{'floor':>9}{'ratio':>8}")
    for row in rows:
        print(f"{row.name:<36}{row.ours_us:>9.2f}{row.floor_us:>9.2f}{row.ratio:>7.2f}x")


if __name__ == "__main__":
    main()
