"""Pull consumers that subscribe: members of a group which poll."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    Client,
    ClientClosed,
    GroupTaken,
    Message,
    OptionError,
    PullConsumer,
    Sql,
)
from downrange.options import PullOptions
from tests.contract.conftest import only_sync
from tests.contract.filter_rounds import ROUNDS, send_round
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange import Producer
    from downrange.model import QueueId
    from tests.contract.conftest import Make, MakeProducer
    from tests.contract.servers import Server

TIMEOUT = 40.0
EARLIEST = PullOptions(start="earliest", suspend=2.0)


@pytest.fixture
def pulling(make: Make) -> Callable[..., PullConsumer]:
    """Give the function that starts pull consumers of the front end."""

    def start(server: Server, group: str, options: PullOptions = EARLIEST) -> PullConsumer:
        made = make(PullConsumer, server.name_server, group=group, options=options)
        return made.start()

    return start


def send(producer: Producer, topic: str, count: int, prefix: str = "") -> list[str]:
    bodies = [f"{prefix}{number}" for number in range(count)]
    for body in bodies:
        producer.send(Message(topic, body))
    return bodies


def read(consumer: PullConsumer, count: int, into: list[str] | None = None) -> list[str]:
    """Poll until there are so many messages."""
    found: list[str] = [] if into is None else into

    def is_complete() -> bool:
        found.extend(message.body.decode() for message in consumer.poll(timeout=0.2))
        return len(found) >= count

    wait_until(is_complete, TIMEOUT)
    return found


def read_both(one: PullConsumer, two: PullConsumer, count: int, found: list[str]) -> None:
    """Poll two members until there are so many messages."""

    def is_complete() -> bool:
        for each in (one, two):
            found.extend(message.body.decode() for message in each.poll(0.1))
        return len(found) >= count

    wait_until(is_complete, TIMEOUT)


def test_members_share_queues_and_commit_by_hand(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer]
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)
    calls: list[tuple[str, int]] = []
    one, two = pulling(server, group), pulling(server, group)
    one.subscribe(
        topic,
        on_assigned=lambda queues: calls.append(("assigned", len(queues))),
        on_revoked=lambda queues: calls.append(("revoked", len(queues))),
    )
    wait_until(lambda: len(one.queues()) == 4, TIMEOUT)
    assert calls == [("assigned", 4)]
    two.subscribe(topic)
    wait_until(lambda: one.poll(0) == [] and len(one.queues()) == len(two.queues()) == 2, TIMEOUT)
    assert not set(one.queues()) & set(two.queues())
    assert calls[1:] == [("revoked", 1), ("revoked", 1)]
    bodies = send(sender, topic, 12)
    found: list[str] = []
    read_both(one, two, 12, found)
    assert Counter(found) == Counter(bodies)
    # What is not committed is read again by the next owner.
    assert sum(one.commit().values()) > 0
    two.close()
    wait_until(lambda: len(one.queues()) == 4, TIMEOUT)
    again = read(one, 1)
    assert set(again) < set(bodies)


def test_a_member_says_what_it_has_and_how_it_is(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer]
) -> None:
    topic, sender = server.topic(), producer(server)
    send(sender, topic, 3)
    chosen = pulling(server, server.topic())
    chosen.assign(topic)
    assert len(chosen.assignment()) == 4
    with pytest.raises(
        OptionError, match=r"health\(\) is about a member of a group: call subscribe"
    ):
        chosen.health()
    with pytest.raises(OptionError, match=r"stats\(\) is about a member"):
        chosen.stats()
    shared = pulling(server, server.topic())
    shared.subscribe(topic)
    wait_until(lambda: len(shared.assignment()) == 4, TIMEOUT)
    read(shared, 3)
    wait_until(lambda: shared.health().is_healthy)
    assert {each.queue for each in shared.health().queues} == set(shared.assignment())
    assert (shared.stats().fetched, shared.stats().queues) == (3, 4)


def test_a_consumer_that_subscribed_before_its_start_joins_the_group_then(
    server: Server, producer: MakeProducer, make: Make
) -> None:
    topic, group = server.topic(), server.topic()
    assigned: list[QueueId] = []
    consumer = make(PullConsumer, server.name_server, group=group, options=EARLIEST)
    with pytest.raises(OptionError, match="timeout=0"):
        consumer.subscribe(topic, timeout=0)
    consumer.subscribe(topic, tags="old", on_assigned=assigned.extend)
    consumer.subscribe(topic, tags="new")
    sender = producer(server)
    for tag in ("new", "old"):
        sender.send(Message(topic, tag, tags=tag))
    consumer.start()
    assert read(consumer, 1) == ["new"]
    wait_until(lambda: len(assigned) == len(consumer.assignment()) == 4, TIMEOUT)
    assert sorted(assigned) == sorted(consumer.assignment())
    consumer.close()
    refused = make(PullConsumer, server.name_server, group=group)
    refused.subscribe(topic, timeout=3.0)
    refused.close()
    with pytest.raises(ClientClosed):
        refused.start()


def test_a_consumer_that_cannot_join_its_group_is_closed(embedded: Server, make: Make) -> None:
    topic, group = embedded.topic(), embedded.topic()
    client = make(Client, embedded.name_server).start()
    first = make(PullConsumer, client, group=group).start()
    first.subscribe(topic)
    second = make(PullConsumer, client, group=group)
    second.subscribe(topic)
    with pytest.raises(GroupTaken):
        second.start()
    assert (first.state, second.state) == ("running", "closed")


def test_without_a_commit_the_next_member_reads_all_again(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer]
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)
    bodies = send(sender, topic, 6)
    first = pulling(server, group)
    first.subscribe(topic)
    assert Counter(read(first, 6)) == Counter(bodies)
    first.close()
    second = pulling(server, group)
    second.subscribe(topic)
    assert Counter(read(second, 6)) == Counter(bodies)
    assert sum(second.commit().values()) == 6
    second.close()
    third = pulling(server, group)
    third.subscribe(topic)
    more = send(sender, topic, 1, "more")
    assert read(third, 1) == more


def test_auto_commit_saves_what_was_returned_before_the_last_poll(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer]
) -> None:
    topic, group, sender = server.topic(queues=1), server.topic(), producer(server)
    options = PullOptions(start="earliest", suspend=2.0, auto_commit=0.2)
    first = pulling(server, group, options)
    first.subscribe(topic)
    send(sender, topic, 4)
    read(first, 4)
    queue = first.queues()[0]
    assert first.poll(0) == []  # what was returned before is done
    wait_until(lambda: first.committed(queue) == 4, TIMEOUT)
    last = send(sender, topic, 1, "last")
    assert read(first, 1) == last
    first.close()
    second = pulling(server, group, options)
    second.subscribe(topic)
    assert read(second, 1) == last


@pytest.mark.parametrize("options", [None, PullOptions(batch_count=8), PullOptions(auto_commit=5)])
def test_auto_commit_is_an_argument_too(
    embedded: Server, make: Make, options: PullOptions | None
) -> None:
    consumer = make(PullConsumer, embedded.name_server, group="g", options=options, auto_commit=5.0)
    assert consumer.options == replace(options or PullOptions(), auto_commit=5.0)


def test_seek_pause_and_filters(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer]
) -> None:
    topic, other = server.topic(queues=1), server.topic(queues=1)
    group, sender = server.topic(), producer(server)
    for number in range(4):
        tags = "even" if number % 2 == 0 else "odd"
        sender.send(Message(topic, f"{number}", tags=tags))
    consumer = pulling(server, group)
    consumer.subscribe(topic, "even")
    assert read(consumer, 2) == ["0", "2"]
    (queue,) = consumer.queues()
    consumer.seek(queue, 1)
    assert read(consumer, 1) == ["2"]
    consumer.pause(queue)
    sender.send(Message(topic, "4", tags="even"))
    wait_until(lambda: consumer.lag()[queue] >= 1, TIMEOUT)
    assert consumer.poll(0.3) == []
    consumer.resume()
    assert read(consumer, 1) == ["4"]
    consumer.subscribe(other, Sql("amount > 3"))
    assert len(consumer.queues()) == 2
    for amount in ("1", "5"):
        sender.send(Message(other, f"amount {amount}", properties={"amount": amount}))
    assert read(consumer, 1) == ["amount 5"]
    consumer.unsubscribe(topic)
    wait_until(lambda: consumer.poll(0) == [] and len(consumer.queues()) == 1, TIMEOUT)
    with pytest.raises(OptionError, match="not assigned"):
        consumer.seek(queue, "earliest")
    with pytest.raises(OptionError, match="subscribed"):
        consumer.assign(topic)


def test_a_queue_is_committed_by_on_revoked_before_another_member_gets_it(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer], make: Make
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)
    one = pulling(server, group)
    inner: Any = one if make.kind == "sync" else one.inner  # type: ignore[attr-defined]
    if make.kind == "sync":

        def commit(queues: list[QueueId]) -> None:
            inner.commit()

        one.subscribe(topic, on_revoked=commit)
    else:

        async def commit_async(queues: list[QueueId]) -> None:
            await inner.commit()

        one.subscribe(topic, on_revoked=commit_async)
    bodies = send(sender, topic, 16)
    found = read(one, 16)
    two = pulling(server, group)
    two.subscribe(topic)
    while len(two.queues()) < 2:
        found += [each.body.decode() for each in one.poll(0.05)]
    more = send(sender, topic, 8, "more")
    read_both(one, two, 24, found)
    assert Counter(found) == Counter(bodies + more)


def test_another_filter_counts_for_all_that_is_sent_after_it(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer]
) -> None:
    """The pull that is held with the filter before skipped some, and returned others."""
    topic, sender = server.topic(queues=1), producer(server)
    consumer = pulling(server, server.topic(), PullOptions(start="earliest"))
    for number, (expression, _, _) in enumerate(ROUNDS):
        consumer.subscribe(topic, expression)
        expected = send_round(sender, topic, number)
        assert read(consumer, len(expected)) == expected
        assert consumer.poll(0.3) == []  # and a pull is held
    wait_until(lambda: consumer.poll(0.1) == [] and set(consumer.lag().values()) == {0}, TIMEOUT)


def test_a_topic_at_run_time_is_read_from_the_moment_of_the_call(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer]
) -> None:
    """With start="latest" the first messages were missed: its place was found later."""
    sender = producer(server)
    consumer = pulling(server, server.topic(), PullOptions(start="latest"))
    for topic in [server.topic() for _ in range(4)]:
        consumer.subscribe(topic)
        bodies = send(sender, topic, 4, topic)
        assert Counter(read(consumer, 4)) == Counter(bodies)


def test_a_pause_of_all_queues_holds_for_those_that_come_later(
    server: Server, producer: MakeProducer, pulling: Callable[..., PullConsumer]
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)
    one, two = pulling(server, group), pulling(server, group)
    one.subscribe(topic)
    two.subscribe(topic)
    wait_until(lambda: one.poll(0) == [] and len(one.queues()) == len(two.queues()) == 2, TIMEOUT)
    one.pause()
    two.close()
    wait_until(lambda: len(one.queues()) == 4, TIMEOUT)
    bodies = send(sender, topic, 8)
    assert one.poll(1.0) == []
    one.resume()
    assert Counter(read(one, 8)) == Counter(bodies)


@only_sync
def test_on_assigned_may_subscribe(server: Server, pulling: Callable[..., PullConsumer]) -> None:
    first, second, third = (server.topic() for _ in range(3))
    consumer = pulling(server, server.topic())

    def assigned(queues: list[QueueId]) -> None:
        if queues[0].topic == second:
            consumer.subscribe(third)

    consumer.subscribe(first)
    consumer.subscribe(second, on_assigned=assigned)
    topics = {first, second, third}
    wait_until(lambda: {queue.topic for queue in consumer.assignment()} == topics, TIMEOUT)
    consumer.unsubscribe(third)
    assert {queue.topic for queue in consumer.assignment()} == {first, second}
