"""Folders in which tests run pytest with the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import downrange as mq
from downrange.testing.servers import EmbeddedServers

if TYPE_CHECKING:
    import pytest

#: The settings of a strict project; hypothesis is slow to import.
SETTINGS = """
[pytest]
addopts = -p no:cacheprovider -p no:hypothesispytest --strict-markers --strict-config
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
ORDERS = """
import downrange as mq

# No call fails because the machine is busy.
SLOWLY = mq.ProducerOptions(timeout=60.0)
PATIENT = mq.ClientOptions(connect_timeout=30.0, call_timeout=30.0)


def place_order(name_servers, text):
    with mq.Producer(
        name_servers, group="shop", options=SLOWLY, client_options=PATIENT
    ) as producer:
        producer.send(mq.Message("orders", text, tags="new", keys=["o-1"]))


def bill_orders(name_servers):
    with mq.PullConsumer(name_servers, group="billing", client_options=PATIENT) as consumer:
        consumer.assign("orders")
        bodies = [message.body for message in consumer.poll(timeout=60.0)]
        consumer.commit()
    return bodies
"""
#: Tests of any cluster, given by its address.
_TESTS = """
import pytest
import downrange as mq
from downrange.embedded import drop
from orders import PATIENT, place_order


@pytest.mark.parametrize("text", ["first", "second"])
def test_orders(rocketmq, text):
    assert rocketmq.name_servers == "ADDRESS"
    place_order(rocketmq.name_servers, text)
    orders = rocketmq.wait_for("orders", timeout=60.0)
    assert [order.body for order in orders] == [text.encode()]


def test_own_names(rocketmq):
    topic, group = rocketmq.topic("orders"), rocketmq.group("billing")
    rocketmq.send(topic, "1")
    with mq.PullConsumer(
        rocketmq.name_servers, group=group, client_options=PATIENT
    ) as consumer:
        consumer.assign(topic)
        assert len(consumer.poll(timeout=60.0)) == 1
        consumer.commit()
    rocketmq.wait_until_consumed(group, timeout=60.0)


def test_no_faults(rocketmq):
    with pytest.raises(mq.OptionError, match="faults need the embedded cluster"):
        rocketmq.intercept(11, drop())
"""


def load_modules() -> None:
    """Use the fixtures once: a run in this process forgets the modules that it loads first."""
    servers = EmbeddedServers()
    with servers.lend() as lent:
        lent.send("orders", "1")
        lent.wait_for("orders")
    servers.close()
    for name in mq.__all__:
        getattr(mq, name)


def prepare(pytester: pytest.Pytester) -> pytest.Pytester:
    """Fill a folder with settings and with code to test: `orders.py`, which uses fixed names."""
    pytester.makeini(SETTINGS)
    pytester.makepyfile(orders=ORDERS)
    pytester.syspathinsert()
    return pytester


def code_for(address: str) -> str:
    """Return tests that expect the cluster at an address; there are four."""
    return _TESTS.replace("ADDRESS", address)
