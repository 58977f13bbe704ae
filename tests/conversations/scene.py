"""The environment of a conversation: connections by name, unique names, a time, the store."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from downrange.wire.bodies import Body, decode_body
from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import Header, request_command
from downrange.wire.headers import CreateTopicRequest, SendReply, SendRequestV2
from downrange.wire.properties import encode_properties
from tests.conversations.peers import Channel, Peer, SocketChannel
from tests.conversations.recorder import Facts, Playback, Recording, RecordingChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

BodyT = TypeVar("BodyT", bound=Body)
HeaderT = TypeVar("HeaderT", bound=Header)
ValueT = TypeVar("ValueT")

# A minute and more; a conversation that passes does not wait for it.
POLLS_MAX = 600
POLL_SECONDS = 0.1


class Connector(Protocol):
    """Opens a channel to the name server or the broker; the connection's name is for recordings."""

    def __call__(self, target: str, connection: str, /) -> Channel: ...


class Scene:
    """The environment of one conversation; the same live, recorded or played back."""

    def __init__(self, facts: Facts, connect: Connector, *, is_live: bool) -> None:
        self.facts = facts
        self.is_5x = facts.server.startswith("5.")
        self._connect = connect
        self._is_live = is_live
        self._closing = ExitStack()
        self._connections = 0

    def name(self, word: str) -> str:
        """Return a topic or group name that no other conversation uses."""
        return f"{self.facts.prefix}_{word}"

    def name_server(self, codec: HeaderCodec = HeaderCodec.JSON) -> Peer:
        """Open a connection to the name server."""
        return self._peer("name server", codec)

    def broker(self, codec: HeaderCodec = HeaderCodec.JSON) -> Peer:
        """Open a connection to the broker."""
        return self._peer("broker", codec)

    def poll(
        self,
        ask: Callable[[], ValueT],
        is_good: Callable[[ValueT], bool],
        *,
        seconds: float = POLL_SECONDS,
    ) -> ValueT:
        """Repeat a request until its reply passes a test: brokers work in the background."""
        answer = ask()
        for _ in range(POLLS_MAX):
            if is_good(answer):
                return answer
            self.pause(seconds)
            answer = ask()
        raise AssertionError(f"after {POLLS_MAX} polls the answer is still {answer}")

    def pause(self, seconds: float = POLL_SECONDS) -> None:
        """Wait before the next poll; not in a playback."""
        if self._is_live:
            time.sleep(seconds)

    def close(self) -> None:
        """Close all connections."""
        self._closing.close()

    def _peer(self, target: str, codec: HeaderCodec) -> Peer:
        self._connections += 1
        peer = Peer(self._connect(target, f"{self._connections} {target}"), codec)
        self._closing.callback(peer.close)
        return peer

    # ---- used by most conversations ----

    def create_topic(self, broker: Peer, word: str, **changes: object) -> str:
        """Create a topic of two queues, or as the changes say, and return its name."""
        topic = self.name(word)
        settings: dict[str, object] = {
            "topic": topic,
            "default_topic": "TBW102",
            "read_queue_nums": 2,
            "write_queue_nums": 2,
            "perm": 6,
            "topic_sys_flag": 0,
        }
        settings.update(changes)
        request = CreateTopicRequest(**settings)  # type: ignore[arg-type]
        succeed(broker.ask(request_command(request)))
        return topic

    def send_request(self, topic: str, /, **changes: object) -> SendRequestV2:
        """Return a send header with everyday values, or as the changes say."""
        settings: dict[str, object] = {
            "producer_group": self.name("producers"),
            "topic": topic,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": self.facts.now_ms,
            "flag": 0,
            "reconsume_times": 0,
            "unit_mode": False,
            "batch": False,
            "broker_name": self.facts.broker,
        }
        settings.update(changes)
        return SendRequestV2(**settings)  # type: ignore[arg-type]

    def send(
        self, broker: Peer, topic: str, body: bytes, properties: dict[str, str], **changes: object
    ) -> SendReply:
        """Send a message with a V2 header and return its position."""
        header = self.send_request(topic, properties=encode_properties(properties), **changes)
        return read_header(SendReply, broker.ask(request_command(header, body)))

    def unique_id(self, number: int) -> str:
        """Return a unique id as a client on 127.0.0.1 makes it."""
        return f"7F0000010001{self.facts.now_ms & 0xFFFFFFFF:08X}{number:012X}"


def succeed(reply: Command) -> Command:
    """Return the reply if its code is SUCCESS; otherwise fail with its remark."""
    assert reply.code == ResponseCode.SUCCESS, f"{reply.code}: {reply.remark}"
    return reply


def read_header(kind: type[HeaderT], reply: Command) -> HeaderT:
    """Return the typed header of a successful reply."""
    return kind.from_fields(succeed(reply).fields)


def read_body(kind: type[BodyT], reply: Command) -> BodyT:
    """Return the typed body of a successful reply."""
    return decode_body(kind, succeed(reply).body)


def bare_request(code: RequestCode, body: bytes = b"") -> Command:
    """Return a request that has no header fields."""
    return Command(int(code), body=body)


@contextmanager
def live_scene(
    facts: Facts, addresses: dict[str, str], recording: Recording | None = None
) -> Generator[Scene]:
    """Open a scene on real servers; keep its frames where a recording is given."""

    def connect(target: str, connection: str) -> Channel:
        channel: Channel = SocketChannel(addresses[target])
        return channel if recording is None else RecordingChannel(channel, connection, recording)

    scene = Scene(facts, connect, is_live=True)
    try:
        yield scene
    finally:
        scene.close()


@contextmanager
def playback_scene(recording: Recording) -> Generator[Scene]:
    """Open a scene on a recording; at the end all recorded frames must have been sent."""
    playback = Playback(recording)
    scene = Scene(
        recording.facts, lambda _, connection: playback.channel(connection), is_live=False
    )
    yield scene
    scene.close()
