"""Bytes and numbers from the real Java classes and servers; `captures.txt` has the frames.

None of them was made by our own code, so they are a reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from downrange.wire.codes import SysFlag
from downrange.wire.compression import Compression


class Capture(NamedTuple):
    """Something captured from the wire."""

    name: str
    title: str
    data: bytes


def _read_captures() -> dict[str, Capture]:
    captures: dict[str, Capture] = {}
    text = (Path(__file__).parent / "captures.txt").read_text(encoding="utf-8")
    for part in text.split("\n== ")[1:]:
        heading, _, digits = part.partition("\n")
        name, _, title = heading.partition(": ")
        captures[name] = Capture(name, title, bytes.fromhex(digits))
    return captures


CAPTURES: Final = _read_captures()
#: Made by a 5.5.0 broker for a topic of 154 characters; a record, not a frame.
RECORD_V2: Final = CAPTURES["record-v2"].data
#: Name of a captured frame -> the frame.
FRAMES: Final = {c.name: c.data for c in CAPTURES.values() if c.data is not RECORD_V2}

#: Request 105, header `topic=T`, remark `r`, request id 0, version 0, no body; binary header.
BINARY_REQUEST: Final = bytes.fromhex(
    "00000026 01000022 0069 00 0000 00000000 00000000 00000001 72 0000000c 0005 746f706963"
    "00000001 54"
)
#: The JSON header of the same kind, without the remark.
JSON_HEADER: Final = (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":0,'
    b'"serializeTypeCurrentRPC":"JSON","version":0}'
)

#: A body as stored -> its CRC.
BODY_CRCS: Final = {b"hello": 907060870}

#: The original of the compressed bodies below.
COMPRESSIBLE_BODY: Final = b"abcdefgh" * 625
#: sysFlag -> the body as the 5.5.0 client sends it.
COMPRESSED_BODIES: Final = {
    SysFlag.COMPRESSED | Compression.ZLIB: bytes.fromhex(
        "785eedc5310100200800b0ac0808fd1398c26f7b1627abef6cd8b66ddbb66ddbfef603c098ab4e"
    ),
    SysFlag.COMPRESSED | Compression.LZ4: bytes.fromhex(
        "04224d18607073250000008f61626364656667680800ffffffffffffffffffffffffffffffffffffff7b5064"
        "6566676800000000"
    ),
    SysFlag.COMPRESSED | Compression.ZSTD: bytes.fromhex(
        "28b52ffd005884000040616263646566676801007db3be7001010000"
    ),
}

JAVA_HASHES: Final = {
    "TagA": 2598919,
    "*": 42,
    "中文": 646394,
    "T#key": 78724528,
    "polygenelubricants": -2147483648,
}

#: Fields, body, secret key, and the signature that brokers expect.
SIGNED_FIELDS: Final = {"AccessKey": "RocketMQ", "b": "2", "topic": "TopicTest"}
SIGNED_BODY: Final = b"body"
SIGNED_CONTENT: Final = b"RocketMQ2TopicTestbody"
SECRET_KEY: Final = "12345678"
SIGNATURE: Final = "5sHPfHQeF4j2/J4kztTO4De8AKY="

#: A heartbeat of Java. Its fingerprint is the hash of its text without parts that differ between
#: clients: no client id, fingerprint and subscription versions 0.
HEARTBEAT: Final = (
    b'{"clientID":"1.2.3.4@1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[97,98],"expressionType":"TAG",'
    b'"subString":"a||b","subVersion":123,"tagsSet":["a","b"],"topic":"T"}],"unitMode":false}],'
    b'"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
)
HEARTBEAT_FINGERPRINT: Final = -926904732

#: For TopicTest on broker-a at 1700000001000, message 7F000001000100000000000000000000.
RECALL_HANDLE: Final = (
    "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3MDAwMDAwMDEwMDAgN0YwMDAwMDEwMDAxMDAwMDAwMDAwMDAwMDAwMDAwMDA="
)

#: Messages `a` (WAIT=true) and `bc` (flag 9; KEYS=k1, WAIT=true, TAGS=TagA) as one batch.
BATCH: Final = bytes.fromhex(
    "00000021 00000000 00000000 00000000 00000001 61 000a 57414954017472756502"
    "00000034 00000000 00000000 00000009 00000002 6263 001c"
    "4b455953016b31025741495401747275650254414753015461674102"
)

#: Topic TopicTest, body hello, queue 2, offset 5, at 1024 in the commit log, born at
#: 10.0.0.1:50000, stored at 10.0.0.2:10911; properties UNIQ_KEY, WAIT, TAGS.
RECORD: Final = bytes.fromhex(
    "000000a7daa320a73610a686000000020000000000000000000000050000000000000400000000000000018bcf"
    "e568000a0000010000c3500000018bcfe5687b0a00000200002a9f000000000000000000000000000000056865"
    "6c6c6f09546f70696354657374003e554e49515f4b455901374630303030303130303031303030303030303030"
    "3030303030303030303030025741495401747275650254414753015461674102"
)
RECORD_OFFSET_ID: Final = "0A00000200002A9F0000000000000400"

#: A route in the standard form, and in the form that old clients get.
ROUTE_STANDARD: Final = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":'
    b'[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
ROUTE_UNQUOTED: Final = ROUTE_STANDARD.replace(b'{"0":', b"{0:")
