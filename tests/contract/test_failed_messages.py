"""What becomes of messages that failed, and of a store that fails: nothing waits for ever."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    AsyncPushConsumer,
    ConsumerOptions,
    MemoryOffsets,
    Message,
    PushConsumer,
    Retry,
    RetrySome,
)
from tests.contract.conftest import only_async
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange import QueueId
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Make, MakeProducer
    from tests.contract.servers import Server


@pytest.mark.parametrize(
    "options",
    [{"mode": "concurrent"}, {"mode": "orderly"}, {"mode": "pop"}, {"model": "broadcast"}],
    ids=lambda options: next(iter(options.values())),
)
def test_a_batch_of_which_none_is_retried_is_done(
    embedded: Server,
    producer: MakeProducer,
    make: Make,
    unique_name: UniqueName,
    options: dict[str, Any],
) -> None:
    topic = embedded.topic(queues=1)
    producer(embedded).send_batch([Message(topic, str(number)) for number in range(8)])

    def handle(messages: list[Any]) -> None:
        raise RetrySome([message for message in messages if message.body == b"none"])

    consumer = make(
        PushConsumer,
        embedded.name_server,
        group=unique_name("jobs"),
        subscribe=topic,
        handler=handle,
        options=ConsumerOptions(batch=4, start="earliest", **options),
    ).start()
    wait_until(lambda: consumer.stats().handled == 8)
    stats = consumer.stats()
    assert (stats.running, stats.waiting, stats.failed, stats.sent_back) == (0, 0, 0, 0)
    consumer.close()


def test_a_used_up_message_is_a_dead_letter_at_once(
    embedded: Server,
    producer: MakeProducer,
    make: Make,
    unique_name: UniqueName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not after the time that the handler asks for, which would be long after the test."""
    topic, group = embedded.topic(queues=1), unique_name("jobs")

    def handle(message: Any) -> None:
        raise Retry(after=600)

    with caplog.at_level(logging.INFO, "downrange.client"):
        consumer = make(
            PushConsumer,
            embedded.name_server,
            group=group,
            subscribe=topic,
            handler=handle,
            options=ConsumerOptions(start="earliest", retries=0),
        ).start()
        producer(embedded).send(Message(topic, b"1"))
        wait_until(lambda: consumer.stats().dead == 1)
        assert consumer.stats().sent_back == 0
        (dead,) = embedded.read_all(f"%DLQ%{group}", 1)
        assert dead.body == b"1"
        wait_until(lambda: "it becomes a dead letter after 1 attempts" in caplog.text)


class BrokenStore(MemoryOffsets):
    """Raises what code of a user may raise."""

    is_broken = False

    def save(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        if self.is_broken:
            raise OSError(5, "the disk is gone")
        super().save(group, offsets)

    def release(self, group: str) -> None:
        raise OSError(5, "the disk is gone")


def test_a_store_of_the_user_that_fails_is_told_and_does_not_prevent_the_end(
    embedded: Server,
    producer: MakeProducer,
    make: Make,
    unique_name: UniqueName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, group, store = embedded.topic(queues=1), unique_name("jobs"), BrokenStore()
    consumer = make(
        PushConsumer,
        embedded.name_server,
        group=group,
        subscribe=topic,
        handler=lambda message: None,
        options=ConsumerOptions(
            model="broadcast", start="earliest", offset_store=store, commit_interval=0.05
        ),
    ).start()
    store.is_broken = True
    producer(embedded).send(Message(topic, b"1"))
    wait_until(lambda: consumer.stats().commits_failed >= 2)
    health = consumer.health()
    assert not health.is_healthy
    assert "save() of the offset store BrokenStore failed: OSError" in health.problems[0]
    consumer.close()
    assert caplog.text.count("offsets cannot be committed") == 1
    assert "Traceback" not in caplog.text
    wait_until(lambda: not any(group in thread.name for thread in threading.enumerate()))


@only_async
@pytest.mark.usefixtures("kind")
def test_a_block_that_is_cancelled_has_failed(
    embedded: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    """Else its message would stay with the consumer: neither retried nor committed."""
    topic = embedded.topic(queues=1)
    producer(embedded).send(Message(topic, b"1"))

    async def consume() -> None:
        options = ConsumerOptions(start="earliest")
        async with AsyncPushConsumer(
            embedded.name_server, group=unique_name("jobs"), subscribe=topic, options=options
        ) as consumer:
            message = await anext(consumer)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), consumer.processing(message):
                    await asyncio.Event().wait()
            while consumer.stats().sent_back == 0:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            assert (consumer.stats().running, consumer.stats().failed) == (0, 1)

    asyncio.run(asyncio.wait_for(consume(), 30))
