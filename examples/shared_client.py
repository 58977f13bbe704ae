"""One client shared by producers and an admin; two clusters in one process.

python examples/shared_client.py
"""

from __future__ import annotations

import downrange as mq


def main() -> None:
    with (
        mq.Cluster() as here,
        mq.Cluster() as there,
        mq.Client(here.name_server) as client,
        mq.Client(there.name_server) as elsewhere,
    ):
        with (
            mq.Producer(client, group="orders") as orders,
            mq.Producer(client, group="bills") as bills,
            mq.Producer(elsewhere, group="orders") as copies,
            mq.Admin(client) as admin,
        ):
            orders.send(mq.Message("orders", b"1"))
            bills.send(mq.Message("bills", b"1"))
            copies.send(mq.Message("copies", b"1"))
            print("topics here ", [t.name for t in admin.list_topics() if t.kind == "normal"])

            try:
                mq.Producer(client, group="orders").start()
            except mq.GroupTaken as error:
                print("GroupTaken: ", error)

            stats = client.stats()
            print("client id   ", stats.client_id.partition("@")[2])
            print("connections ", stats.connections)
            print("topics      ", stats.topics)
            for name, timer in sorted(stats.timers.items()):
                print(f"timer        {name}: every {timer.interval:.0f} s")
            for group, producer in stats.producers.items():
                print(f"producer     {group}: sent {producer.sent}")
        # The client stays open after its producers; a closed producer raises.
        try:
            orders.send(mq.Message("orders", b"2"))
        except mq.ClientClosed as error:
            print("ClientClosed:", error)


if __name__ == "__main__":
    main()
