"""Ids of messages come from visitors: they must not lead the console to other servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from downrange.console.cluster.actions.messages import DeliverToGroup, SendAgain
from downrange.console.cluster.message_ids import find_message
from downrange.console.cluster.message_page import message_detail
from downrange.console.cluster.message_search import search
from downrange.console.cluster.problems import NotABroker
from downrange.errors import NotFound
from downrange.wire.ids import OffsetId
from tests.unit.console.cluster.fake_admin import FakeAdmin, message

FOREIGN = [
    str(OffsetId("10.0.0.99", 10911, 0)),  # type: ignore[arg-type]
    str(OffsetId("10.0.0.1", 22, 0)),  # type: ignore[arg-type]
    str(OffsetId("fd00::1", 10911, 0)),  # type: ignore[arg-type]
]


def admin_with(*addresses: str) -> FakeAdmin:
    admin = FakeAdmin()
    admin.add(message(0))
    if addresses:

        async def route(topic: str, **_: Any) -> SimpleNamespace:
            return SimpleNamespace(brokers={"a": dict(enumerate(addresses))})

        admin.topic_route = route  # type: ignore[method-assign]
    return admin


@pytest.mark.parametrize("foreign", FOREIGN)
async def test_a_server_that_is_not_a_broker_of_the_topic_is_not_asked(foreign: str) -> None:
    admin = admin_with()
    known = cast("Any", admin)
    asks: list[Any] = [
        lambda: find_message(known, "orders", foreign),
        lambda: message_detail(known, "orders", foreign, "ns:9876"),
        lambda: search(known, "orders", f"id={foreign}", 10),
        lambda: SendAgain(topic="orders", message_id=foreign).run(known),
        lambda: DeliverToGroup(group="g", topic="orders", message_id=foreign).run(known),
    ]
    for ask in asks:
        with pytest.raises(NotABroker, match="is not a broker of topic 'orders'"):
            await ask()
    assert admin.count("view_message") == admin.count("send_again") == 0


async def test_a_key_that_looks_like_an_id_is_searched_as_a_key() -> None:
    admin = admin_with()
    admin.add(message(1, KEYS=FOREIGN[0]))
    result = await search(cast("Any", admin), "orders", FOREIGN[0], 10)
    assert (result.kind, len(result.messages)) == ("key", 1)


@pytest.mark.parametrize(
    ("addresses", "host"),
    [
        (("10.0.0.1:10911",), "10.0.0.1"),
        (("10.0.0.9:10911", "10.0.0.1:10911"), "10.0.0.1"),  # a replica
        (("[fd00::1]:10911",), "fd00::1"),
        (("localhost:10911",), "127.0.0.1"),
    ],
)
async def test_brokers_of_the_topic_are_asked_also_by_name(
    addresses: tuple[str, ...], host: str
) -> None:
    admin = admin_with(*addresses)
    place = str(OffsetId(host, 10911, 7))  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await find_message(cast("Any", admin), "orders", place)
    assert admin.calls == [("view_message", place)]


async def test_a_name_that_is_not_known_is_not_a_broker() -> None:
    admin = admin_with("no-such-host.invalid:10911")
    with pytest.raises(NotABroker):
        await find_message(cast("Any", admin), "orders", FOREIGN[0])


async def test_a_unique_id_names_no_server() -> None:
    admin = admin_with()
    sent = await SendAgain(topic="orders", message_id="ID0-0").run(cast("Any", admin))
    assert sent.values == {"message_id": "NEW"}
    with pytest.raises(NotFound):
        await find_message(cast("Any", admin), "orders", "C00002022560A5059E3357A28AC00008")
