"""The conversations with the real servers, run with our own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from downrange.options import BrokerOptions
from tests.conversations.catalogue import CONVERSATIONS
from tests.conversations.recorder import Facts
from tests.conversations.scene import live_scene

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Conversation -> why our server behaves differently from 5.5.0.
SKIPPED = {
    "an_inner_batch_is_stored_whole_and_unwraps": "batch queues are stored one by one, as in 4.9",
}
#: Conversation of 5.x alone -> what our server does instead.
DIFFERENT = {
    "a_message_returns_more_often_than_its_group_retries": "it becomes a dead letter",
    "a_pop_moves_the_offset_of_its_group": "the offset stays at the oldest open message",
}
NAMES = [name for name in CONVERSATIONS if name not in SKIPPED and name not in DIFFERENT]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def hold(cluster: Cluster, name: str, server: str) -> None:
    facts = Facts(
        server=server,
        prefix=f"c{list(CONVERSATIONS).index(name)}",
        now_ms=int(time.time() * 1000),
        broker="broker-a",
        broker_address=cluster.brokers[0],
    )
    addresses = {"name server": cluster.name_server, "broker": cluster.brokers[0]}
    with live_scene(facts, addresses) as scene:
        CONVERSATIONS[name](scene)


@pytest.mark.parametrize("name", NAMES)
def test_conversation_goes_as_with_the_real_server(name: str, cluster: Cluster) -> None:
    hold(cluster, name, "5.5.0")


def test_members_are_told_of_a_reset_as_by_the_older_server() -> None:
    with Cluster(broker=BrokerOptions(is_reset_by_pull=False)) as cluster:
        hold(cluster, "a_reset_reaches_the_consumers_of_a_group", "4.9.4")


@pytest.mark.parametrize("name", SKIPPED)
def test_conversation_goes_as_with_the_older_server(name: str, cluster: Cluster) -> None:
    hold(cluster, name, "4.9.4")
