"""Asyncio clients that are used on an event loop on which they were not started."""

from __future__ import annotations

import asyncio
import gc
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    AsyncAdmin,
    AsyncClient,
    AsyncMessageTemplate,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ClientOptions,
    ConsumerOptions,
    Message,
    Outcome,
    QueueId,
    WrongEventLoop,
)
from downrange.embedded import Cluster
from downrange.wire.recall_handles import RecallHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MESSAGE = Message("orders", b"1")
QUEUE = QueueId("orders", "broker-a", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


async def execute(message: Message, receipt: Any) -> Outcome:
    return Outcome.COMMIT


#: Method -> its arguments, for every method that waits.
TOPIC_CALLS: dict[str, tuple[Any, ...]] = {
    "create_topic": ("orders",),
    "publish_queues": ("orders",),
    "min_offset": (QUEUE,),
    "max_offset": (QUEUE,),
    "search_offset": (QUEUE, 0),
    "earliest_store_time": (QUEUE,),
    "view_message": ("orders", "7F00000100002A9F0000000000000000"),
    "query_messages": ("orders", "key"),
}
LIFE: dict[str, tuple[Any, ...]] = {"start": (), "close": ()}
PRODUCER: dict[str, tuple[Any, ...]] = {
    **LIFE,
    **TOPIC_CALLS,
    "send": (MESSAGE,),
    "send_oneway": (MESSAGE,),
    "send_batch": ([MESSAGE],),
    "request": (MESSAGE,),
    "recall": (str(RecallHandle("orders", "broker-a", 1, "ID")),),
}
CONSUMER: dict[str, tuple[Any, ...]] = {
    **LIFE,
    "assign": ("orders",),
    "poll": (),
    "commit": (),
    "committed": (QUEUE,),
    "lag": (),
    "subscribe": ("orders",),
}
ADMIN: dict[str, tuple[Any, ...]] = {
    **LIFE,
    **TOPIC_CALLS,
    "cluster_facts": (),
    "list_topics": (),
    "topic_route": ("orders",),
    "topic_settings": ("orders",),
    "topic_stats": ("orders",),
    "delete_topic": ("orders",),
    "create_group": ("readers",),
    "delete_group": ("readers",),
    "group_offset": ("readers", QUEUE),
    "set_group_offset": ("readers", QUEUE, 0),
    "read_queues": ("orders",),
    "topic_groups": ("orders",),
    "topic_traffic": ("orders",),
    "queue_ranges": ("orders",),
    "list_groups": (),
    "group_settings": ("readers",),
    "update_group": ("readers",),
    "group_members": ("readers",),
    "group_topics": ("readers",),
    "group_lag": ("readers",),
    "running_state": ("readers", "client"),
    "consume_directly": ("readers", "client", "orders", "7F00000100002A9F0000000000000000"),
    "producer_members": ("shop",),
    "list_producers": (),
    "plan_reset": ("readers", "orders", "earliest"),
    "plan_clone": ("readers", "others", "orders"),
    "reset_offsets": ("readers", "orders", "earliest"),
    "clone_offsets": ("readers", "others", "orders"),
    "skip_messages": ("readers", "orders"),
    "dead_letters": ("readers",),
    "retry_now": ("readers", "orders", "7F00000100002A9F0000000000000000"),
    "broker_settings": (),
    "change_broker_settings": ({"brokerPermission": "6"},),
    "broker_figures": (),
    "clean_up": ("queues",),
    "wipe_write_permission": ("broker-a",),
    "restore_write_permission": ("broker-a",),
    "list_progress": (),
    "read_queue": (QUEUE, 0),
    "send_again": ("orders", "7F00000100002A9F0000000000000000"),
    "delay_offsets": (),
    "timed_messages": (),
    "name_servers": (),
}
CASES: list[tuple[Callable[[str], Any], dict[str, tuple[Any, ...]]]] = [
    (AsyncClient, LIFE),
    (lambda server: AsyncProducer(server, group="g"), PRODUCER),
    (
        lambda server: AsyncTransactionProducer(server, group="g", check=lambda _: None),
        {**PRODUCER, "send_in_transaction": (MESSAGE, execute)},
    ),
    (lambda server: AsyncPullConsumer(server, group="readers"), CONSUMER),
    (AsyncAdmin, ADMIN),
]
#: Methods whose arguments need more than a value; they end in the same call of the client.
ELSEWHERE = {"reply", "seek", "update_topic", "apply_reset", "resend_dead_letters", "unsubscribe"}


def waiting_methods(thing: Any) -> set[str]:
    return {
        name
        for name in dir(type(thing))
        if not name.startswith("_") and inspect.iscoroutinefunction(getattr(type(thing), name))
    }


@pytest.mark.parametrize(("make", "calls"), CASES)
def test_every_method_that_waits_refuses_another_event_loop(
    cluster: Cluster, make: Callable[[str], Any], calls: dict[str, tuple[Any, ...]]
) -> None:
    def call_all(thing: Any) -> None:
        for name, arguments in calls.items():
            with pytest.raises(WrongEventLoop, match="another event loop, in thread 'MainThread'"):
                asyncio.run(getattr(thing, name)(*arguments))

    async def main() -> None:
        async with make(cluster.name_server) as thing:
            assert waiting_methods(thing) - ELSEWHERE == set(calls)
            await asyncio.to_thread(call_all, thing)
            assert thing.state == "running"
            await thing.start()  # still works here
        assert thing.state == "closed"

    asyncio.run(main())


def test_a_producer_that_was_refused_elsewhere_sends_on_its_own_loop(cluster: Cluster) -> None:
    async def main() -> None:
        async with AsyncProducer(cluster.name_server, group="g") as producer:
            with pytest.raises(WrongEventLoop):
                await asyncio.to_thread(asyncio.run, producer.close())
            assert (await producer.send(MESSAGE)).attempts == 1
            # Methods that do not wait may be called by any thread.
            await asyncio.to_thread(producer.set_limits, in_flight_max=20)
            stats = await asyncio.to_thread(producer.client.stats)
            assert stats.producers["g"].sent == 1

    asyncio.run(main())


def test_a_transaction_cannot_be_ended_on_another_event_loop(cluster: Cluster) -> None:
    async def main() -> None:
        async with (
            AsyncTransactionProducer(cluster.name_server, group="g", check=lambda _: None) as maker,
            maker.transaction(MESSAGE) as transaction,
        ):
            with pytest.raises(WrongEventLoop):
                await asyncio.to_thread(asyncio.run, transaction.commit())
            assert transaction.outcome is None
            await transaction.commit()

    asyncio.run(main())


def test_an_iteration_on_another_event_loop_takes_no_message(cluster: Cluster) -> None:
    async def main() -> None:
        options = ConsumerOptions(start="earliest")
        async with (
            AsyncProducer(cluster.name_server, group="g") as producer,
            AsyncPushConsumer(
                cluster.name_server, group="steps", subscribe="steps", options=options
            ) as consumer,
        ):
            await producer.send(Message("steps", b"1"))

            async def step() -> Any:
                return await anext(consumer)

            assert (await step()).body == b"1"
            await producer.send(Message("steps", b"2"))
            with pytest.raises(WrongEventLoop):
                await asyncio.to_thread(asyncio.run, step())
            assert (await step()).body == b"2"

    asyncio.run(main())


def test_a_template_refuses_another_event_loop(cluster: Cluster) -> None:
    async def main() -> None:
        async with AsyncProducer(cluster.name_server, group="g") as producer:
            template = AsyncMessageTemplate(producer)
            with pytest.raises(WrongEventLoop):
                await asyncio.to_thread(asyncio.run, template.convert_and_send("orders", "1"))

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_a_producer_whose_event_loop_has_ended_says_so() -> None:
    # Without a connection: asyncio would warn of its socket at some later time.
    options = ClientOptions(connect_on_start=False)
    producer = AsyncProducer("127.0.0.1:1", group="g", client_options=options)
    asyncio.run(producer.start())
    for call in (producer.send(MESSAGE), producer.start(), producer.close()):
        with pytest.raises(WrongEventLoop, match=r"has ended; .* in one asyncio\.run\(\)"):
            asyncio.run(call)
    del producer, call
    gc.collect()
