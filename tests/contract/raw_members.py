"""A member of a consumer group without a consumer: heartbeats, and answers to a broker's questions.

It reads nothing. So a test decides alone what a group has consumed, and what its members say.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from downrange.wire.bodies import ConsumeDirectlyBody, ConsumerMember, HeartbeatBody, Subscription
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.consumer_bodies import ConsumeRates, QueueRunningState, RunningStateBody
from downrange.wire.link import Link, ReplyArrived, RequestArrived
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from downrange.model import QueueId


class RawMember:
    """A connected member; a context manager.

    Args:
        brokers: Addresses to connect to.
        group: Its group.
        client_id: Its client id.
        reads: Topic -> tags.
        queues: The queues that it says it reads.

    Attributes:
        requests: What brokers have asked, in order.
        direct_result: What it answers when it is told to consume a message.
    """

    def __init__(
        self,
        brokers: Sequence[str],
        group: str,
        client_id: str,
        reads: Mapping[str, str],
        queues: Sequence[QueueId] = (),
    ) -> None:
        """Take the facts; `with` connects it."""
        self.client_id = client_id
        self.requests: list[Command] = []
        self.direct_result = "CR_SUCCESS"
        self._brokers = brokers
        self._group = group
        self._subscriptions = [
            Subscription(topic=topic, sub_string=tags, sub_version=1)
            for topic, tags in reads.items()
        ]
        self._state = RunningStateBody(
            properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            subscription_set=self._subscriptions,
            mq_table={
                queue: QueueRunningState(commit_offset=2, cached_msg_count=3) for queue in queues
            },
            status_table={topic: ConsumeRates(consume_ok_rate=1.5) for topic in reads},
            jstack="main: waits",
        )
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> RawMember:
        """Connect to all brokers; each knows the member when this returns."""
        for address in self._brokers:
            host, _, port = address.rpartition(":")
            connection = socket.create_connection((host, int(port)), timeout=30)
            link: Link[str] = Link()
            member = ConsumerMember(
                group_name=self._group, subscription_data_set=self._subscriptions
            )
            beat = HeartbeatBody(client_id=self.client_id, consumer_data_set=[member])
            command = Command(int(RequestCode.HEART_BEAT), body=beat.encode())
            connection.sendall(link.request(command, "heartbeat"))
            connection.settimeout(None)
            known = threading.Event()
            thread = threading.Thread(
                target=self._serve, args=(connection, link, known), daemon=True
            )
            thread.start()
            self._sockets.append(connection)
            self._threads.append(thread)
            wait_until(known.is_set)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        for connection in self._sockets:
            connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for connection in self._sockets:
            connection.close()

    def codes(self) -> list[int]:
        """Return the codes of what brokers have asked."""
        return [request.code for request in self.requests]

    def _serve(self, connection: socket.socket, link: Link[str], known: threading.Event) -> None:
        while data := connection.recv(1 << 16):
            for event in link.receive(data):
                if isinstance(event, ReplyArrived):
                    assert event.command.code == 0, event.command
                    known.set()
                elif isinstance(event, RequestArrived):
                    self.requests.append(event.command)
                    reply = self._answer(event.command)
                    if reply is not None:
                        connection.sendall(link.reply(event.command, reply))

    def _answer(self, request: Command) -> Command | None:
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return Command(0, body=self._state.encode())
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            body = ConsumeDirectlyBody(consume_result=self.direct_result, spent_time_mills=7)
            return Command(0, body=body.encode())
        return None  # one-way
