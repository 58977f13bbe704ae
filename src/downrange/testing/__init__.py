"""What the fixtures of the pytest plugin give to a test: `RocketMQ` and `RocketMQCluster`.

    def test_an_order_is_sent(rocketmq: RocketMQ) -> None:
        place_order(rocketmq.name_servers)
        [order] = rocketmq.wait_for("orders")
        assert order.tags == "new"

The plugin itself is the package `pytest_downrange`. pytest loads it in every run, so it imports
this package only when a test uses a fixture. docs/guides/testing.md describes the fixtures.
"""

from downrange.testing.async_rocketmq import AsyncRocketMQ
from downrange.testing.rocketmq import RocketMQ, RocketMQCluster
from downrange.testing.waits import WaitFailed

__all__ = ["AsyncRocketMQ", "RocketMQ", "RocketMQCluster", "WaitFailed"]
