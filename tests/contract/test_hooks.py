"""Hooks: functions of the user around every send and every request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.hooks import Hooks, MessageType, SendContext
from downrange.embedded import Interception, refuse
from downrange.errors import SendFailed, SendForbidden
from downrange.model import Message
from downrange.wire.codes import RequestCode
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import only_async, only_sync
from tests.contract.servers import stats_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from tests.contract.conftest import Embedded, Kind, MakeProducer
    from tests.contract.servers import Server

SEND = RequestCode.SEND_MESSAGE_V2


class Steps:
    """Hooks that record their calls."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.contexts: list[SendContext] = []

    def recording(self, name: str) -> Callable[[SendContext], None]:
        """Return a hook around sends that records `name`."""

        def record(context: SendContext) -> None:
            self.seen.append(name)
            self.contexts.append(context)

        return record

    def before_call(self, address: str, request: Command) -> None:
        """Record a request."""
        if request.code == SEND:
            self.seen.append("before_call")

    def after_call(self, address: str, request: Command, reply: Command | None) -> None:
        """Record a reply."""
        if request.code == SEND:
            self.seen.append("after_call")

    @property
    def hooks(self) -> Hooks:
        """Return all of them, with two of each kind around sends."""
        return Hooks(
            forbid_send=(self.recording("forbid 1"), self.recording("forbid 2")),
            before_send=(self.recording("before 1"), self.recording("before 2")),
            before_call=(self.before_call,),
            after_call=(self.after_call,),
            after_send=(self.recording("after 1"), self.recording("after 2")),
        )


BEFORE = ["forbid 1", "forbid 2", "before 1", "before 2", "before_call"]
AFTER = ["after_call", "after 1", "after 2"]


def test_hooks_are_called_in_order_around_a_send(server: Server, producer: MakeProducer) -> None:
    steps = Steps()
    topic = server.topic()
    sender = producer(server, hooks=steps.hooks)
    receipt = sender.send(Message(topic, b"1", tags="new"))
    assert steps.seen == BEFORE + AFTER
    context = steps.contexts[0]
    assert all(other is context for other in steps.contexts)
    assert (context.group, context.message.tags, context.queue, context.address) == (
        sender.group,
        "new",
        receipt.queue,
        server.brokers[0],
    )
    assert (context.receipt, context.error) == (receipt, None)
    assert context.message_type is MessageType.NORMAL


def test_hooks_are_called_around_every_way_to_send(
    server: Server, producer: MakeProducer, kind: Kind
) -> None:
    steps = Steps()
    topic = server.topic()
    sender = producer(server, hooks=steps.hooks)
    sender.send(Message(topic, b"1"))
    sender.submit(Message(topic, b"2")).result(LONG_TIMEOUT)
    sender.send_oneway(Message(topic, b"3"))
    sender.send_batch([Message(topic, b"4"), Message(topic, b"5")])
    modes = [
        (context.mode, len(context.messages))
        for name, context in zip(
            [step for step in steps.seen if "call" not in step], steps.contexts, strict=True
        )
        if name == "after 2"
    ]
    waiting = "sync" if kind == "sync" else "async"
    assert modes == [(waiting, 1), ("async", 1), ("oneway", 1), (waiting, 2)]


def test_hooks_are_called_around_every_attempt(embedded: Embedded, producer: MakeProducer) -> None:
    steps = Steps()
    topic = embedded.topic()
    sender = producer(embedded, hooks=steps.hooks)
    embedded.cluster.intercept(SEND, refuse(2, "busy"))
    with pytest.raises(SendFailed) as caught:
        sender.send(Message(topic, b"1"))
    assert steps.seen == (BEFORE + AFTER) * 3
    errors = list(dict.fromkeys(id(context.error) for context in steps.contexts))
    assert errors == [id(attempt.error) for attempt in caught.value.attempts]
    assert all(context.receipt is None for context in steps.contexts)


@pytest.mark.parametrize("where", ["before_send", "after_send", "before_call", "after_call"])
def test_an_error_in_an_observing_hook_is_logged_and_the_send_succeeds(
    server: Server, producer: MakeProducer, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("hook is broken")

    topic = server.topic(queues=1)
    with caplog.at_level(logging.WARNING, "downrange"):
        sender = producer(server, hooks=Hooks(**{where: (broken,)}))
        sender.send(Message(topic, b"1"))
        sender.send_oneway(Message(topic, b"2"))
    assert len(server.read_all(topic, 2)) == 2

    def errors() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.levelname == "ERROR"]

    # A heartbeat may have counted its error and not logged it yet.
    wait_until(lambda: len(errors()) == sender.client.stats().user_errors >= 2)
    records = errors()
    assert all("broken failed: " in record.message for record in records)
    assert "hook is broken" in caplog.text
    assert "Traceback" in caplog.text
    # Hooks of calls see requests of the client, too; they are not counted for the producer.
    if where.endswith("send"):
        assert stats_of(sender).user_errors == len(records) == 2


def test_a_hook_can_forbid_a_send(server: Server, producer: MakeProducer) -> None:
    def no_secrets(context: SendContext) -> None:
        if context.message.tags == "secret":
            raise ValueError("secrets stay here")

    topic = server.topic(queues=1)
    sender = producer(server, hooks=Hooks(forbid_send=(no_secrets,)))
    secret = Message(topic, b"1", tags="secret")
    for send in (sender.send, sender.send_oneway):
        with pytest.raises(SendForbidden, match=r"no_secrets .*secrets stay here"):
            send(secret)
    with pytest.raises(SendForbidden):
        sender.submit(secret).result(LONG_TIMEOUT)
    sender.send(Message(topic, b"2", tags="public"))
    assert [message.body for message in server.read_all(topic, 1)] == [b"2"]


def test_a_forbidden_send_is_not_tried_again(embedded: Embedded, producer: MakeProducer) -> None:
    calls: list[SendContext] = []

    def never(context: SendContext) -> None:
        calls.append(context)
        raise SendForbidden("never")

    sender = producer(embedded, hooks=Hooks(forbid_send=(never,)))
    with pytest.raises(SendForbidden, match="never"):
        sender.send(Message(embedded.topic(), b"1"))
    assert len(calls) == 1


def test_fields_that_a_hook_adds_are_sent(embedded: Embedded, producer: MakeProducer) -> None:
    def mark(address: str, request: Command) -> None:
        request.fields["mark"] = "mine"

    marks: list[str | None] = []

    def look(request: Command, peer: Peer) -> Interception | None:
        marks.append(request.fields.get("mark"))
        return None

    topic = embedded.topic()
    sender = producer(embedded, hooks=Hooks(before_call=(mark,)))
    embedded.cluster.intercept(SEND, look)
    sender.send(Message(topic, b"1"))
    assert marks == ["mine"]


@only_async
def test_hooks_may_be_coroutine_functions_under_asyncio(
    embedded: Embedded, producer: MakeProducer
) -> None:
    seen: list[str] = []

    async def before(context: SendContext) -> None:
        seen.append("before")

    async def after(context: SendContext) -> None:
        seen.append("after")

    sender = producer(embedded, hooks=Hooks(before_send=(before,), after_send=(after,)))
    sender.send(Message(embedded.topic(), b"1"))
    assert seen == ["before", "after"]


@only_sync
def test_a_hook_may_send_messages_itself(server: Server, producer: MakeProducer) -> None:
    topic, audit = server.topic(), server.topic(queues=1)

    def after(context: SendContext) -> None:
        if context.queue.topic == topic:
            sender.send(Message(audit, context.message.body))

    sender = producer(server, hooks=Hooks(after_send=(after,)))
    sender.submit(Message(topic, b"1")).result(LONG_TIMEOUT)
    sender.send(Message(topic, b"2"))
    assert [message.body for message in server.read_all(audit, 2)] == [b"1", b"2"]
