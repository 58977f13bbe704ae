"""The conversations that need no broker, held with our own name server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from downrange.wire.bodies import TopicConfig
from tests.conversations import registering
from tests.conversations.catalogue import CONVERSATIONS
from tests.conversations.recording import Facts
from tests.conversations.scene import live_scene
from tests.embedded.servers import connected, register, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.server import NameServer

NAMES = [
    *(name for name, talk in CONVERSATIONS.items() if talk.__module__ == registering.__name__),
    "a_missing_topic_has_none_and_the_default_topic_has_one",
    "every_tolerated_form_of_a_json_header_is_read_alike",
    "an_unknown_request_code_is_named_in_the_answer",
]


@pytest.fixture(scope="module")
def name_server() -> Iterator[NameServer]:
    """Give a name server where a broker that is not there has registered the default topic."""
    default = TopicConfig(topic_name="TBW102", read_queue_nums=8, write_queue_nums=8, perm=7)
    with serving() as server, connected(server) as broker:
        register(broker, "broker-a", [default, TopicConfig(topic_name="broker-a")])
        yield server


@pytest.mark.parametrize("name", NAMES)
def test_conversation_goes_as_with_the_real_server(name: str, name_server: NameServer) -> None:
    facts = Facts(
        server="5.5.0",
        prefix=f"c{NAMES.index(name)}",
        now_ms=int(time.time() * 1000),
        broker="broker-a",
        broker_address="127.0.0.1:1",
    )
    # One of them asks a broker for a code that nobody knows; a name server does not know it either.
    addresses = {"name server": name_server.address, "broker": name_server.address}
    with live_scene(facts, addresses) as scene:
        CONVERSATIONS[name](scene)


def test_all_conversations_of_brokers_with_name_servers_are_held() -> None:
    assert len(NAMES) >= 8
