"""Captures the conversations from the Apache servers: `make golden`, or one release by its name.

    python -m tests.golden.capture [5.5.0 …] [--only NAME …]

Each release gets a folder with one recording per conversation, and the commit log that its broker
had written at the end, cut after the last record. With `--only`, just the named conversations are
recorded; everything else stays as it is.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from downrange.wire.records import scan_segment
from tests.apache.cluster import ApacheCluster
from tests.conversations.catalogue import CONVERSATIONS, conversations_of
from tests.conversations.recorder import Facts, Recording
from tests.conversations.scene import live_scene

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.apache.brokers import BrokerProcess

FOLDER = Path(__file__).parent
SEGMENT = "commitlog.bin"


def capture(version: str, only: Collection[str] = ()) -> None:
    """Record the conversations with a new server, all or only some, and write the recordings."""
    folder = FOLDER / version
    folder.mkdir(exist_ok=True)
    if not only:
        for old in folder.iterdir():
            old.unlink()
    with ApacheCluster(version) as cluster:
        (broker,) = cluster.brokers
        for number, name in enumerate(conversations_of(version)):
            if only and name not in only:
                continue
            facts = Facts(
                server=version,
                prefix=f"g{number}",
                now_ms=int(time.time() * 1000),
                broker=broker.name,
                broker_address=broker.address,
            )
            recording = Recording(facts)
            addresses = {"name server": cluster.name_server, "broker": broker.address}
            with live_scene(facts, addresses, recording) as scene:
                CONVERSATIONS[name](scene)
            recording.save(folder / f"{name}.jsonl")
            print(f"{version}  {len(recording.frames):>4} frames  {name}")
        if not only:
            (folder / SEGMENT).write_bytes(written_part(broker))


def written_part(broker: BrokerProcess) -> bytes:
    """Return the written part of a broker's first commit-log segment."""
    data = min((broker.store / "commitlog").iterdir()).read_bytes()
    return data[: sum(record.size for record in scan_segment(data))]


def main() -> None:
    """Capture the releases that the command line names, or both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=["5.5.0", "4.9.4"])
    parser.add_argument("--only", nargs="+", default=[], choices=CONVERSATIONS, metavar="NAME")
    arguments = parser.parse_args()
    for version in arguments.versions:
        capture(version, arguments.only)


if __name__ == "__main__":
    main()
