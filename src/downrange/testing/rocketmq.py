"""`RocketMQ`: what the fixture `rocketmq` gives to a test; `RocketMQCluster` can kill brokers.

All methods see only messages that were stored since the test began. Faults of `intercept` do not
concern the requests of these methods.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any, Final

from downrange.checks import check_between, check_wait
from downrange.client.flows.admin.changes import create_topic, delete_topic
from downrange.client.flows.admin.groups import delete_group
from downrange.client.flows.admin.topics import list_topics
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.validation import check_group, check_topic
from downrange.embedded import Interception
from downrange.errors import OptionError, RocketMQError, TransportError
from downrange.model import Message
from downrange.testing import waits
from downrange.testing.async_rocketmq import AsyncRocketMQ
from downrange.testing.group_progress import find_progress
from downrange.testing.report import describe_topics
from downrange.testing.topic_reader import MESSAGES_MAX, TopicReader
from downrange.wire.system_names import dead_letter_topic, retry_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Unpack

    from downrange import Client, Producer
    from downrange.embedded import Cluster
    from downrange.model import MessageDetails, ReceivedMessage, SendReceipt
    from downrange.server.outputs import Peer
    from downrange.testing.group_progress import GroupProgress
    from downrange.testing.topic_reader import LogEnds
    from downrange.wire.command import Command

#: The field by which faults recognise the requests of the fixtures themselves.
_OWN: Final = "downrangeTesting"
_PRODUCER_GROUP: Final = "downrange-testing"
_CALL_TIMEOUT: Final = 5.0
#: The last look of a wait has at least so much time.
_LOOK_TIMEOUT: Final = 1.0
_REPORT_TIMEOUT: Final = 5.0


def _mark(address: str, request: Command) -> None:
    request.fields[_OWN] = "true"


#: Hooks of the client that the fixtures use.
OWN_REQUESTS: Final = Hooks(before_call=(_mark,))


class RocketMQ:
    """A cluster as one test sees it: with no messages but its own.

    Args:
        client: A running client of the cluster, with the hooks `OWN_REQUESTS`.
        name_servers: The addresses for the code under test.
        since: The ends of the brokers' logs when the test began.
        cluster: The cluster, if it is an embedded one.

    Attributes:
        name_servers: Addresses for the code under test, "host:port", separated by ";".
        aio: The methods that wait as coroutines, for tests on an event loop.

    Example:
        ```python
        def test_an_order_is_sent(rocketmq: RocketMQ) -> None:
            place_order(rocketmq.name_servers)
            [order] = rocketmq.wait_for("orders")
            assert order.keys == ["o-1"]
        ```
    """

    def __init__(
        self, client: Client, name_servers: str, since: LogEnds, cluster: Cluster | None
    ) -> None:
        self.name_servers = name_servers
        self.aio = AsyncRocketMQ(self)
        self._client = client
        self._since = since
        self._cluster = cluster
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self._intercepted: set[int] = set()
        self._topics: set[str] = set()
        self._own_topics: list[str] = []
        self._own_groups: list[str] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name_servers}>"

    # ---- names -------------------------------------------------------------------------------

    def topic(self, name: str, *, queues: int = 4) -> str:
        """Create a topic with a name of its own, and delete it after the test.

        Needed only where tests share a real cluster at the same time. On the embedded cluster all
        topics are deleted after a test, so fixed names are as good.

        Args:
            name: The beginning of its name.
            queues: Queues per broker.

        Returns:
            The whole name.

        Raises:
            RocketMQError: The name is invalid, or a broker failed.
        """
        whole = f"{name}-{secrets.token_hex(4)}"
        self._run(create_topic, whole, queues=queues)
        self._own_topics.append(whole)
        self._topics.add(whole)
        return whole

    def group(self, name: str) -> str:
        """Return a name for a consumer group that no other test uses; deleted after the test.

        Args:
            name: The beginning of the name.

        Raises:
            OptionError: The name is invalid.
        """
        whole = f"{name}-{secrets.token_hex(4)}"
        check_group(whole)
        self._own_groups.append(whole)
        return whole

    # ---- messages ----------------------------------------------------------------------------

    def send(self, topic: str, body: str | bytes, **details: Unpack[MessageDetails]) -> SendReceipt:
        """Send a message to the code under test.

        Args:
            topic: The topic; created if it does not exist, where the cluster allows it.
            body: The body; a string is encoded as UTF-8.
            details: Tags, keys, properties and so on, as of `downrange.Message`.

        Raises:
            OptionError: An argument is invalid.
            SendFailed: No broker confirmed it.
        """
        message = Message(topic, body, **details)
        self._topics.add(topic)
        with self._lock:
            if self._producer is None:
                from downrange import Producer

                self._producer = Producer(self._client, group=_PRODUCER_GROUP).start()
        return self._producer.send(message)

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return the messages that a topic got since the test began, in the order of storing.

        A topic that does not exist has none. Messages of a broker that is stopped or killed are
        missing, because the name server does not name it any more.

        Raises:
            RocketMQError: A server does not answer, or there are more than 100,000 messages.
        """
        reader = self._reader(topic)
        self._run(reader.read)
        for error in reader.failures.values():
            raise error
        if reader.is_full:
            raise OptionError(
                f"topic {topic!r} has {MESSAGES_MAX} messages of this test or more: read them "
                "with a PullConsumer"
            )
        return reader.in_order()

    def wait_for(
        self,
        topic: str,
        count: int = 1,
        timeout: float = 5.0,
        matching: Callable[[ReceivedMessage], bool] | None = None,
    ) -> list[ReceivedMessage]:
        """Wait until a topic has got some messages since the test began.

        Args:
            topic: The topic.
            count: How many messages at least.
            timeout: Seconds to wait.
            matching: Count only messages for which this returns something true.

        Returns:
            All messages that match, in the order of storing; there may be more than `count`.

        Raises:
            WaitFailed: There are too few; the text lists what is there.
            ClientStateError: It is called on an event loop; use `rocketmq.aio.wait_for`.
            OptionError: An argument is invalid.
        """
        __tracebackhide__ = True
        waits.refuse_in_event_loop("wait_for")
        return self.wait_with(threading.Event(), topic, count, timeout, matching)

    def wait_with(
        self,
        stop: threading.Event,
        topic: str,
        count: int,
        timeout: float,
        matching: Callable[[ReceivedMessage], bool] | None,
    ) -> list[ReceivedMessage]:
        """Wait as `wait_for` does, or until `stop` is set, in any thread."""
        __tracebackhide__ = True
        check_between(1, MESSAGES_MAX, "count", count)
        check_wait("timeout", timeout)
        reader = self._reader(topic)
        errors: list[RocketMQError] = []

        def find() -> list[ReceivedMessage]:
            found = reader.in_order()
            return found if matching is None else [each for each in found if matching(each)]

        def look(left: float) -> list[ReceivedMessage] | None:
            seen = len(reader.messages)
            self._look(reader.read, left, errors)
            if len(reader.messages) == seen:
                return None
            found = find()
            return found if len(found) >= count else None

        enough = waits.repeat(look, timeout, stop)
        if enough is not None:
            return enough
        raise waits.too_few_messages(
            reader,
            find(),
            count=count,
            timeout=timeout,
            is_filtered=matching is not None,
            others=[] if reader.exists or errors else self._other_topics(),
            error=errors[-1] if errors else None,
        )

    # ---- groups ------------------------------------------------------------------------------

    def wait_until_consumed(self, group: str, timeout: float = 15.0) -> None:
        """Wait until a consumer group has consumed and committed everything.

        That is: each queue of the topics that it subscribes to or has offsets for is consumed to
        its end, those of its retry topic too, and no delay level holds a message for a retry. A
        group without a topic has not begun, and is waited for.

        Args:
            group: The group.
            timeout: Seconds to wait. Consumers commit every few seconds, and retry after 10.

        Raises:
            WaitFailed: Something is left; the text says what.
            ClientStateError: It is called on an event loop; use `rocketmq.aio`.
            OptionError: An argument is invalid.
        """
        __tracebackhide__ = True
        waits.refuse_in_event_loop("wait_until_consumed")
        self.wait_consumed_with(threading.Event(), group, timeout)

    def wait_consumed_with(self, stop: threading.Event, group: str, timeout: float) -> None:
        """Wait as `wait_until_consumed` does, or until `stop` is set, in any thread."""
        __tracebackhide__ = True
        check_group(group)
        check_wait("timeout", timeout)
        errors: list[RocketMQError] = []
        last: GroupProgress | None = None

        def look(left: float) -> GroupProgress | None:
            nonlocal last
            last = self._look(find_progress, left, errors, group) or last
            return last if last is not None and last.is_done and not errors else None

        if waits.repeat(look, timeout, stop) is None:
            raise waits.not_consumed(group, last, timeout, errors[-1] if errors else None)

    # ---- faults ------------------------------------------------------------------------------

    def intercept(
        self,
        code: int,
        fault: Interception | Callable[[Command, Peer], Interception | None] | None,
        *,
        broker: int | None = None,
    ) -> None:
        """Inject a fault into requests of one code, until the end of the test.

        Requests of this object are not concerned: `messages` works while all pulls fail.

        Args:
            code: The request code, of `downrange.wire.codes.RequestCode`.
            fault: One of `downrange.embedded`: `drop()`, `cut()`, `lose_reply()`, `refuse(...)`,
                `deliver(after=...)`; or a function of request and peer that returns one, or None.
                None ends the fault.
            broker: The number of the broker, counted from 0; all brokers if not given.

        Raises:
            OptionError: The cluster is not the embedded one, or an argument is invalid.
        """
        if self._cluster is None:
            raise OptionError(
                f"faults need the embedded cluster, and these tests use {self.name_servers}: leave "
                "out --rocketmq-servers, rocketmq_servers and ROCKETMQ_TEST_SERVERS, or use the "
                "fixture rocketmq_cluster"
            )
        self._cluster.intercept(code, _for_others(fault), broker=broker)
        self._intercepted.add(int(code))

    # ---- for the plugin ----------------------------------------------------------------------

    def describe(self) -> str:
        """Return what the topics of this test hold, for the report of its failure."""
        topics = set(self._topics)
        try:
            topics |= set(self._all_topics())
        except RocketMQError as error:
            return f"the topics cannot be listed: {error}"
        return describe_topics(self._client, topics, self._since, _REPORT_TIMEOUT)

    def end(self) -> None:
        """End all faults, and close the producer."""
        if self._cluster is not None:
            for code in self._intercepted:
                self._cluster.intercept(code, None)
        if self._producer is not None:
            self._producer.close()

    def delete_own(self) -> None:
        """Delete the topics and groups that have names of their own.

        Raises:
            RocketMQError: A server did not answer.
        """
        for topic in self._own_topics:
            self._run(delete_topic, topic)
        for group in self._own_groups:
            self._run(delete_group, group)
            for topic in (retry_topic(group), dead_letter_topic(group)):
                self._run(delete_topic, topic)

    # ---- inside ------------------------------------------------------------------------------

    def _reader(self, topic: str) -> TopicReader:
        check_topic(topic)
        self._topics.add(topic)
        return TopicReader(topic, self._since)

    def _run(self, flow: Callable[..., Generator[Any, Any, Any]], *args: Any, **more: Any) -> Any:
        core = self._client.core
        return self._client.run(
            flow(core, *args, **more, deadline=core.clock.now() + _CALL_TIMEOUT)
        )

    def _look(
        self,
        flow: Callable[..., Generator[Any, Any, Any]],
        left: float,
        errors: list[RocketMQError],
        *args: Any,
    ) -> Any:
        """Run a flow; servers that do not answer are waited for, and noted in `errors`."""
        core = self._client.core
        deadline = core.clock.now() + max(left, _LOOK_TIMEOUT)
        errors.clear()
        try:
            return self._client.run(flow(core, *args, deadline=deadline))
        except TransportError as error:
            errors.append(error)
            return None

    def _all_topics(self) -> list[str]:
        """Return the topics of an embedded cluster, which are all of this test."""
        if self._cluster is None:
            return []
        return [topic.name for topic in self._run(list_topics) if topic.kind != "system"]

    def _other_topics(self) -> list[str]:
        """Return the topics of an embedded cluster that have messages, with their numbers."""
        others: list[str] = []
        for topic in self._all_topics()[:10]:
            reader = TopicReader(topic, self._since)
            self._run(reader.read)
            if reader.messages:
                others.append(f"{topic!r} ({len(reader.messages)})")
        return others


class RocketMQCluster(RocketMQ):
    """An embedded cluster for one test alone, whose brokers can be stopped and killed.

    Args:
        client: A running client of the cluster, with the hooks `OWN_REQUESTS`.
        cluster: The cluster.

    Attributes:
        cluster: The cluster.
    """

    def __init__(self, client: Client, cluster: Cluster) -> None:
        super().__init__(client, cluster.name_server, {}, cluster)
        self.cluster: Final = cluster

    @property
    def brokers(self) -> list[str]:
        """The brokers' addresses, "host:port" each."""
        return self.cluster.brokers

    def stop_broker(self, index: int = 0) -> None:
        """Stop a broker cleanly: it flushes and unregisters from the name server.

        Raises:
            OptionError: The broker does not exist.
        """
        self.cluster.stop_broker(index)

    def kill_broker(self, index: int = 0) -> None:
        """End a broker like a crash: cut its connections, flush nothing more.

        Raises:
            OptionError: The broker does not exist.
        """
        self.cluster.kill_broker(index)

    def restart_broker(self, index: int = 0) -> None:
        """Start a broker again on its store and its port, after stopping it if it still serves.

        Raises:
            OptionError: The broker does not exist.
            RocketMQError: It cannot start; the text says why.
        """
        self.cluster.restart_broker(index)


def _for_others(
    fault: Interception | Callable[[Command, Peer], Interception | None] | None,
) -> Interception | Callable[[Command, Peer], Interception | None] | None:
    """Return a fault that leaves out the requests of the fixtures."""
    if not (isinstance(fault, Interception) or callable(fault)):
        return fault  # None, or a value that the cluster refuses

    def decide(request: Command, peer: Peer) -> Interception | None:
        if _OWN in request.fields:
            return None
        return fault if isinstance(fault, Interception) else fault(request, peer)

    return decide
