"""One interface to all clusters of the suite: create topics, and read what is stored."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

from downrange import Client
from downrange.client.flows.consuming.pull import PullBatch, PullStatus, pull
from downrange.client.flows.routing.lookup import ask_route, read_queues
from downrange.client.flows.routing.routes import Route, route_of
from downrange.options import ClientOptions
from downrange.wire.codes import RequestCode
from downrange.wire.fields import request_command
from downrange.wire.headers import PullRequest
from downrange.wire.records import Record, decode_records
from tests.apache import probe
from tests.contract.blocking import LONG_TIMEOUT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from downrange import Producer, ProducerStats
    from downrange.model import QueueId, ReceivedMessage
    from downrange.wire.command import Command
    from tests.apache.fixtures import UniqueName
    from tests.apache.probe import Answer


class Server:
    """One cluster.

    Args:
        name_server: The address that clients connect to.
        brokers: The addresses of its brokers.
        version: The Apache release; None for ours.
        unique_name: Makes names that are unique in the test run.

    Attributes:
        reader: A plain client that reads what is stored.
    """

    def __init__(
        self,
        name_server: str,
        brokers: Sequence[str],
        version: str | None,
        unique_name: UniqueName,
    ) -> None:
        """See the class."""
        self.name_server = name_server
        self.brokers = tuple(brokers)
        self.version = version
        self._unique_name = unique_name
        self.reader = Client(name_server, options=ClientOptions(call_timeout=LONG_TIMEOUT)).start()

    @property
    def is_apache(self) -> bool:
        """Return whether this is a real Apache server."""
        return self.version is not None

    @property
    def is_old(self) -> bool:
        """Return whether this is 4.9, which has fewer features."""
        return self.version is not None and self.version.startswith("4.")

    def close(self) -> None:
        """Close the reader; the fixture that started the servers stops them."""
        self.reader.close()

    # ---- topics ------------------------------------------------------------------------------

    def topic(self, queues: int = 4, *, perm: int = 6, name: str | None = None) -> str:
        """Create a topic on every broker, and wait until the name server has its route."""
        topic = name or self._unique_name("topic")
        fields = self.topic_fields(topic, queues, perm)
        for broker in self.brokers:
            answer = call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            assert answer.code == 0, answer
        wait_until(lambda: self._has_route(topic, queues, perm))
        return topic

    def topic_fields(self, topic: str, queues: int, perm: int) -> dict[str, str]:
        """Return the header fields of a request that creates such a topic."""
        return {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }

    def _has_route(self, topic: str, queues: int, perm: int) -> bool:
        route = self.route(topic)
        return route is not None and [
            (part.write_queue_nums, part.perm) for part in route.body.queue_datas
        ] == [(queues, perm)] * len(self.brokers)

    def route(self, topic: str) -> Route | None:
        """Return the current route of a topic from the name server."""
        core = self.reader.core
        body = self.reader.run(ask_route(core, topic, core.clock.now() + LONG_TIMEOUT))
        return None if body is None else route_of(topic, body)

    def route_brokers(self, topic: str) -> list[str]:
        """Return the brokers in the current route of a topic."""
        route = self.route(topic)
        return [] if route is None else sorted(route.write_counts)

    # ---- messages ----------------------------------------------------------------------------

    def read_all(self, topic: str, count: int) -> list[ReceivedMessage]:
        """Return the messages of a topic by queue and offset, after waiting for `count` of them.

        An acknowledged message may become readable a moment later.
        """
        found: list[ReceivedMessage] = []

        def is_complete() -> bool:
            found[:] = [message for queue in self._queues(topic) for message in self._read(queue)]
            return len(found) >= count

        wait_until(is_complete)
        return found

    def records(self, topic: str, count: int) -> list[Record]:
        """Return the first records of each queue of a topic, as stored."""
        found: list[Record] = []

        def is_complete() -> bool:
            found[:] = [record for queue in self._queues(topic) for record in self._raw(queue)]
            return len(found) >= count

        wait_until(is_complete)
        return found

    def _queues(self, topic: str) -> tuple[QueueId, ...]:
        core = self.reader.core
        route = self.route(topic)
        if route is None:
            return ()
        core.routes.replace(route)
        return tuple(
            self.reader.run(read_queues(core, topic, deadline=core.clock.now() + LONG_TIMEOUT))
        )

    def _read(self, queue: QueueId) -> list[ReceivedMessage]:
        core = self.reader.core
        messages: list[ReceivedMessage] = []
        offset = 0
        while True:
            batch: PullBatch = self.reader.run(
                pull(
                    core, queue, offset, group="contract", deadline=core.clock.now() + LONG_TIMEOUT
                )
            )
            messages += batch.messages
            offset = batch.next_offset
            if batch.status is not PullStatus.FOUND or offset >= batch.max_offset:
                return messages

    def _raw(self, queue: QueueId) -> list[Record]:
        core = self.reader.core
        header = PullRequest(
            consumer_group="contract",
            topic=queue.topic,
            queue_id=queue.number,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=4,
            suspend_timeout_millis=0,
            subscription="*",
            expression_type="TAG",
        )
        address = core.routes.master_of(queue.broker)
        assert address is not None
        deadline = core.clock.now() + LONG_TIMEOUT
        reply = self.reader.run(core.call(address, request_command(header), deadline))
        return decode_records(reply.body) if reply.body else []


def stats_of(producer: Producer) -> ProducerStats:
    """Return the counters of a producer."""
    return producer.client.stats().producers[producer.group]


def call(address: str, code: int, fields: Mapping[str, str], *, body: bytes = b"") -> Answer:
    """Send one request past the client, with a timeout for busy servers."""
    return probe.call(address, code, fields, body=body, timeout=LONG_TIMEOUT)


#: Sockets that keep their ports from the servers of other test runs.
_taken: list[socket.socket] = []


def dead_address() -> str:
    """Return an address on which no server listens, nor will before the end of this test run."""
    _taken.append(socket.socket())
    _taken[-1].bind(("127.0.0.1", 0))  # without `listen`, connections are refused
    return f"127.0.0.1:{_taken[-1].getsockname()[1]}"


def members_of(server: Server, group: str) -> list[str]:
    """Return the client ids of a producer group, as a broker lists them."""
    answer = call(
        server.brokers[0], RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group}
    )
    if answer.code != 0:
        return []
    return [member["clientId"] for member in json.loads(answer.body)["connectionSet"]]


def replace_send_codes(*codes: int) -> Callable[[str, Command, Command | None], None]:
    """Return a hook that sets the codes of the next replies to sends."""
    left = list(codes)

    def change(address: str, request: Command, reply: Command | None) -> None:
        if left and reply is not None and "queueOffset" in reply.fields:
            reply.code = left.pop(0)

    return change
