"""Pull consumers with SQL92 filters."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

import pytest

from downrange import InvalidSql, Message, PullConsumer, ServerFailure, Sql, SqlNotSupported
from downrange.options import ClientOptions
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import SERVERS, apache_server, embedded_server, only_sync
from tests.support.options import SHORT_TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange import Producer
    from tests.contract.conftest import Make, MakeProducer
    from tests.contract.servers import Server


@pytest.fixture
def consumer(make: Make) -> Callable[[Server], PullConsumer]:
    """Give the function that starts pull consumers of the front end."""

    def start(server: Server) -> PullConsumer:
        options = ClientOptions(call_timeout=LONG_TIMEOUT)
        made = make(PullConsumer, server.name_server, group="audit", client_options=options)
        return made.start()

    return start


@pytest.fixture(scope="module", params=SERVERS)
def without_sql(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Give a cluster whose broker has SQL92 filters switched off."""
    if request.param == "embedded":
        options = dataclasses.replace(SHORT_TIMES, is_sql_enabled=False)
        with embedded_server(broker=options) as own:
            yield own
        return
    settings = {"enablePropertyFilter": "false"}
    with apache_server(lambda: ApacheCluster(request.param, broker_options=settings)) as apache:
        yield apache


def send(producer: Producer, topic: str, *amounts: int) -> None:
    for amount in amounts:
        properties = {"amount": str(amount), "color": "red" if amount % 2 else "blue"}
        producer.send(Message(topic, str(amount), properties=properties))


def read(consumer: PullConsumer, count: int) -> list[int]:
    amounts: list[int] = []
    deadline = time.monotonic() + LONG_TIMEOUT
    while len(amounts) < count:
        assert time.monotonic() < deadline, f"{amounts} instead of {count}"
        amounts += [int(message.body) for message in consumer.poll(1.0)]
    return amounts


def test_only_messages_that_match_arrive(
    server: Server, producer: MakeProducer, consumer: Callable[[Server], PullConsumer]
) -> None:
    topic = server.topic(1)
    sending, reading = producer(server), consumer(server)
    send(sending, topic, 50, 151, 250, 251, 20)
    reading.assign(topic, start="earliest", tags=Sql("amount > 100 AND color = 'red'"))
    assert read(reading, 2) == [151, 251]
    send(sending, topic, 300, 301)  # while a pull waits
    assert read(reading, 1) == [301]
    reading.assign(topic, start="earliest", sql="amount BETWEEN 20 AND 60 OR amount IS NULL")
    assert read(reading, 2) == [50, 20]


def test_a_consumer_reads_on_behind_many_messages_that_do_not_match(
    server: Server, producer: MakeProducer, consumer: Callable[[Server], PullConsumer]
) -> None:
    topic = server.topic(1)
    sending, reading = producer(server), consumer(server)
    for _ in range(5):
        sending.send_batch([Message(topic, "1", properties={"amount": "1"})] * 1_000)
    send(sending, topic, 7)
    reading.assign(topic, start="earliest", tags=Sql("amount = 7"))
    assert read(reading, 1) == [7]
    (queue,) = reading.queues()
    assert reading.position(queue) == 5_001


def test_searches_are_refused_by_old_brokers_only(
    server: Server, producer: MakeProducer, consumer: Callable[[Server], PullConsumer]
) -> None:
    topic = server.topic(1)
    sending, reading = producer(server), consumer(server)
    send(sending, topic, 1, 2)
    searching = Sql("color STARTSWITH 'r' AND color CONTAINS 'e' AND color NOT ENDSWITH 'x'")
    if server.is_old:
        with pytest.raises(InvalidSql, match=r"older than 5\.1\.3 and does not know this word"):
            reading.assign(topic, start="earliest", tags=searching)
        assert reading.queues() == []
    else:
        reading.assign(topic, start="earliest", tags=searching)
        assert read(reading, 1) == [1]


def test_a_wrong_expression_is_refused_before_it_is_sent(
    server: Server, consumer: Callable[[Server], PullConsumer]
) -> None:
    reading = consumer(server)
    with pytest.raises(InvalidSql, match="write <> for not equal"):
        reading.assign("a topic that need not exist", sql="amount != 5")


def test_a_broker_without_sql_filters_names_its_setting(
    without_sql: Server, consumer: Callable[[Server], PullConsumer]
) -> None:
    reading = consumer(without_sql)
    with pytest.raises(SqlNotSupported, match="set enablePropertyFilter=true") as caught:
        reading.assign(without_sql.topic(1), tags=Sql("amount > 100"))
    assert isinstance(caught.value, ServerFailure)
    assert caught.value.remark == "The broker does not support consumer to filter message by SQL92"
    assert reading.queues() == []


@only_sync
@pytest.mark.parametrize(
    ("kind_of_filter", "expression", "code"),
    [
        ("SQL92", "amount > 100", 0),
        ("SQL92", "amount > 100 anything", 0),
        ("SQL92", "amount >", 23),
        ("SQL92", "", 23),
        ("CLASS", "amount", 23),
        ("TAG", "||", 0),
        ("", "a", 0),
    ],
)
def test_brokers_check_subscriptions_alike(
    server: Server, kind_of_filter: str, expression: str, code: int
) -> None:
    subscription = {"topic": "T", "subString": expression, "expressionType": kind_of_filter}
    body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription}).encode()
    answer = probe.call(server.brokers[0], RequestCode.CHECK_CLIENT_CONFIG, {}, body=body)
    assert answer.code == code
    assert bool(answer.remark) == (code != 0)
