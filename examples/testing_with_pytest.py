"""Tests of code that sends and reads messages, with the fixtures of the pytest plugin.

python examples/testing_with_pytest.py

It needs pytest. The fixtures come with Downrange; `pytest examples/testing_with_pytest.py` does the
same.
"""

import sys

import pytest

import downrange as mq
from downrange.embedded import refuse
from downrange.testing import RocketMQ, RocketMQCluster
from downrange.wire.codes import RequestCode, ResponseCode

# ---- the code under test, with topics and groups of its own --------------------------------------


def place_order(name_servers: str, number: int) -> None:
    with mq.Producer(name_servers, group="shop") as producer:
        producer.send(mq.Message("orders", f"order {number}", tags="new", keys=[f"o-{number}"]))


def bill_orders(name_servers: str) -> int:
    """Send an invoice for each new order; return how many."""
    with (
        mq.PullConsumer(name_servers, group="billing") as consumer,
        mq.Producer(name_servers, group="billing") as producer,
    ):
        consumer.assign("orders", tags="new")
        orders = consumer.poll(timeout=10.0)
        for order in orders:
            producer.send(mq.Message("invoices", order.body, keys=order.keys))
        consumer.commit()
    return len(orders)


# ---- its tests -----------------------------------------------------------------------------------


def test_order_is_sent_with_its_number_as_key(rocketmq: RocketMQ) -> None:
    place_order(rocketmq.name_servers, 1)
    [order] = rocketmq.wait_for("orders")
    assert (order.body, order.tags, order.keys) == (b"order 1", "new", ["o-1"])


def test_every_order_is_billed_once(rocketmq: RocketMQ) -> None:
    rocketmq.send("orders", "order 2", tags="new", keys=["o-2"])
    assert bill_orders(rocketmq.name_servers) == 1
    rocketmq.wait_until_consumed("billing")
    assert [invoice.keys for invoice in rocketmq.messages("invoices")] == [["o-2"]]


def test_order_that_no_broker_takes_is_an_error(rocketmq: RocketMQ) -> None:
    rocketmq.intercept(
        RequestCode.SEND_MESSAGE_V2, refuse(ResponseCode.MESSAGE_ILLEGAL, "not today")
    )
    with pytest.raises(mq.SendFailed, match="not today"):
        place_order(rocketmq.name_servers, 3)
    assert rocketmq.messages("orders") == []


def test_orders_are_taken_while_one_of_two_brokers_is_down(
    rocketmq_cluster: RocketMQCluster,
) -> None:
    rocketmq_cluster.kill_broker(0)
    place_order(rocketmq_cluster.name_servers, 4)
    assert len(rocketmq_cluster.wait_for("orders")) == 1


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-v"]))
