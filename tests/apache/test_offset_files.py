"""The file of a Java broadcast consumer, read by us."""

from __future__ import annotations

from typing import TYPE_CHECKING

import downrange as mq

if TYPE_CHECKING:
    from pathlib import Path

    from tests.apache.java_client import JavaClient

OFFSETS = {
    mq.QueueId("orders", "broker-a", 0): 0,
    mq.QueueId("orders", "broker-a", 1): 2**40,
    mq.QueueId("ns%prices", "Bröker 🚀", 3): 17,
}


def test_we_read_the_offsets_that_a_java_consumer_keeps(
    java_client: JavaClient, tmp_path: Path
) -> None:
    text = java_client.call(
        "offsets.write",
        group="readers",
        offsets=[
            {
                "topic": queue.topic,
                "brokerName": queue.broker,
                "queueId": queue.number,
                "offset": offset,
            }
            for queue, offset in OFFSETS.items()
        ],
    )
    file = tmp_path / "offsets.json"
    file.write_text(text, encoding="utf-8")
    assert mq.read_java_offsets(file) == OFFSETS
