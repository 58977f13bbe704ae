"""Namespaces: tenants of one cluster are separated by a hidden prefix of topics and groups.

python examples/namespaces.py
"""

from __future__ import annotations

import downrange as mq


def main() -> None:
    with mq.Cluster() as cluster:
        for tenant in ("north", "south"):
            options = mq.ClientOptions(namespace=tenant)
            with mq.Client(cluster.name_server, options=options) as client:
                with mq.Producer(client, group="shop") as producer:
                    receipt = producer.send(mq.Message("orders", f"for the {tenant}"))
                    print(f"{tenant}: sent to {receipt.queue.topic!r}")
                with mq.PullConsumer(client, group="audit") as consumer:
                    consumer.assign("orders", start="earliest")
                    for message in consumer.messages(idle_timeout=0.3):
                        print(f"{tenant}: read {message.body.decode()!r} from {message.topic!r}")
        with mq.Admin(cluster.name_server) as admin:
            names = [topic.name for topic in admin.list_topics() if topic.kind == "normal"]
            print("topics on the cluster:", ", ".join(names))


if __name__ == "__main__":
    main()
