"""Send with asyncio: the same methods, awaited; concurrent sends, cancellation, timeouts.

python examples/send_async.py
"""

from __future__ import annotations

import asyncio
import time

import downrange as mq


async def main() -> None:
    async with (
        mq.Cluster() as cluster,
        mq.AsyncProducer(cluster.name_server, group="shop") as producer,
    ):
        receipt = await producer.send(mq.Message("orders", "the first", keys=["o-1"]))
        print("one    ", receipt.status.name, "in queue", receipt.queue.number)

        started = time.perf_counter()
        messages = [mq.Message("orders", f"order {number}") for number in range(2000)]
        receipts = await asyncio.gather(*map(producer.send, messages))
        rate = len(receipts) / (time.perf_counter() - started)
        print(f"gather  {len(receipts)} receipts, {rate:,.0f} per second, server in this process")

        # Timeouts and cancellation of asyncio work; the producer stays usable.
        task = asyncio.create_task(producer.send(mq.Message("orders", "cancelled")))
        await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        print("cancel ", type(outcome).__name__, "- the message may be stored nevertheless")
        async with asyncio.timeout(1.0):
            await producer.send(mq.Message("orders", "in time"), timeout=0.5)
        print("timeout kept")

        await producer.send_oneway(mq.Message("metrics", "cpu 0.7"))
        batch = await producer.send_batch(mq.Message("orders", f"{n}") for n in range(500))
        print("batch  ", len(batch), "messages in", batch.request_count, "request")


if __name__ == "__main__":
    asyncio.run(main())
