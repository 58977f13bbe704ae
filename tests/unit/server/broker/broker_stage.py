"""A whole broker in memory and in virtual time: takes requests and keeps their answers.

One rule: no request is answered twice. `Stage` fails a test in which that happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from downrange.options import BrokerOptions
from downrange.server.broker.broker import Broker
from downrange.server.broker.record_fields import StoreHost
from downrange.server.broker.scheduled.delay_levels import unit_tag_of
from downrange.server.broker.state import BrokerState
from downrange.server.outputs import LateReply, Note, Output, Peer, Reply
from downrange.store.files import MemoryFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.wire.codes import CommandFlag, RequestCode
from downrange.wire.fields import request_command
from downrange.wire.headers import PullRequest, SendRequest, SendRequestV2
from downrange.wire.properties import encode_properties
from downrange.wire.records import Record, decode_record
from downrange.wire.send_replies import StoredReply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.store.files import Files
    from downrange.wire.command import Command

NOW_MS = 1_800_000_000_000
SIZES = StoreOptions(
    log_segment_bytes=8 * 1024 * 1024, queue_segment_units=3000, key_slots=7, key_entries=2000
)
CLIENT = Peer(1, "10.0.0.1:1001")
SUSPEND = 0x2
SUBSCRIPTION = 0x4


def open_state(
    options: BrokerOptions, files: Files, *, sizes: StoreOptions = SIZES, now_ms: int = NOW_MS
) -> BrokerState:
    """Open a store and return the broker's state on it; nothing is loaded or prepared yet."""
    store = MessageStore(files, sizes, unit_tag=unit_tag_of(options.delay_levels))
    host = StoreHost.of("10.0.0.2", 10911)
    return BrokerState(options, host, store, lambda now_ms: f"id{now_ms}", now_ms)


def a_state(files: MemoryFiles | None = None, **options: Any) -> BrokerState:
    """Return a broker's state on a store in memory, with its system topics and groups."""
    state = open_state(BrokerOptions(**options), MemoryFiles() if files is None else files)
    state.prepare(NOW_MS)
    return state


def records_of(state: BrokerState, topic: str, queue_id: int) -> list[Record]:
    """Return the records of a queue."""
    queue = state.store.queue(topic, queue_id)
    units = queue.units(queue.min_offset, 100_000)
    return [decode_record(bytes(state.store.read(unit))) for unit in units]


def damage_body(state: BrokerState, files: Files, record: Record) -> None:
    """Flip a bit in a stored body."""
    whole = bytes(state.store.log.read(record.log_offset, record.size))
    at = record.log_offset + whole.index(record.body)
    flipped = bytes([record.body[0] ^ 1])
    files.open("commitlog/00000000000000000000").write(at, [flipped])


def send_request(
    body: bytes = b"hello",
    topic: str = "T",
    *,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    properties: dict[str, str] | str | None = None,
    is_oneway: bool = False,
    **changes: Any,
) -> Command:
    """Return a send to queue 0 of a topic; a missing topic is created with four queues."""
    text = encode_properties(properties) if isinstance(properties, dict) else properties
    settings: dict[str, Any] = {
        "producer_group": "P",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": NOW_MS - 5,
        "flag": 7,
        "properties": text,
        "batch": code == RequestCode.SEND_BATCH_MESSAGE,
    }
    kind = SendRequest if code == RequestCode.SEND_MESSAGE else SendRequestV2
    request = request_command(kind(**(settings | changes)), body, code=int(code))
    if is_oneway:
        request.flags |= int(CommandFlag.ONEWAY)
    return request


def pull_request(
    offset: int = 0,
    topic: str = "T",
    *,
    tags: str | None = "*",
    suspend_ms: int = 0,
    is_oneway: bool = False,
    **changes: Any,
) -> Command:
    """Return a pull of queue 0 that contains its subscription, unless `tags` is None."""
    settings: dict[str, Any] = {
        "consumer_group": "G",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": (SUSPEND if suspend_ms else 0) | (SUBSCRIPTION if tags is not None else 0),
        "suspend_timeout_millis": suspend_ms,
        "subscription": tags,
    }
    request = request_command(
        PullRequest(**(settings | changes)), code=int(RequestCode.PULL_MESSAGE)
    )
    if is_oneway:
        request.flags |= int(CommandFlag.ONEWAY)
    return request


def plain(answer: Command | StoredReply) -> Command:
    """Return an answer as a command."""
    return answer.plain() if isinstance(answer, StoredReply) else answer


class Stage:
    """A broker, its clients and its driver.

    Attributes:
        now_ms: The time; tests change it.
        notes: The broker's notes.
        others: All outputs except notes and answers.
    """

    def __init__(self, files: MemoryFiles | None = None, **options: Any) -> None:
        self.files = MemoryFiles() if files is None else files
        self.now_ms = NOW_MS
        self.state = a_state(self.files, **options)
        self.broker = Broker(self.state)
        self.notes: list[Note] = []
        self.others: list[Output] = []
        self._answers: list[tuple[Command, Command]] = []

    def hand_in(self, request: Command, peer: Peer = CLIENT) -> Command:
        """Handle a request without ending the turn."""
        self.act(self.broker.handle(request, peer, self.now_ms), request)
        return request

    def commit(self) -> None:
        """End the turn."""
        self.act(self.broker.commit(self.now_ms))

    def flush(self) -> None:
        """Make the log durable."""
        self.state.store.flush()
        self.act(self.broker.log_flushed(self.state.store.log.end))

    def publish(self) -> None:
        """Save and announce the tables."""
        self.act(self.broker.published(self.broker.tables_version))

    def tick(self, forward_ms: int = 0) -> None:
        """Advance the time and run a tick."""
        self.now_ms += forward_ms
        self.act(self.broker.tick(self.now_ms))

    def answer_to(self, request: Command) -> Command | None:
        """Return the answer to a request, or None if there is none yet."""
        answers = [answer for asked, answer in self._answers if asked is request]
        assert len(answers) <= 1, "answered twice"
        return answers[0] if answers else None

    def ask(self, request: Command, peer: Peer = CLIENT) -> Command:
        """Handle a request, commit, flush and publish, and return the answer."""
        self.hand_in(request, peer)
        self.commit()
        self.flush()
        self.publish()
        answer = self.answer_to(request)
        assert answer is not None, "no answer"
        return answer

    def create(self, topic: str, queues: int = 4, perm: int = 6) -> None:
        """Create a topic and publish it."""
        self.state.topics.ensure(topic, queues, perm, self.now_ms)
        self.publish()

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """Return the records of a queue."""
        return records_of(self.state, topic, queue_id)

    def act(self, outputs: Iterable[Output], request: Command | None = None) -> None:
        """Keep the broker's outputs."""
        for output in outputs:
            match output:
                case Reply(command):
                    assert request is not None
                    self._answers.append((request, command))
                    self.answer_to(request)
                case LateReply(_, asked, command):
                    self._answers.append((asked, plain(command)))
                    self.answer_to(asked)
                case Note():
                    self.notes.append(output)
                case _:
                    self.others.append(output)
