"""Frames of sends in all forms that clients write, and in some that none does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from downrange.wire.codes import CommandFlag, HeaderCodec, RequestCode
from downrange.wire.command import encode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendRequest, SendRequestV2
from downrange.wire.records import encode_batch

if TYPE_CHECKING:
    from random import Random

    from downrange.wire.command import Command

_TEXTS: Final = ("v", "a b", "é中", "\U0001f600", 'q"\\', "x" * 60, "\x01", "0")
_RARE: Final = (
    {"DELAY": "1"},
    {"TIMER_DELAY_SEC": "5"},
    {"TRAN_MSG": "true"},
    {"CLUSTER": "c"},
    {"POP_CK": "1 2 3"},
    {"UNIQ_KEY": ""},
    {"UNIQ_KEY": "é"},
    {"UNIQ_KEY": 'a"b'},
    {"UNIQ_KEY": "k" * 300},
    {"nul": "\x00"},
    {"": "nameless"},
)


_RARE_HALF: Final = (
    {"PGROUP": ""},
    {"TRAN_MSG": "false"},
    {"REAL_QID": "7"},
    {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"},
    {"DOWNRANGE_FIRST_OFFSET": "1"},
)


def property_text(random: Random, number: int, *, rare: float = 0.05, is_half: bool = False) -> str:
    """Return a property string with a unique key, and sometimes something that is not plain."""
    properties = {"UNIQ_KEY": f"K{number:031}"}
    if is_half:
        properties |= {"TRAN_MSG": "true", "PGROUP": "group"}
        if random.random() < rare:
            properties |= random.choice(_RARE_HALF)
    if random.random() < 0.5:
        properties["TAGS"] = random.choice(_TEXTS)
    if random.random() < 0.5:
        properties["KEYS"] = random.choice(("k", "a  b", f"key{number}", "é中 ü", " "))
    if random.random() < 0.6:
        properties["WAIT"] = random.choice(("true", "true", "true", "false"))
    if random.random() < rare:
        properties |= random.choice(_RARE)
    items = [f"{name}\x01{value}" for name, value in properties.items()]
    random.shuffle(items)
    return "\x02".join(items) + random.choice(("\x02", "", "\x02", "\x02\x02"))


def send(random: Random, number: int, *, rare: float = 0.05, is_half: bool = False) -> Command:
    """Return a send to one of a few queues, in any header version and codec."""
    is_v1 = random.random() < 0.2
    settings: dict[str, Any] = {
        "producer_group": "group",
        "topic": random.choice(("orders", "orders", "bills", "日志")),
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": random.randrange(4),
        "sys_flag": random.choice((0, 0, 1, 0x103, 0x3FF, -1)),
        "born_timestamp": random.choice((0, 1_800_000_000_000, -5)),
        "flag": random.choice((0, 7, -(2**31), 2**31 - 1)),
        "properties": property_text(random, number, rare=rare, is_half=is_half),
        "reconsume_times": random.choice((None, 0, 3)),
        "unit_mode": random.choice((None, False, True)),
        "max_reconsume_times": random.choice((None, 16)),
        "batch": random.choice((None, False)),
        "broker_name": random.choice((None, "broker-a")),
    }
    if random.random() < rare:
        settings |= random.choice(
            (
                {"queue_id": -1},
                {"queue_id": 99},
                {"topic": "unknown"},
                {"topic": "t" * 128},
                {"topic": "%RETRY%group"},
                {"properties": None},
                {"topic": "SCHEDULE_TOPIC_XXXX"},
            )
        )
    body = random.randbytes(random.choice((1, 20, 300, 0 if random.random() < rare else 5)))
    code = RequestCode.SEND_MESSAGE if is_v1 else RequestCode.SEND_MESSAGE_V2
    if random.random() < rare and not is_half:
        settings["batch"] = True
        code = RequestCode.SEND_BATCH_MESSAGE
        body = batch(random, number)
        is_v1 = False
    header = (SendRequest if is_v1 else SendRequestV2)(**settings)
    command = request_command(header, body, code=int(code))
    command.request_id = number
    if random.random() < 0.15:
        command.flags = int(CommandFlag.ONEWAY)
    if random.random() < rare:
        command.fields["Signature"] = "s"
    return command


def batch(random: Random, number: int) -> bytes:
    """Return the body of a batch."""
    return encode_batch(
        (each, random.randbytes(random.choice((0, 5, 400))), property_text(random, number).encode())
        for each in range(random.randrange(1, 6))
    )


def frame(random: Random, command: Command, *, is_binary: bool) -> bytes:
    """Return a command's frame in a codec, sometimes in a form that our own writer does not use."""
    command.codec = HeaderCodec.BINARY if is_binary else HeaderCodec.JSON
    data = encode(command)
    if is_binary or random.random() > 0.1:
        return data
    header_size = int.from_bytes(data[4:8], "big")
    header, body = data[8 : 8 + header_size], data[8 + header_size :]
    old, new = random.choice(
        (
            (b'"code"', b' "code"'),
            (b'"PYTHON"', b'"JAVA"'),
            (b'"flag"', b'"remark":null,"flag"'),
            (b'"version":', b'"version":0'),
            (b'"opaque":', b'"opaque":1,"opaque":'),
            (b"\\u0001", b"\\u0001"),
            (b'"extFields"', b'"more":{},"extFields"'),
            ("é".encode(), b"\\u00e9"),
        )
    )
    header = header.replace(old, new, 1)
    words = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    return words + header + body
