"""Reads a topic as a consumer group does, with one request in flight per queue.

Three ways, up to 32 messages per request:

    pull     a pull, then a request that commits the offset
    pop      a pop, then a request that acknowledges all its messages
    pop-any  the same, but each pop asks for messages of any queue, and the group has a retry topic,
             as the groups of Java's clients in pop mode; there are as many pops in flight

Each pass needs a group of its own, because a group does not get what it has acknowledged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command, decode, encode
from downrange.wire.fields import request_command
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import CommitOffsetRequest, PullReply, PullRequest
from downrange.wire.pop_bodies import BatchAck, BatchAckBody, bit_set
from downrange.wire.pop_headers import PopRequest
from downrange.wire.system_names import pop_retry_topic

if TYPE_CHECKING:
    import socket

Way: TypeAlias = Literal["pull", "pop", "pop-any"]

MESSAGES_MAX: Final = 32
_HAS_SUBSCRIPTION: Final = 4
_RECEIVE_BYTES: Final = 1 << 20
_POLL_MS: Final = 1_000
_ANY: Final = -1


class ReadRefused(Exception):
    """The server refused a request."""


class Group:
    """One pass of a new consumer group over a topic.

    Args:
        connection: To the broker.
        topic: The topic.
        sizes: The number of messages in each of its queues.
        way: How it reads.
        invisible_ms: For how long popped messages are invisible.
    """

    def __init__(
        self,
        connection: socket.socket,
        topic: str,
        sizes: list[int],
        way: Way,
        invisible_ms: int = 60_000,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._sizes = sizes
        self._way = way
        self._invisible_ms = invisible_ms
        self._name = f"bench-{time.time_ns()}"
        self._read = [0] * len(sizes)
        self._is_confirming = [False] * len(sizes)
        self._splitter = FrameSplitter()
        self._call(
            Command(
                int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
                {},
                b'{"groupName":"%b"}' % self._name.encode(),
            )
        )
        if way == "pop-any":
            self._create_retry_topic()

    def read_all(self, end: float) -> int:
        """Read the whole topic, or until a time of `time.perf_counter`; return the messages.

        Raises:
            ReadRefused: A request was refused.
        """
        for queue in range(len(self._sizes)):
            self._ask(queue)
        left = len(self._sizes)
        while left:
            self._splitter.receive(self._connection.recv(_RECEIVE_BYTES))
            while (frame := self._splitter.next_frame()) is not None:
                reply = decode(frame)
                queue = reply.request_id
                if self._is_confirming[queue]:
                    self._check(reply)
                    self._is_confirming[queue] = False
                elif reply.code != ResponseCode.POLLING_TIMEOUT:
                    self._check(reply)
                    self._confirm(queue, reply)
                    continue
                if self._has_more(queue) and time.perf_counter() < end:
                    self._ask(queue)
                else:
                    left -= 1
        return sum(self._read)

    def _has_more(self, queue: int) -> bool:
        if self._way == "pop-any":
            return sum(self._read) < sum(self._sizes)
        return self._read[queue] < self._sizes[queue]

    def _create_retry_topic(self) -> None:
        fields = {
            "topic": pop_retry_topic(self._name, self._topic),
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        self._call(Command(int(RequestCode.UPDATE_AND_CREATE_TOPIC), fields))

    def _ask(self, queue: int) -> None:
        if self._way == "pull":
            pull = PullRequest(
                consumer_group=self._name,
                topic=self._topic,
                queue_id=queue,
                queue_offset=self._read[queue],
                max_msg_nums=MESSAGES_MAX,
                sys_flag=_HAS_SUBSCRIPTION,
                subscription="*",
                expression_type="TAG",
            )
            self._send(queue, request_command(pull, code=RequestCode.PULL_MESSAGE))
        else:
            pop = PopRequest(
                consumer_group=self._name,
                topic=self._topic,
                queue_id=_ANY if self._way == "pop-any" else queue,
                max_msg_nums=MESSAGES_MAX,
                invisible_time=self._invisible_ms,
                poll_time=_POLL_MS,
                born_time=time.time_ns() // 1_000_000,
                init_mode=0,
            )
            self._send(queue, request_command(pop))

    def _confirm(self, queue: int, reply: Command) -> None:
        """Commit or acknowledge the messages of a reply."""
        self._is_confirming[queue] = True
        if self._way == "pull":
            self._read[queue] = PullReply.from_fields(reply.fields).next_begin_offset
            commit = CommitOffsetRequest(
                consumer_group=self._name,
                topic=self._topic,
                queue_id=queue,
                commit_offset=self._read[queue],
            )
            self._send(queue, request_command(commit))
            return
        fields, acks = reply.fields, list[BatchAck]()
        popped = zip(
            fields["startOffsetInfo"].split(";"), fields["msgOffsetInfo"].split(";"), strict=True
        )
        for where, which in popped:  # one queue each
            kind, queue_id, start = where.split(" ")
            offsets = [int(text) for text in which.split(" ")[2].split(",")]
            self._read[queue] += len(offsets)
            ack = BatchAck(
                bits=bit_set(int(start), offsets),
                group=self._name,
                invisible_ms=self._invisible_ms,
                pop_ms=int(fields["popTime"]),
                queue_id=int(queue_id),
                kind=kind,
                revive_queue=int(fields["reviveQid"]),
                start=int(start),
                topic=self._topic,
            )
            acks.append(ack)
        body = BatchAckBody(acks=acks, broker_name="broker-a").encode()
        self._send(queue, Command(int(RequestCode.BATCH_ACK_MESSAGE), {}, body))

    def _send(self, queue: int, command: Command) -> None:
        command.request_id = queue
        self._connection.sendall(encode(command))

    def _call(self, command: Command) -> None:
        self._connection.sendall(encode(command))
        while (frame := self._splitter.next_frame()) is None:
            self._splitter.receive(self._connection.recv(_RECEIVE_BYTES))
        self._check(decode(frame))

    def _check(self, reply: Command) -> None:
        if reply.code != ResponseCode.SUCCESS:
            raise ReadRefused(f"{self._way}: {reply.code} {reply.remark}")


def queue_sizes(connection: socket.socket, topic: str, queue_count: int) -> list[int]:
    """Return the number of messages in each queue of a topic."""
    splitter = FrameSplitter()
    sizes: list[int] = []
    for queue in range(queue_count):
        fields = {"topic": topic, "queueId": str(queue)}
        connection.sendall(encode(Command(int(RequestCode.GET_MAX_OFFSET), fields)))
        while (frame := splitter.next_frame()) is None:
            splitter.receive(connection.recv(_RECEIVE_BYTES))
        sizes.append(int(decode(frame).fields["offset"]))
    return sizes
