"""Metrics for Prometheus, health and readiness of a cluster.

python examples/metrics.py
"""

from __future__ import annotations

import urllib.error
import urllib.request

import downrange as mq


def read(address: str, page: str) -> str:
    """Return the text of a page; an answer such as 503 has one, too."""
    try:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def main() -> None:
    # A server process: downrange serve --metrics 127.0.0.1:5557
    with mq.Cluster(metrics="127.0.0.1:0") as cluster:
        address = cluster.metrics_address
        assert address is not None
        with mq.Producer(cluster.name_server, group="shop") as producer:
            for number in range(3):
                producer.send(mq.Message("counted-orders", f"order {number}"))
        for line in read(address, "/metrics").splitlines():
            if line.startswith("rocketmq_messages_in_total") and "counted-orders" in line:
                print(line)
        print("health:", read(address, "/health").strip())
        print("ready: ", read(address, "/ready").strip())
        cluster.stop_broker()
        print("ready: ", read(address, "/ready").strip())


if __name__ == "__main__":
    main()
