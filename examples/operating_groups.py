"""Look after a consumer group: its settings, how far it is behind, and where it reads.

python examples/operating_groups.py
"""

from __future__ import annotations

import downrange as mq


def main() -> None:
    with mq.Cluster(brokers=2) as cluster, mq.Admin(cluster.name_server) as admin:
        admin.create_topic("orders", queues=2)
        admin.create_group("billing", retries=5)
        with mq.Producer(admin.client, group="shop") as producer:
            for number in range(20):
                producer.send(mq.Message("orders", f"{number}"))

        with mq.PullConsumer(admin.client, group="billing") as consumer:
            consumer.assign("orders", start="earliest")
            left = 12
            while left:
                left -= len(consumer.poll(1.0, max_count=left))
            consumer.commit()
        show_lag(admin, "after twelve messages")

        plan = admin.plan_reset("billing", "orders", mq.Shift(-1))
        print(f"one step back in each queue: {plan.repeated} messages again")
        admin.apply_reset(plan)
        show_lag(admin, "after the reset")

        admin.create_group("audit")
        admin.clone_offsets("billing", "audit", "orders")
        skipped = admin.skip_messages("billing", "orders").skipped
        print(f"billing skips {skipped} messages, audit stays at {lag_of(admin, 'audit')}")

        for group in admin.list_groups(with_progress=True):
            if group.kind == "normal":
                print(f"  {group.group}: {group.members} members, {group.lag} behind")
        settings = admin.update_group("billing", is_enabled=False)
        print("may read:", {broker: each.is_enabled for broker, each in settings.items()})
        print("dead letters:", len(admin.dead_letters("billing").letters))


def lag_of(admin: mq.Admin, group: str) -> int:
    return admin.group_lag(group, topic="orders").messages


def show_lag(admin: mq.Admin, when: str) -> None:
    lag = admin.group_lag("billing", topic="orders")
    print(f"{when}: {lag.messages} messages behind, the oldest waits {lag.age}")
    for queue in lag.queues:
        print(f"  {queue.queue.broker}/{queue.queue.number}: {queue.committed} of {queue.end}")


if __name__ == "__main__":
    main()
