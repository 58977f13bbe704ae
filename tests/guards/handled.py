"""A pull of a push consumer whose cost is counted: from the reply to the end of its handlers."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.wire import PULL_BODY
from downrange.client._sync.pushed_message import PushedMessage
from downrange.client.consumed_base import link_to
from downrange.client.flows.consuming.delivery_window import DeliveryWindow
from downrange.client.flows.consuming.fetch_loop import fetch
from downrange.client.flows.consuming.pull import EVERYTHING
from downrange.client.flows.consuming.push_core import PushCore
from downrange.client.flows.effects import Call, UserCall, Wait
from downrange.client.flows.hooks import Hooks
from downrange.client.push_base import handle_run
from downrange.model import QueueId, QueueOffset
from downrange.options.consumers import ConsumerOptions
from downrange.wire.command import Command
from tests.guards.replies import PULLED
from tests.unit.client.flows.flow_steps import TOPIC, core_with, route

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.guards.count import Operation


def _reply() -> Command:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(PULLED),
        "minOffset": "0",
        "maxOffset": "1000",
    }
    return Command(0, fields, PULL_BODY)


def _push_core(handler: Any) -> PushCore:
    client = core_with(route("a"))
    push = PushCore(
        client, "guards", ConsumerOptions(), handler, handle_run, Hooks(), lambda flow: flow.close()
    )
    push.member.message_class = PushedMessage
    push.member.link = partial(link_to, consumer=push)
    push.member.subscriptions.replace({TOPIC: EVERYTHING}, client.clock.wall_ms())
    return push


@contextmanager
def pulled() -> Generator[Operation]:
    """A reply with messages is taken in, and a quick handler handles them."""
    handled = 0

    def handler(message: PushedMessage) -> None:
        nonlocal handled
        handled += len(message.body) > 0

    push, queue = _push_core(handler), QueueId(TOPIC, "a", 0)
    window = DeliveryWindow(queue, EVERYTHING, QueueOffset(0), push.member.buffer, 0.0)
    push.member.windows[queue] = window
    worker, fetching = push.work(), fetch(push.member, window)
    assert isinstance(next(worker), Wait)
    assert isinstance(next(fetching), Call)
    reply = _reply()

    def pull_and_handle() -> None:
        before = handled
        assert isinstance(fetching.send(reply), Call)
        effect = worker.send(True)
        while type(effect) is UserCall:
            effect = worker.send(effect.function(*effect.args))
        assert handled == before + PULLED

    yield pull_and_handle
