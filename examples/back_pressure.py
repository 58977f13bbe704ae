"""Back pressure: the number of messages in flight is limited, so a slow broker costs no memory.

python examples/back_pressure.py
"""

from __future__ import annotations

import time

import downrange as mq
from downrange.embedded import deliver
from downrange.wire.codes import RequestCode


def main() -> None:
    options = mq.ProducerOptions(in_flight_max=10, timeout=5.0)
    with (
        mq.Cluster() as cluster,
        mq.Producer(cluster.name_server, group="g", options=options) as producer,
    ):
        producer.send(mq.Message("events", b"the topic exists now"))
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, deliver(after=0.2))  # a slow broker

        started = time.perf_counter()
        futures = [producer.submit(mq.Message("events", f"{number}")) for number in range(40)]
        print(f"submit waited for room: {time.perf_counter() - started:.1f} s for 40 messages")
        stats = producer.client.stats().producers["g"]
        print(f"in flight {stats.in_flight}, {stats.in_flight_bytes} bytes")
        for future in futures:
            future.result()
        print(f"40 messages, 10 at a time, 0.2 s each: {time.perf_counter() - started:.1f} s")

        producer.set_limits(in_flight_max=40)  # can change at run time
        started = time.perf_counter()
        for future in [producer.submit(mq.Message("events", f"{number}")) for number in range(40)]:
            future.result()
        print(f"with in_flight_max=40: {time.perf_counter() - started:.1f} s")

        # The timeout includes the wait for a free place.
        producer.set_limits(in_flight_max=10)
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, deliver(after=1.0))
        slow = [producer.submit(mq.Message("events", b"slow")) for _ in range(10)]
        try:
            producer.submit(mq.Message("events", b"one more"), timeout=0.3)
        except mq.TooManySends as error:
            print("TooManySends:", error)
        for future in slow:
            future.result()

        # A producer that refuses instead of waiting.
        options = mq.ProducerOptions(in_flight_max=10, when_full="raise")
        with mq.Producer(producer.client, group="busy", options=options) as busy:
            accepted = []
            try:
                while True:
                    accepted.append(busy.submit(mq.Message("events", b"1")))
            except mq.TooManySends as error:
                print(f"after {len(accepted)} messages:", error)
            for future in accepted:
                future.result()


if __name__ == "__main__":
    main()
