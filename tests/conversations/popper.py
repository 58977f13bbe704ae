"""One group's pops from one topic, as a conversation makes them.

The answers to a pop carry the time of the broker. A request that must be new takes its time from an
answer, so a playback sends the same bytes. The requests are hand-made: the conversations do not
depend on our own header classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.bodies import GroupConfig
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import GroupOffsetRequest
from downrange.wire.records import Record, decode_records
from tests.conversations.scene import Scene, bare_request, succeed
from tests.support.pops import Receipt, batch_body, pop_fields, receipts

if TYPE_CHECKING:
    from tests.conversations.peers import Peer

# Far above the seconds after which a message returns.
HOLD_MS = 12_000
_REPEATS_MAX = 4
#: The times in the answer to a request that is refused.
NO_TIMES = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
#: All fields of a refused pop.
REFUSED = NO_TIMES | {"restNum": "0"}
NO_MESSAGE_TEXT = "NO_MESSAGE_IN_QUEUE"


class Popper:
    """Pops of one group from one topic over one connection."""

    def __init__(self, scene: Scene, broker: Peer, topic: str, group: str) -> None:
        self.scene = scene
        self.broker = broker
        self.topic = topic
        self.group = group

    def request(self, **given: object) -> Command:
        return command(RequestCode.POP_MESSAGE, pop_fields(self.topic, self.group, **given))  # type: ignore[arg-type]

    def pop(self, **given: object) -> Command:
        """Pop once."""
        return self.broker.ask(self.request(**given))

    def fresh(self, poll_ms: int, **given: object) -> dict[str, object]:
        """Return the arguments of a pop that is made now and that the broker holds.

        The time comes from a pop of another group that finds nothing.
        """
        other = pop_fields(self.topic, self.scene.name("clock"), count=0)
        reply = self.broker.ask(command(RequestCode.POP_MESSAGE, other))
        return {"poll_ms": poll_ms, "born_ms": int(reply.fields["popTime"]), **given}

    def held_pop(self, **given: object) -> Command:
        """Pop and wait for a message; again, a few times, if the broker was paused meanwhile."""
        reply = self.pop(**self.fresh(HOLD_MS, **given))
        for _ in range(_REPEATS_MAX):
            if reply.code == ResponseCode.POLLING_TIMEOUT:
                reply = self.pop(**self.fresh(HOLD_MS, **given))
        return succeed(reply)

    def receipts(self, reply: Command) -> dict[tuple[str, int, int], Receipt]:
        broker = self.scene.facts.broker
        return receipts(succeed(reply).fields, self.topic, self.group, broker)

    def change(self, receipt: Receipt, invisible_ms: int, **changes: str | int) -> Command:
        fields = receipt.fields(**changes) | {"invisibleTime": str(invisible_ms)}
        return self.broker.ask(command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields))

    def ack(self, receipt: Receipt, **changes: str | int) -> Command:
        return self.broker.ask(command(RequestCode.ACK_MESSAGE, receipt.fields(**changes)))

    def batch_ack(self, *entries: dict[str, object]) -> Command:
        body = batch_body(self.scene.facts.broker, entries)
        return self.broker.ask(bare_request(RequestCode.BATCH_ACK_MESSAGE, body))

    def notification(self, queue_id: int, **more: str) -> tuple[str, str]:
        reply = succeed(self.broker.ask(self.notification_request(queue_id, **more)))
        return reply.fields["hasMsg"], reply.fields["pollingFull"]

    def notification_request(self, queue_id: int, **more: str) -> Command:
        fields = self._queue(queue_id) | {"pollTime": "0", "bornTime": "0"} | more
        return command(RequestCode.NOTIFICATION, fields)

    def peek(self, queue_id: int, count: int) -> Command:
        fields = self._queue(queue_id) | {"maxMsgNums": str(count)}
        return self.broker.ask(command(RequestCode.PEEK_MESSAGE, fields))

    def start_held(self, peer: Peer, poll_ms: int, queue_id: int, **given: object) -> int:
        """Start a pop, and ask over another connection until it is held; `finish` ends it.

        If the machine was paused for longer than the broker holds it, there is another one.
        """
        request = command(RequestCode.POLLING_INFO, self._queue(queue_id))
        while True:
            held = self.fresh(poll_ms, queue_id=queue_id, **given)
            call = self.broker.start(self.request(**held))
            for _ in range(poll_ms // 100):
                if succeed(peer.ask(request)).fields["pollingNum"] == "1":
                    return call
                self.scene.pause()
            assert self.broker.finish(call).code == ResponseCode.POLLING_TIMEOUT

    def committed(self) -> int | None:
        """Return the group's offset in queue 0; a broker moves it shortly after a pop."""
        request = GroupOffsetRequest(
            consumer_group=self.group, topic=self.topic, queue_id=0, set_zero_if_not_found=False
        )
        offset = self.broker.ask(request_command(request)).fields.get("offset")
        return None if offset is None else int(offset)

    def wait_committed(self, offset: int) -> None:
        self.scene.poll(self.committed, lambda found: found == offset)

    def _queue(self, queue_id: int) -> dict[str, str]:
        return {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(queue_id),
        }


def command(code: RequestCode, fields: dict[str, str]) -> Command:
    return Command(int(code), fields)


def new_popper(scene: Scene, *, count: int, properties: dict[str, str] | None = None) -> Popper:
    """Return a popper on a new topic of two queues with some messages in queue 0."""
    broker = scene.broker()
    topic = scene.create_topic(broker, "popped")
    popper = Popper(scene, broker, topic, scene.name("group"))
    send(popper, count, properties=properties)
    return popper


def send(
    popper: Popper, count: int, *, queue_id: int = 0, properties: dict[str, str] | None = None
) -> None:
    """Send messages "queue-number" to a queue."""
    scene = popper.scene
    for number in range(count):
        unique = {"UNIQ_KEY": scene.unique_id(queue_id * 100 + number)}
        body = f"{queue_id}-{number}".encode()
        sent = unique | (properties or {})
        scene.send(popper.broker, popper.topic, body, sent, queue_id=queue_id)


def create_group(
    scene: Scene,
    broker: Peer,
    word: str,
    *,
    consume_enable: bool = True,
    retry_max_times: int = 16,
) -> str:
    """Create a group and return its name."""
    group = GroupConfig(
        group_name=scene.name(word), consume_enable=consume_enable, retry_max_times=retry_max_times
    )
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    succeed(broker.ask(bare_request(code, group.encode())))
    return group.group_name


def records_of(reply: Command) -> list[Record]:
    return decode_records(succeed(reply).body)


def entries_of(reply: Command, name: str) -> set[str]:
    return set(reply.fields[name].split(";"))


def assert_empty(reply: Command, *, orderly: bool = False) -> None:
    """Check the answer that finds nothing; its lists are empty, not absent."""
    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, NO_MESSAGE_TEXT)
    lists = ["startOffsetInfo", "msgOffsetInfo", *(["orderCountInfo"] if orderly else [])]
    assert {name: reply.fields.get(name) for name in lists} == dict.fromkeys(lists, "")
    assert reply.fields["restNum"] == "0"
    assert ("orderCountInfo" in reply.fields) is orderly
    assert int(reply.fields["popTime"]) > 0
    assert reply.body == b""
