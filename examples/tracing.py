"""Message traces: write them with a producer, and read them.

python examples/tracing.py
"""

from __future__ import annotations

import downrange as mq

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


def main() -> None:
    broker = mq.BrokerOptions(is_trace_topic_created=True)
    options = mq.ProducerOptions(trace=mq.Trace(flush_interval=0.5))
    with mq.Cluster(broker=broker) as cluster:
        with mq.Producer(cluster.name_server, group="shop", options=options) as producer:
            for number in range(3):
                producer.send(mq.Message("orders", b"1" * 100, tags="new", keys=[f"o-{number}"]))
            stats = producer.client.stats().producers["shop"]
            print(f"waiting {stats.traces_waiting}, dropped {stats.traces_dropped}")
        # Closing the producer has sent the remaining traces.

        with mq.PullConsumer(cluster.name_server, group="audit") as consumer:
            consumer.assign(TRACE_TOPIC, start="earliest")
            for message in consumer.messages(idle_timeout=0.5):
                for trace in mq.decode_trace(message.body):
                    if isinstance(trace, mq.PubTrace):
                        print(f"{trace.topic} {trace.keys} from {trace.group} to {trace.address}:")
                        print(f"  {trace.message_id}, {trace.body_bytes} bytes", end="")
                        print(f", {trace.cost_ms} ms, success={trace.is_success}")

        with mq.Admin(cluster.name_server) as admin:
            found = admin.query_messages(TRACE_TOPIC, "o-1")
            print(f"by the key of the message: {len(found)} record found")


if __name__ == "__main__":
    main()
