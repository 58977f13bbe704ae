"""When a consumer group of the shop is done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from downrange.demo.consumers import ConsumerPlan, ConsumerProgress, _Members
from downrange.model import QueueId

QUEUE = QueueId("orders", "broker-a", 0)


def test_a_message_that_fails_while_the_ends_are_asked_for_is_waited_for() -> None:
    progress = ConsumerProgress(ConsumerPlan("packing", "orders"))

    def topic_stats(topic: str) -> list[Any]:
        progress.waiting.add("7F")  # its handler asks for another attempt meanwhile
        return [SimpleNamespace(queue=QUEUE, max_offset=3)]

    health = SimpleNamespace(queues=[SimpleNamespace(queue=QUEUE, position=3)])
    members = cast("Any", _Members("127.0.0.1:1", progress))
    members._admin = SimpleNamespace(topic_stats=topic_stats)
    members._first = SimpleNamespace(health=lambda: health)
    assert not members.have_handled_all()
    progress.waiting.clear()
    members._admin.topic_stats = lambda topic: [SimpleNamespace(queue=QUEUE, max_offset=3)]
    assert members.have_handled_all()
