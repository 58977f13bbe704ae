"""What the fixtures of the pytest plugin do; `test_pytest_plugin` runs pytest with them.

Embedded clusters also stand for real ones: the address is all that the plugin knows of these.
"""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import downrange as mq
from downrange.client.flows.routing.routes import Route, route_of
from downrange.embedded import Cluster, cut, drop, refuse
from downrange.testing import RocketMQ, WaitFailed
from downrange.testing.report import describe_topics
from downrange.testing.servers import EmbeddedServers, RealServers, open_servers, own_cluster
from downrange.testing.topic_reader import TopicReader
from downrange.wire.bodies import BrokerReplicas, ConsumerMember, HeartbeatBody, Subscription
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import SendBackRequest
from downrange.wire.system_names import retry_topic
from tests.embedded.peers import ThreadedServer, hang_up
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from downrange.client.flows.effects import Flow

#: For waits that fail.
SHORT = 0.05
#: Delay levels of the cluster that stands for a real one.
A_SECOND, AN_HOUR = 1, 2


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no look at a cluster fail because the machine is busy."""
    monkeypatch.setattr("downrange.testing.rocketmq._LOOK_TIMEOUT", WAIT_TIMEOUT)
    monkeypatch.setattr("downrange.testing.topic_reader._ANSWER_TIMEOUT", WAIT_TIMEOUT)


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedServers]:
    servers = EmbeddedServers()
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give a cluster that stands for a real one."""
    with Cluster(broker=mq.BrokerOptions(delay_levels="1s 1h")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def real(cluster: Cluster) -> Iterator[RealServers]:
    servers = RealServers(cluster.name_server)
    yield servers
    servers.close()


def _bodies(messages: list[mq.ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


# ---- messages ------------------------------------------------------------------------------------


def test_messages_are_returned_as_they_were_stored(embedded: EmbeddedServers) -> None:
    with embedded.lend() as lent:
        assert lent.messages("orders") == []
        for number in range(40):
            lent.send("orders", f"{number}", tags="new", keys=["o-1"])
        messages = lent.messages("orders")
        assert _bodies(messages) == [f"{number}".encode() for number in range(40)]
        assert len({message.queue for message in messages}) > 1
        assert (messages[0].tags, messages[0].keys) == ("new", ["o-1"])


def test_wait_returns_when_another_thread_has_sent(embedded: EmbeddedServers) -> None:
    with embedded.lend() as lent:
        sender = threading.Timer(0.02, lambda: [lent.send("orders", text) for text in "abc"])
        sender.start()
        found = lent.wait_for(
            "orders", 2, WAIT_TIMEOUT, matching=lambda message: message.body in b"ac"
        )
        assert _bodies(found) == [b"a", b"c"]
        sender.join()


def test_wait_that_fails_lists_what_is_there(embedded: EmbeddedServers) -> None:
    with embedded.lend() as lent:
        receipt = lent.send("orders", "1", tags="new")
        place = f"broker-a queue {receipt.queue.number} offset 0: '1' (1 byte), tags='new'"
        with pytest.raises(WaitFailed) as caught:
            lent.wait_for("orders", count=2, timeout=SHORT)
        assert str(caught.value) == (
            f"waited 0.05 s for 2 messages in 'orders', found 1:\n  {place}"
        )
        with pytest.raises(AssertionError) as caught_too:
            lent.wait_for("orders", timeout=SHORT, matching=lambda message: message.tags == "paid")
        assert str(caught_too.value) == (
            "waited 0.05 s for 1 matching message in 'orders', found none among 1 message:\n"
            f"  {place}"
        )


def test_wait_for_a_topic_that_does_not_exist_names_others(embedded: EmbeddedServers) -> None:
    with embedded.lend() as lent:
        expected = "waited 0.05 s for 1 message in 'ordres', found none; the topic does not exist"
        with pytest.raises(WaitFailed) as caught:
            lent.wait_for("ordres", timeout=SHORT)
        assert str(caught.value) == expected
        lent.send("orders", "1")
        lent.topic("empty")
        with pytest.raises(WaitFailed) as caught:
            lent.wait_for("ordres", timeout=SHORT)
        assert str(caught.value) == f"{expected}, but there are messages in 'orders' (1)"


def test_bad_arguments_are_refused(embedded: EmbeddedServers) -> None:
    with embedded.lend() as lent:
        with pytest.raises(mq.OptionError, match="count=0"):
            lent.wait_for("orders", count=0)
        with pytest.raises(mq.OptionError, match="timeout=-1"):
            lent.wait_for("orders", timeout=-1)
        with pytest.raises(mq.OptionError, match="topic"):
            lent.messages("not a topic")
        with pytest.raises(mq.OptionError, match="group"):
            lent.wait_until_consumed("")


def test_more_messages_than_the_limit_are_an_error(
    embedded: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.lend() as lent:
        lent.send("orders", "1")
        lent.send("orders", "2")
        reader = TopicReader("orders", {}, max_count=2)
        monkeypatch.setattr(lent, "_reader", lambda topic: reader)
        with pytest.raises(mq.OptionError, match="read them with a PullConsumer"):
            lent.messages("orders")


def test_broker_that_does_not_answer_is_named(
    embedded: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name server drops a broker that was killed, but not one that hangs."""
    with embedded.lend() as lent, mq.Admin(lent.name_servers) as admin:
        lent.send("orders", "1")
        route = admin.topic_route("orders")
        with ThreadedServer(hang_up) as dead:
            route.body.broker_datas.append(
                BrokerReplicas(broker_name="broker-x", broker_addrs={0: dead.address})
            )
            broken = route_of("orders", route.body)

            def find_broken(*_: object, **__: object) -> Flow[Route]:
                yield from ()
                return broken

            monkeypatch.setattr("downrange.testing.topic_reader.topic_route", find_broken)
            with pytest.raises(mq.ConnectionLost):
                lent.messages("orders")
            with pytest.raises(WaitFailed, match=r"\n  broker-x cannot be read: (.|\n)*'1'"):
                lent.wait_for("orders", 2, timeout=SHORT)
            assert re.search(r"'1' \(1 byte\)\n  broker-x cannot be read", lent.describe())


# ---- a fresh cluster for each test ---------------------------------------------------------------


def test_next_test_finds_no_topics_groups_and_offsets(embedded: EmbeddedServers) -> None:
    with embedded.lend() as lent:
        address = lent.name_servers
        lent.send(lent.topic("own"), "1")
        lent.send("orders", "1")
        with mq.PullConsumer(address, group=lent.group("billing")) as consumer:
            consumer.assign("orders")
            assert len(consumer.poll(WAIT_TIMEOUT)) == 1
            consumer.commit()
            group = consumer.group
    with embedded.lend() as lent, mq.Admin(lent.name_servers) as admin:
        assert lent.name_servers == address
        assert [topic for topic in admin.list_topics() if topic.kind != "system"] == []
        lent.send("orders", "2")
        queues = admin.read_queues("orders")
        assert {admin.group_offset(group, queue) for queue in queues} <= {None, 0}
        assert _bodies(lent.messages("orders")) == [b"2"]


def test_next_test_does_not_get_delayed_messages(embedded: EmbeddedServers) -> None:
    with embedded.lend() as lent:
        lent.send("orders", "delayed", deliver_in=1.0)
        old = embedded._cluster
    assert embedded._cluster is not old
    with embedded.lend() as lent:
        lent.send("orders", "mine", deliver_in=1.0)
        assert _bodies(lent.wait_for("orders", timeout=WAIT_TIMEOUT)) == [b"mine"]


@pytest.mark.parametrize("whole", [False, True])
def test_cluster_that_a_test_broke_is_replaced(embedded: EmbeddedServers, whole: bool) -> None:
    with embedded.lend():
        old = embedded._cluster
        if whole:
            old.stop()
        else:
            old.kill_broker(0)
    assert embedded._cluster is not old
    with embedded.lend() as lent:
        lent.send("orders", "1")


def test_new_cluster_takes_another_port_if_the_old_one_is_taken(
    embedded: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.lend() as lent:
        taken = lent.name_servers
        lent.send("orders", "1", delay_level=18)
        close, others = embedded.close, list[Cluster]()

        def close_and_take_the_port() -> None:
            close()
            others.append(Cluster(nameserver_port=int(taken.rpartition(":")[2])))
            others[0].start()

        monkeypatch.setattr(embedded, "close", close_and_take_the_port)
    with embedded.lend() as lent:
        assert lent.name_servers != taken
        assert lent.messages("orders") == []
    others[0].stop()


# ---- a real cluster ------------------------------------------------------------------------------


def test_only_messages_since_the_test_began_are_seen(cluster: Cluster, real: RealServers) -> None:
    with mq.Producer(cluster.name_server, group="old") as producer:
        for number in range(100):
            producer.send(mq.Message("payments", f"old {number}"))
    with real.lend() as lent:
        assert lent.messages("payments") == []
        with pytest.raises(WaitFailed, match=r"found none$"):
            lent.wait_for("payments", timeout=SHORT)
        for number in range(8):
            lent.send("payments", f"{number}")
        assert _bodies(lent.wait_for("payments", 8)) == [
            f"{number}".encode() for number in range(8)
        ]
        assert "payments: 8 messages" in lent.describe()


def test_only_names_of_its_own_are_deleted(cluster: Cluster, real: RealServers) -> None:
    with real.lend() as lent:
        own, group = lent.topic("invoices", queues=2), lent.group("billing")
        lent.send("kept", "1")
        lent.send(own, "1")
        with mq.PullConsumer(cluster.name_server, group=group) as consumer:
            consumer.assign(own)
            assert len(consumer.poll(WAIT_TIMEOUT)) == 1
            consumer.commit()
        lent.wait_until_consumed(group)
    with mq.Admin(cluster.name_server) as admin:
        names = {topic.name for topic in admin.list_topics()}
        assert "kept" in names
        assert own not in names


def test_names_of_its_own_differ(real: RealServers) -> None:
    with real.lend() as lent:
        assert lent.topic("invoices") != lent.topic("invoices")
        assert lent.group("billing") != lent.group("billing")
        with pytest.raises(mq.OptionError, match="group"):
            lent.group("not a group")


def test_faults_need_the_embedded_cluster(real: RealServers) -> None:
    with real.lend() as lent, pytest.raises(mq.OptionError, match="leave out --rocketmq-servers"):
        lent.intercept(RequestCode.PULL_MESSAGE, drop())


def test_address_decides_which_cluster_it_is(cluster: Cluster) -> None:
    servers = open_servers(cluster.name_server)
    with servers.lend() as lent:
        assert repr(lent) == f"<RocketMQ {cluster.name_server}>"
    servers.close()
    servers = open_servers(None)
    with servers.lend() as lent:
        assert lent.name_servers != cluster.name_server
    servers.close()


# ---- groups --------------------------------------------------------------------------------------


def _heartbeat(cluster: Cluster, client: mq.Client, group: str, topic: str) -> None:
    """Register a member of a group, as a push consumer does."""
    topics = [topic, retry_topic(group), "not-there"]
    subscriptions = [Subscription(topic=each) for each in topics]
    member = ConsumerMember(group_name=group, subscription_data_set=subscriptions)
    body = HeartbeatBody(client_id="member@1", consumer_data_set=[member]).encode()
    _ask(cluster, client, Command(int(RequestCode.HEART_BEAT), body=body))


def _ask(cluster: Cluster, client: mq.Client, command: Command) -> None:
    core = client.core
    client.run(core.ask(cluster.brokers[0], command, core.clock.now() + 10.0))


def test_group_that_has_not_begun_is_waited_for(embedded: EmbeddedServers) -> None:
    with embedded.lend() as lent, pytest.raises(WaitFailed, match="no member has subscribed"):
        lent.wait_until_consumed("billing", timeout=SHORT)


def test_group_is_waited_for_until_it_has_committed_everything(
    cluster: Cluster, real: RealServers
) -> None:
    with (
        real.lend() as lent,
        mq.Client(cluster.name_server) as client,
        mq.PullConsumer(client, group=lent.group("billing")) as consumer,
    ):
        topic = lent.topic("work", queues=1)
        lent.send(topic, "1")
        _heartbeat(cluster, client, consumer.group, topic)
        with pytest.raises(WaitFailed) as caught:
            lent.wait_until_consumed(consumer.group, timeout=SHORT)
        assert str(caught.value).splitlines()[1:] == [
            f"  {topic} broker-a queue 0: 1",
            "  connected members: member@1",
        ]
        consumer.assign(topic)
        assert len(consumer.poll(WAIT_TIMEOUT)) == 1
        consumer.commit()
        lent.wait_until_consumed(consumer.group)


@contextmanager
def _sent_back(
    cluster: Cluster, lent: RocketMQ, delay_level: int
) -> Generator[tuple[str, mq.PullConsumer]]:
    """Let a member send a message back; give the group, and its consumer."""
    with (
        mq.Client(cluster.name_server) as client,
        mq.PullConsumer(client, group=lent.group("billing")) as consumer,
    ):
        topic, group = lent.topic("work", queues=1), consumer.group
        lent.send(topic, "1")
        _heartbeat(cluster, client, group, topic)
        consumer.assign(topic)
        [message] = consumer.poll(WAIT_TIMEOUT)
        back = SendBackRequest(offset=message.log_offset, group=group, delay_level=delay_level)
        _ask(cluster, client, request_command(back))
        consumer.commit()
        yield group, consumer


def test_message_that_waits_for_a_retry_is_not_consumed(
    cluster: Cluster, real: RealServers
) -> None:
    with (
        real.lend() as lent,
        _sent_back(cluster, lent, AN_HOUR) as (group, _),
        pytest.raises(WaitFailed, match=r", but it has 0 .*\n  1 message waiting for a retry\n"),
    ):
        lent.wait_until_consumed(group, timeout=SHORT)


def test_message_in_the_retry_topic_is_not_consumed(cluster: Cluster, real: RealServers) -> None:
    with real.lend() as lent, _sent_back(cluster, lent, A_SECOND) as (group, consumer):
        lent.wait_for(retry_topic(group), timeout=WAIT_TIMEOUT)
        with pytest.raises(WaitFailed, match=rf"\n  {retry_topic(group)} broker-a queue 0: 1\n"):
            lent.wait_until_consumed(group, timeout=SHORT)
        consumer.assign(retry_topic(group))
        assert len(consumer.poll(WAIT_TIMEOUT)) == 1
        consumer.commit()
        lent.wait_until_consumed(group, timeout=WAIT_TIMEOUT)


# ---- event loops ---------------------------------------------------------------------------------


def test_event_loop_runs_while_a_test_waits(embedded: EmbeddedServers) -> None:
    async def run(lent: RocketMQ) -> None:
        waiting = asyncio.create_task(lent.aio.wait_for("orders", timeout=WAIT_TIMEOUT))
        async with mq.AsyncProducer(lent.name_servers, group="shop") as producer:
            await producer.send(mq.Message("orders", "1"))
            assert _bodies(await waiting) == [b"1"]
        await lent.aio.send("orders", "2", tags="new")
        assert _bodies(await lent.aio.messages("orders")) == [b"1", b"2"]
        with pytest.raises(WaitFailed):
            await lent.aio.wait_until_consumed("billing", timeout=SHORT)
        with pytest.raises(mq.ClientStateError, match=r"rocketmq\.aio\.wait_until_consumed"):
            lent.wait_until_consumed("billing")

    with embedded.lend() as lent:
        asyncio.run(run(lent))


def test_wait_that_is_cancelled_ends_its_thread(embedded: EmbeddedServers) -> None:
    async def run(lent: RocketMQ) -> None:
        waiting = asyncio.create_task(lent.aio.wait_for("orders", timeout=WAIT_TIMEOUT))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with embedded.lend() as lent:
        asyncio.run(
            asyncio.wait_for(run(lent), WAIT_TIMEOUT / 2)
        )  # waits for the thread at its end


# ---- faults --------------------------------------------------------------------------------------


def test_faults_concern_the_code_under_test_only(embedded: EmbeddedServers) -> None:
    code = RequestCode.SEND_MESSAGE_V2
    options = mq.ProducerOptions(timeout=WAIT_TIMEOUT, retries=0)
    with (
        embedded.lend() as lent,
        mq.Producer(lent.name_servers, group="shop", options=options) as producer,
    ):
        lent.intercept(code, refuse(ResponseCode.MESSAGE_ILLEGAL, "not today"))
        lent.intercept(RequestCode.PULL_MESSAGE, lambda request, peer: cut())
        with pytest.raises(mq.SendFailed, match="not today"):
            producer.send(mq.Message("orders", "1"))
        lent.send("orders", "2")
        assert _bodies(lent.messages("orders")) == [b"2"]
        lent.intercept(code, None)
        producer.send(mq.Message("orders", "3"))
        lent.intercept(code, drop(), broker=0)
        with pytest.raises(mq.OptionError, match="rule"):
            lent.intercept(code, 5)  # type: ignore[arg-type]
    with embedded.lend() as lent, mq.Producer(lent.name_servers, group="shop") as producer:
        producer.send(mq.Message("orders", "4"))


# ---- a cluster of its own ------------------------------------------------------------------------


def test_brokers_of_an_own_cluster_can_be_killed() -> None:
    with own_cluster({}) as own:
        assert len(own.brokers) == 2
        with mq.Admin(own.name_servers) as admin:
            admin.create_topic("orders", queues=2)  # on both; a send would do one after the other
        for number in range(8):
            own.send("orders", f"{number}")
        own.kill_broker(0)
        own.send("orders", "to the other one")
        wait_until(lambda: 0 < len(own.messages("orders")) < 9)
        own.restart_broker(0)
        assert len(own.wait_for("orders", 9, timeout=WAIT_TIMEOUT)) == 9
        own.stop_broker(1)
        wait_until(lambda: 0 < len(own.messages("orders")) < 9)


def test_settings_of_an_own_cluster_are_those_of_a_cluster() -> None:
    with own_cluster({"brokers": 1, "flush": "sync"}) as own:
        assert len(own.brokers) == 1
        own.cluster.server.name_server  # noqa: B018
    with pytest.raises(mq.OptionError, match="brokers=0"), own_cluster({"brokers": 0}):
        pass


def test_servers_that_do_not_answer_are_named_in_the_report() -> None:
    with own_cluster({"brokers": 1}) as own:
        own.send("orders", "1")
        own.cluster.stop()
        assert own.describe().startswith("the topics cannot be listed: ")
        shown = describe_topics(own._client, ["orders"], {}, 5.0)
        assert shown.startswith("orders: 0 messages\n  cannot be read: no name server answered: ")
        with pytest.raises(WaitFailed, match="progress cannot be read"):
            own.wait_until_consumed("billing", timeout=SHORT)
        with pytest.raises(WaitFailed, match="the topic cannot be read"):
            own.wait_for("orders", timeout=SHORT)


def test_report_is_bounded(embedded: EmbeddedServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("downrange.testing.report.TOPICS_MAX", 1)
    with embedded.lend() as lent:
        lent.topic("empty")
        assert lent.describe() == "no messages since the test began"
        for number in range(30):
            lent.send("orders", f"{number}")
        lent.send("refunds", "1")
        lines = lent.describe().splitlines()
        assert lines[0] == "orders: 30 messages"
        assert len(lines) == 13
        assert lines[6] == "  … 20 more …"
        assert lines[-1] == "and 1 more topics with messages"
