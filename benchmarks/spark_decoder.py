"""CPU cost of converting pull replies to Arrow, by columns and record by record.

Messages have a body of 1 KB and six properties, 32 in a reply. Both decoders run in this process in
turn; the figures are CPU time, the best of several rounds. Compare the ratios, not the rates.

    python -m benchmarks.spark_decoder [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
from functools import partial
from random import Random
from time import perf_counter, process_time
from typing import TYPE_CHECKING, NamedTuple

from downrange.spark.read.column_decoder import decode, decode_columns
from downrange.spark.read.record_decoder import Decoded, DecodeSpec, decode_each
from downrange.spark.read.record_table import find_records
from downrange.spark.schema import COLUMNS
from downrange.wire.compression import Compression, compress
from downrange.wire.records import Record, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BODY_BYTES = 1024
PER_REPLY = 32
COUNTS = (16, 32, 48, 256, 2000)
ROUNDS = 5
ROUND_SECONDS = 0.1
PROJECTIONS = {
    "all columns": COLUMNS,
    "without body": tuple(name for name in COLUMNS if name != "body"),
    "4 small columns": ("queue_id", "offset", "tags", "store_timestamp"),
    "4 numbers": ("queue_id", "offset", "born_timestamp", "store_timestamp"),
}


class Row(NamedTuple):
    """One batch: messages per second of CPU."""

    columns: str
    messages: int
    by_columns: float
    by_record: float
    chosen: float

    @property
    def ratio(self) -> float:
        """How many times faster decoding by columns is."""
        return self.by_columns / self.by_record


def replies(count: int, *, packed_every: int = 0) -> list[bytes]:
    """Return `count` messages; one body in `packed_every` is compressed with zlib; 0 for none."""
    chance = Random(6)
    records: list[bytes] = []
    for offset in range(count):
        # Hexadecimal digits compress to half of their size.
        body, bits = chance.randbytes(BODY_BYTES // 2).hex().encode(), 0
        if packed_every and offset % packed_every == 0:
            body, bits = compress(body, Compression.ZLIB)
        record = Record(
            queue_id=1,
            queue_offset=offset,
            log_offset=offset * 1300,
            sys_flag=bits,
            born_ms=1_794_775_023_391 + offset,
            store_ms=1_794_775_023_392 + offset,
            born_ip=bytes((127, 0, 0, 1)),
            store_ip=bytes((127, 0, 0, 1)),
            born_port=40_000,
            store_port=10_911,
            body=body,
            topic_bytes=b"orders",
            property_bytes=(
                f"KEYS\x01order-{offset}\x02UNIQ_KEY\x017F00000100010000000000000000{offset:08X}"
                f"\x02WAIT\x01true\x02TAGS\x01{chance.choice(('paid', 'sent'))}\x02"
                f"region\x01eu-west-{offset % 3}\x02tenant\x01customer-{offset % 97}\x02"
            ).encode(),
        )
        records.append(encode_record(record))
    return [b"".join(records[at : at + PER_REPLY]) for at in range(0, count, PER_REPLY)]


def decode_by_columns(chunks: Sequence[bytes], spec: DecodeSpec) -> Decoded:
    """Decode by columns, also for few messages."""
    return decode_columns(*find_records(chunks), spec)


def cost(operation: Callable[[], object]) -> float:
    """Return the CPU seconds of one call in one round."""
    count, started, cpu_started = 0, perf_counter(), process_time()
    while perf_counter() - started < ROUND_SECONDS:
        operation()
        count += 1
    return (process_time() - cpu_started) / count


def measure(name: str, columns: tuple[str, ...], chunks: Sequence[bytes], count: int) -> Row:
    spec = DecodeSpec(columns=columns, topic="orders", broker="broker-a", begin=0, end=count)
    ways = [partial(way, chunks, spec) for way in (decode_by_columns, decode_each, decode)]
    rounds = [[cost(way) for way in ways] for _ in range(ROUNDS)]
    return Row(name, count, *(count / min(costs) for costs in zip(*rounds, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    rows = [
        measure(name, columns, replies(count), count)
        for name, columns in PROJECTIONS.items()
        for count in COUNTS
    ]
    rows.append(measure("all, 1 in 20 packed", COLUMNS, replies(2000, packed_every=20), 2000))
    if arguments.json:
        print(json.dumps([{**row._asdict(), "ratio": row.ratio} for row in rows]))
        return
    print(f"Python {platform.python_version()}, thousand messages per second of CPU\n")
    print(f"{'columns':<22}{'messages':>9}{'at once':>9}{'each':>7}{'ratio':>8}{'chosen':>9}")
    for row in rows:
        print(
            f"{row.columns:<22}{row.messages:>9}{row.by_columns / 1e3:>9.0f}"
            f"{row.by_record / 1e3:>7.0f}{row.ratio:>7.1f}x{row.chosen / 1e3:>9.0f}"
        )


if __name__ == "__main__":
    main()
