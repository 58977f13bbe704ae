"""The tools of a test in this folder: Java clients on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from tests.apache.fixtures import UniqueName
    from tests.apache.java_client import JavaClient, Json
    from tests.apache.security import Account


class Servers(Protocol):
    """The addresses of a cluster, as every kind of cluster has them."""

    @property
    def name_server(self) -> str:
        """Return the address of the name server."""
        ...

    @property
    def brokers(self) -> Sequence[str]:
        """Return the addresses of the brokers."""
        ...


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a cluster."""

    name_server: str
    brokers: Sequence[str]


class Scene:
    """Java clients of one release on one cluster.

    Args:
        java: The JVM of the clients.
        servers: The cluster.
        name: Makes names that are unique in the test run.
        stopper: Stops clients while the next test runs.
        account: Signs the requests of all clients.

    Attributes:
        started: Names of the clients that are not stopped yet.
    """

    def __init__(
        self,
        java: JavaClient,
        servers: Servers,
        name: UniqueName,
        stopper: ThreadPoolExecutor,
        account: Account | None = None,
    ) -> None:
        self.java = java
        self.name_server = servers.name_server
        self.brokers = servers.brokers
        self.name = name
        self._stopper = stopper
        self._account = account
        self.started: list[str] = []

    @property
    def is_old(self) -> bool:
        """Return whether the clients are of 4.9."""
        return self.java.version.startswith("4.")

    def topic(self, queues: int = 1, *, perm: int = 6, name: str | None = None) -> str:
        """Create a topic on every broker, and wait for its route."""
        topic = name or self.name("topic")
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues)}
        fields |= {
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
        }
        fields |= {"topicSysFlag": "0", "order": "false"}
        for broker in self.brokers:
            answer = probe.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            assert answer.code == 0, answer
        wait_until(lambda: len(probe.route(self.name_server, topic)) == len(self.brokers))
        return topic

    def queue(self, topic: str, queue_id: int = 0, broker: str = "broker-a") -> dict[str, Json]:
        """Return a queue as an argument for the driver."""
        return {"topic": topic, "brokerName": broker, "queueId": queue_id}

    def producer(self, group: str | None = None, **given: Json) -> str:
        """Start a producer; see `JavaClient.start_producer`."""
        group = group or self.name("producers")
        given = {"account": self._account, **given}
        return self._keep(self.java.start_producer(self.name_server, group, **given))

    def consumer(
        self, subscriptions: str | Mapping[str, str], group: str | None = None, **given: Json
    ) -> str:
        """Start a push consumer of one or more topics; see `JavaClient.start_consumer`."""
        topics = {subscriptions: "*"} if isinstance(subscriptions, str) else subscriptions
        group = group or self.name("group")
        # Otherwise a stopping consumer does not commit what its listener has just accepted.
        options = {"awaitTerminationMillisWhenShutdown": 30_000, **given.pop("options", {})}
        given = {"account": self._account, "options": options, **given}
        return self._keep(self.java.start_consumer(self.name_server, group, topics, **given))

    def pull_consumer(self, group: str | None = None, **given: Json) -> str:
        """Start a pull consumer; `JavaClient.call("pull", ...)` pulls with it."""
        name = group or self.name("group")
        self.java.call("pull.start", name=name, group=name, nameServers=self.name_server, **given)
        return self._keep(name)

    def admin(self) -> str:
        """Start an administration client."""
        return self._keep(self.java.start_admin(self.name_server, account=self._account))

    def send(self, producer: str, messages: Sequence[Mapping[str, Json]], **given: Json) -> Json:
        """Send; see `JavaClient.send`."""
        return self.java.send(producer, messages, timeout=WAIT_TIMEOUT, **given)

    def received(self, consumer: str, count: int, *, clear: bool = False) -> list[Json]:
        """Return the deliveries to a push consumer; fail if there are not `count` in time."""
        got = self.java.received(consumer, count, timeout=WAIT_TIMEOUT, clear=clear)
        assert len(got) >= count, [one["msgId"] for one in got]
        return got

    def is_registered(self, group: str) -> bool:
        """Return whether a producer of the group is registered at the first broker.

        A producer registers by a heartbeat, one second after its start.
        """
        fields = {"producerGroup": group}
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        return probe.call(self.brokers[0], code, fields).code == 0

    def checks(self, producer: str, count: int) -> list[Json]:
        """Return the transaction checks of a producer so far, after waiting for `count`."""
        checks: list[Json] = self.java.call(
            "producer.checks",
            name=producer,
            count=count,
            timeoutMs=int(WAIT_TIMEOUT * 1000),
            timeout=WAIT_TIMEOUT + 10,
        )
        return checks

    def committed(self, group: str, topic: str, queues: int = 1) -> int:
        """Return the sum of a group's offsets at the first broker."""
        total = 0
        for queue_id in range(queues):
            fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
            answer = probe.call(self.brokers[0], RequestCode.QUERY_CONSUMER_OFFSET, fields)
            total += int(answer.fields.get("offset", 0))
        return total

    def polled(self, consumer: str, count: int) -> list[Json]:
        """Poll with a lite pull consumer until it has `count` messages, and return them."""
        got: list[Json] = []

        def poll() -> bool:
            got.extend(self.java.call("litePull.poll", name=consumer, timeoutMs=1000))
            return len(got) >= count

        wait_until(poll)
        return got

    def mqadmin(self, *arguments: str) -> str:
        """Run one command of mqadmin and return its output."""
        return self.java.mqadmin(self.name_server, *arguments, account=self._account)

    def mqadmin_all(self, *commands: str) -> list[str]:
        """Run commands, given as texts with blanks between words, one after the other."""
        return [self.mqadmin(*command.split()) for command in commands]

    def stop(self, *names: str) -> None:
        """Stop clients concurrently, and wait until they are stopped."""
        for name in names:
            self.started.remove(name)
        for stopping in [self._stopper.submit(self.java.stop, name) for name in names]:
            stopping.result()

    def close(self) -> None:
        """Stop all clients that are left, without waiting."""
        for name in self.started:
            self._stopper.submit(self.java.stop, name)
        self.started.clear()

    def _keep(self, name: str) -> str:
        self.started.append(name)
        return name
