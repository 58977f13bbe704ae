"""Create topics, inspect them, and find messages by key, id and time.

python examples/topics_and_queries.py
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import downrange as mq


def main() -> None:
    with mq.Cluster(brokers=2) as cluster, mq.Admin(cluster.name_server) as admin:
        for broker in admin.cluster_facts(with_versions=True).brokers:
            print(f"{broker.name} of {broker.cluster} at {broker.addresses[0]}: {broker.version}")

        settings = admin.create_topic("orders", queues=2)
        print(f"{settings.topic}: {settings.write_queues} queues on {', '.join(settings.brokers)}")
        admin.update_topic("orders", read_queues=4, write_queues=4)

        with mq.Producer(cluster.name_server, group="shop") as producer:
            receipts = [
                producer.send(mq.Message("orders", f"{number}", keys=[f"o-{number}"]))
                for number in range(8)
            ]

        for state in admin.topic_stats("orders"):
            print(f"  {state.queue.broker}/{state.queue.number} holds {state.count}")

        receipt = receipts[-1]
        queue = receipt.queue
        first_at = admin.earliest_store_time(queue)
        print("the last queue:", admin.min_offset(queue), "to", admin.max_offset(queue), end="")
        print(", first stored at", f"{first_at:%H:%M:%S}" if first_at else None)
        recent = datetime.now(UTC) - timedelta(minutes=1)
        print("the last minute begins at offset", admin.search_offset(queue, recent))

        found = admin.query_messages("orders", "o-3")
        print("by key o-3:", [message.body for message in found])
        print("by id:", admin.view_message("orders", receipt.message_id).body)
        print("by offset id:", admin.view_message("orders", receipt.offset_id).body)

        admin.create_group("audit")
        admin.set_group_offset("audit", queue, 1)
        print("offset of the group:", admin.group_offset("audit", queue))
        try:
            admin.view_message("orders", found[0].message_id[:-1] + "0")
        except mq.NotFound as error:
            print("NotFound:", error)
        try:
            admin.topic_settings("ordres")
        except mq.RouteNotFound as error:
            print("RouteNotFound:", error)
        admin.delete_topic("orders")
        print("left:", [topic.name for topic in admin.list_topics() if topic.kind == "normal"])


if __name__ == "__main__":
    main()
