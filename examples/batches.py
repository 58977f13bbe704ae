"""Send a list of any length; the producer splits it into requests.

python examples/batches.py
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import downrange as mq
from downrange.embedded import refuse
from downrange.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.embedded import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command


def readings(count: int) -> Iterator[mq.Message]:
    """Yield messages one by one, so that the whole list is never in memory."""
    for number in range(count):
        yield mq.Message("readings", b"x" * 1000, keys=[f"r-{number}"])


def main() -> None:
    logging.getLogger("downrange.client").setLevel(logging.ERROR)  # no lines on failed attempts
    options = mq.ProducerOptions(retries=0)
    with (
        mq.Cluster() as cluster,
        mq.Producer(cluster.name_server, group="sensors", options=options) as producer,
    ):
        started = time.perf_counter()
        receipt = producer.send_batch(readings(10_000))
        print(f"{len(receipt)} messages in {receipt.request_count} requests {receipt.counts},")
        print(f"{time.perf_counter() - started:.1f} s; first id {receipt.message_ids[0]}")

        future = producer.submit_batch([mq.Message("readings", b"1"), mq.Message("readings", b"2")])
        print("in the background:", len(future.result()), "messages")

        print("\nmessages that cannot share a request are refused before anything is sent:")
        mixed = [mq.Message("readings", b"1"), mq.Message("alarms", b"2")]
        try:
            producer.send_batch(mixed)
        except mq.InvalidMessage as error:
            print(" ", error)

        requests = iter(range(1, 100))

        def only_one(request: Command, peer: Peer) -> Interception | None:
            return None if next(requests) == 1 else refuse(ResponseCode.MESSAGE_ILLEGAL, "no more")

        cluster.intercept(RequestCode.SEND_BATCH_MESSAGE, only_one)
        print("\nwhen a list fails in the middle, the error holds the messages to send again:")
        try:
            producer.send_batch(list(readings(10_000)))
        except mq.BatchFailed as error:
            stored = len(error.stored)
            print(f"  {stored} stored; not sent: {error.unsent[0].keys[0]} and all after it")


if __name__ == "__main__":
    main()
