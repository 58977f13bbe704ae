"""The conversations, with the real servers of both releases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.conversations.catalogue import CONVERSATIONS, conversations_of
from tests.conversations.recorder import Facts
from tests.conversations.scene import live_scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.apache.cluster import ApacheCluster


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversation_passes_on_a_real_server(
    name: str, apache: ApacheCluster, unique_name: Callable[[str], str]
) -> None:
    if name not in conversations_of(apache.version):
        pytest.skip("a conversation of 5.x")
    (broker,) = apache.brokers
    facts = Facts(
        server=apache.version,
        prefix=unique_name("c"),
        now_ms=int(time.time() * 1000),
        broker=broker.name,
        broker_address=broker.address,
    )
    with live_scene(facts, {"name server": apache.name_server, "broker": broker.address}) as scene:
        CONVERSATIONS[name](scene)
