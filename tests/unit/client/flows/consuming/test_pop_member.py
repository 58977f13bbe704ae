from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

import pytest

from downrange.client.flows.consuming.pop_member import PopMember, UnderWay
from downrange.client.flows.consuming.pull import by_tags
from downrange.client.flows.consuming.push_core import PushCore
from downrange.client.flows.consuming.subscriptions import filters_of
from downrange.client.flows.consuming.verdicts import Verdict
from downrange.client.flows.effects import UserCall, Wait
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.notices import (
    CommitFailed,
    HandlerFailed,
    QueueFailed,
    QueueRecovered,
    TopicUnread,
    WorkFailed,
)
from downrange.errors import ConnectionLost, DeadLetter, PopNotSupported, Retry, RetrySome
from downrange.model import QueueId
from downrange.options.consumers import ConsumerOptions
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.compression import Compression, compress
from downrange.wire.headers import OffsetReply
from downrange.wire.pop_headers import ChangeInvisibleReply, NotificationReply, PopReply
from downrange.wire.properties import encode_properties
from tests.unit.client.flows.fake_servers import (
    NAME_SERVER,
    FakeServers,
    record,
    refusal,
    reply,
    route,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.consuming.delivery_window import Delivery, DeliveryWindow
    from downrange.client.flows.consuming.pop_sources import PopSource
    from downrange.client.flows.effects import Effect, Flow
    from downrange.client.flows.hooks import HandleContext
    from downrange.client.flows.notices import Notice
    from downrange.wire.command import Command

POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
MANY = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
NOTIFICATION = RequestCode.NOTIFICATION
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
PROGRESS = RequestCode.QUERY_CONSUMER_OFFSET
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
A0 = QueueId("orders", "a", 0)


class World:
    """A push consumer in pop mode, and brokers that hold the offsets that a test puts there."""

    def __init__(self, brokers: str = "a", hooks: Hooks | None = None, **options: Any) -> None:
        self.servers = FakeServers()
        self.stored: dict[str, deque[int]] = {broker: deque() for broker in brokers}
        self.is_retried = False
        self.handled: list[Any] = []
        self.errors: list[BaseException] = []
        self.spawned: list[Flow[None]] = []
        self.notices: list[Notice] = []
        self.servers.core.observe = self.notices.append
        for topic in ("orders", "refunds"):
            self.servers.answer_route(topic, route(brokers, queues=1))
        for broker in brokers:
            self.open(broker)
        self.push = PushCore(
            self.servers.core,
            "jobs",
            ConsumerOptions(mode="pop", **options),
            self.handle,
            None,
            hooks or Hooks(),
            self.spawned.append,
        )
        self.member = cast("PopMember", self.push.member)

    @property
    def now(self) -> float:
        return self.servers.clock.seconds

    @property
    def on_wait(self) -> list[Callable[[], object]]:
        return self.servers.interpreter.on_wait

    @property
    def source(self) -> PopSource:
        return self.member.sources["orders", "a"]

    @property
    def window(self) -> DeliveryWindow:
        return self.member.windows[A0]

    def open(self, broker: str) -> None:
        """Let a broker answer everything."""
        address = f"{broker}:1"
        for code in (ACK, MANY, COMMIT, SEND_BACK, RequestCode.HEART_BEAT):
            self.servers.answer(address, code, reply())
        for code in (RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG):
            self.servers.answer(address, code, reply())
        self.servers.answer(address, PROGRESS, reply(OffsetReply(7)))
        self.servers.answer(address, CHANGE, reply(ChangeInvisibleReply(1, 0, 0)))
        self.servers.answer(address, NOTIFICATION, reply(NotificationReply(False)))
        self.servers.answer(address, POP, lambda command: self.pop(broker, command))

    def cut(self, code: RequestCode, broker: str = "a") -> ConnectionLost:
        """Let a broker not answer requests of a kind."""
        error = ConnectionLost(f"{broker}:1", "cut")
        self.servers.answer(f"{broker}:1", code, error)
        return error

    def pop(self, broker: str, command: Command) -> Command:
        stored = self.stored[broker]
        if not stored:
            return refusal(ResponseCode.POLLING_TIMEOUT)
        count = min(len(stored), int(command.fields["maxMsgNums"]))
        offsets = [stored.popleft() for _ in range(count)]
        return reply(
            PopReply(1_000, 60_000, 2, len(stored), f"0 0 {offsets[0]}"),
            body=b"".join(self.record(command.fields["topic"], offset) for offset in offsets),
        )

    def record(self, topic: str, offset: int) -> bytes:
        checkpoint = {"POP_CK": f"{offset} 1000 60000 2 1 a 0 {offset}"} if self.is_retried else {}
        properties = encode_properties({"TAGS": "new", **checkpoint})
        return record(topic, offset, body=str(offset).encode(), properties=properties)

    def handle(self, given: Any) -> None:
        self.handled.append(given)
        if self.errors:
            raise self.errors.pop(0)

    def run(self, flow: Flow[Any]) -> Any:
        return self.servers.run(flow)

    def enter(self, subscribe: Any = "orders") -> World:
        self.run(self.push.enter(filters_of(subscribe), self.now + 3))
        return self

    def fill(self, count: int) -> World:
        """Let the member pop messages from 0 on."""
        self.stored["a"].extend(range(count))
        self.run(self.member._pop_once(self.source))
        return self

    def take(self) -> Delivery:
        delivery = self.push._take()
        assert delivery is not None
        return delivery

    def work(self) -> None:
        """Handle what waits."""
        self.on_wait[:] = [self.push.end_workers]
        self.run(self.push.work())

    def close(self) -> None:
        self.member.closing.fire()
        self.member.changed.fire()

    def leave(self) -> None:
        self.run(self.push.exit(self.now + 5))

    def asked(self, code: RequestCode) -> int:
        return len(self.servers.asked(code))

    def published(self, kind: type[Any]) -> list[Any]:
        return [notice for notice in self.notices if isinstance(notice, kind)]


# ---- sources -----------------------------------------------------------------------------------


def test_each_broker_of_each_topic_is_popped() -> None:
    world = World("ab").enter(["orders", "refunds"])
    assert world.member.assigned() == [
        QueueId(topic, broker, -1) for topic in ("orders", "refunds") for broker in "ab"
    ]
    assert len(world.spawned) == 4
    assert world.asked(PROGRESS) == 4
    assert world.run(world.member.take_queues())
    assert (len(world.spawned), world.asked(PROGRESS)) == (4, 4)


def test_a_broker_without_pops_is_an_error_and_the_others_are_popped() -> None:
    refused = refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    world = World("ab")
    world.servers.answer("a:1", NOTIFICATION, refused)
    with pytest.raises(PopNotSupported):
        world.enter()
    world = World("ab").enter()
    world.member.sources.clear()
    world.servers.answer("a:1", NOTIFICATION, refused)
    world.on_wait[:] = [lambda: None, lambda: None, world.close]
    world.run(world.member._source_loop())
    assert list(world.member.sources) == [("orders", "b")]
    assert len(world.published(WorkFailed)) == 1
    assert world.servers.core.user_errors == 0
    assert "RocketMQ 5" in world.member.problems()[0]


def test_a_broker_that_does_not_answer_is_tried_by_its_loop() -> None:
    world = World()
    world.cut(NOTIFICATION)
    assert list(world.enter().member.sources) == [("orders", "a")]


def test_a_topic_without_a_route_is_looked_for_again() -> None:
    world = World()
    world.servers.answer_route("orders", None)
    world.enter()
    assert world.member.assigned() == []
    step = "`downrange topic list` shows the topics"
    assert world.notices == [TopicUnread("jobs", "orders", "does not exist", step)]
    assert world.member.problems() == ["topic orders does not exist"]
    world.servers.answer_route("orders", route("a", queues=1))
    world.on_wait[:] = [lambda: None, world.close]
    started = world.now
    world.run(world.member._source_loop())
    assert list(world.member.sources) == [("orders", "a")]
    assert world.now == started + 1
    assert not world.member.problems()


def test_sources_stay_when_no_name_server_answers() -> None:
    world = World().enter()
    world.servers.answer(NAME_SERVER, ROUTE, ConnectionLost(NAME_SERVER, "cut"))
    world.member.core.routes.forget("orders")
    world.on_wait[:] = [world.member.changed.fire, world.close]
    world.run(world.member._source_loop())
    assert list(world.member.sources) == [("orders", "a")]
    world.servers.clock.seconds += 10
    world.run(world.member.take_queues())
    assert "no name server answered" in world.member.problems()[0]


def without_group() -> World:
    world = World("ab")
    refused = refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group jobs not exist!")
    missing = refusal(ResponseCode.QUERY_NOT_FOUND)
    for address in ("a:1", "b:1"):
        world.servers.answer(address, PROGRESS, missing)
        world.servers.answer(address, RequestCode.GET_MAX_OFFSET, reply(OffsetReply(0)))
    world.servers.answer("a:1", COMMIT, refused)
    return world


def test_a_group_that_does_not_exist_is_reported_once_and_its_end() -> None:
    """Complaint: a queue stops, and nothing is in the log."""
    world = without_group().enter()
    place = QueueId("orders", "a", -1)
    assert world.member.assigned() == [QueueId("orders", "b", -1)]
    text = "a:1 does not have group 'jobs' (code 26).\n  Create it with `downrange group create"
    assert world.member.problems()[0].startswith(f"orders of a cannot be taken: {text} jobs`.")
    assert not world.run(world.member.take_queues())
    assert [notice.queue for notice in world.published(QueueFailed)] == [place]
    world.servers.answer("a:1", COMMIT, reply())
    assert world.run(world.member.take_queues())
    assert world.published(QueueRecovered) == [QueueRecovered("jobs", place)]
    assert not world.member.problems()


def test_a_group_is_created_by_another_heartbeat_when_the_first_one_was_lost() -> None:
    world = without_group()
    refused = refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group jobs not exist!")
    world.servers.answer("a:1", COMMIT, refused, reply())
    world.enter()
    assert len(world.member.sources) == 2
    assert not world.published(QueueFailed)


def test_a_heartbeat_that_is_refused_is_the_reason_why_there_is_no_group() -> None:
    world = without_group()
    denied = refusal(ResponseCode.NO_PERMISSION, "no right")
    world.servers.answer("a:1", RequestCode.HEART_BEAT, denied)
    world.enter()
    assert "code 16: no right" in world.member.problems()[0]


def test_what_was_wrong_with_a_topic_is_forgotten_when_it_is_given_up() -> None:
    world = without_group().enter()
    assert world.member.problems()
    world.run(world.member.resubscribe(filters_of("refunds"), world.now + 3))
    world.servers.answer("a:1", COMMIT, reply())
    world.run(world.member.take_queues())
    assert not world.member.problems()
    assert not world.published(QueueRecovered)


def test_a_broker_that_leaves_the_route_is_not_waited_for() -> None:
    world = without_group().enter()
    world.servers.answer_route("orders", route("b", queues=1))
    world.member.core.routes.forget("orders")
    assert world.run(world.member.take_queues())
    assert not world.member.problems()
    assert not world.published(QueueRecovered)


def test_nothing_is_popped_before_the_group_has_a_place_to_begin() -> None:
    world = World("ab")
    world.cut(PROGRESS)
    world.enter()
    assert list(world.member.sources) == [("orders", "b")]
    world.open("a")
    assert world.run(world.member.take_queues())
    assert sorted(world.member.sources) == [("orders", "a"), ("orders", "b")]


def test_a_member_that_leaves_opens_nothing() -> None:
    world = World().enter()
    world.member.sources.clear()
    world.close()
    world.run(world.member._open_source("orders", "a"))
    assert world.member.sources == {}


def test_a_new_filter_counts_for_the_next_pop() -> None:
    world = World().enter(["orders", "refunds"])
    kept = {"orders": by_tags("new || paid")}
    world.run(world.member.resubscribe(kept, world.now + 3))
    assert world.source.message_filter.text == "new || paid"
    assert ("refunds", "a") in world.member.sources  # until the loop looks
    assert world.run(world.member.take_queues())
    assert list(world.member.sources) == [("orders", "a")]


def test_a_topic_that_is_given_up_is_left_to_others() -> None:
    world = World(concurrency=1).enter(["orders", "refunds"]).fill(3)
    running = world.take()
    world.push.member.windows[A0].postpone(world.window.waiting.popleft(), world.now + 5)
    world.run(world.member.resubscribe(filters_of("refunds"), world.now + 3))
    world.member.sources["refunds", "a"].is_ready = True
    world.stored["a"].append(8)
    world.run(world.member._pop_once(world.member.sources["refunds", "a"]))
    world.run(world.member.take_queues())
    assert world.asked(CHANGE) == 2
    assert world.servers.fields(CHANGE)["invisibleTime"] == "0"
    assert (world.window.count, world.member.buffer.count) == (1, 2)
    world.push.finish(running)
    assert world.run(world.member._send_acks(world.now + 3))
    assert world.asked(ACK) == 1
    world.run(world.member.take_queues())
    assert list(world.member.windows) == [QueueId("refunds", "a", 0)]


def test_a_reset_is_committed() -> None:
    world = World().enter()
    world.run(world.member.reset({A0: 5, QueueId("other", "a", 0): 6}))
    assert world.asked(COMMIT) == 1
    assert world.servers.fields(COMMIT)["commitOffset"] == "5"
    assert len(world.spawned) == 1


# ---- popping -----------------------------------------------------------------------------------


def test_popped_messages_wait_in_the_window_of_their_queue() -> None:
    linked: list[Any] = []
    world = World().enter()
    world.member.link = linked.append
    world.fill(2)
    assert [message.offset for message in world.window.waiting] == [0, 1]
    assert list(world.window.waiting) == linked
    world.is_retried = True
    world.fill(1)
    assert sorted(world.member.windows) == [QueueId("%RETRY%orders", "a", 0), A0]
    assert world.member.counts.fetched == 3
    assert world.member.rates_of("orders").snapshot().pull_rate > 0


def test_a_loop_pops_waits_for_messages_and_for_room() -> None:
    world = World(buffer_messages=2, pull_batch=2).enter()
    world.stored["a"].extend(range(4))

    def handle() -> None:
        world.push.finish(world.take())

    world.on_wait[:] = [handle, handle, handle, handle, world.close, lambda: None]

    def end(_: Command) -> Command:
        world.close()
        return reply(NotificationReply(False))

    world.servers.answer("a:1", NOTIFICATION, end)
    world.run(world.member._pop_loop(world.source))
    assert world.asked(POP) >= 3
    assert world.member.counts.fetched == 4
    assert world.asked(NOTIFICATION) >= 2


def test_a_member_holds_no_more_than_it_can_handle() -> None:
    assert World().member.buffer.count_max == 96
    assert World(concurrency=40, batch=2).member.buffer.count_max == 240
    assert World(buffer_messages=10).member.buffer.count_max == 10


def test_pops_that_fail_are_reported_once_until_they_succeed() -> None:
    world = World().enter()
    error = world.cut(POP)
    world.run(world.member._pop_once(world.source))
    world.run(world.member._pop_once(world.source))
    (failed,) = world.published(QueueFailed)
    assert (failed.queue, failed.error) == (QueueId("orders", "a", -1), error)
    assert world.member.problems() == [f"orders of a cannot be popped: {error}"]
    world.open("a")
    world.fill(1)
    assert len(world.published(QueueRecovered)) == 1
    assert world.member.problems() == []


@pytest.mark.parametrize(
    ("code", "pause"), [(ResponseCode.POLLING_FULL, 1.0), (ResponseCode.POLLING_TIMEOUT, 0.05)]
)
def test_a_source_without_messages_is_watched_after_a_pause(
    code: ResponseCode, pause: float
) -> None:
    world = World().enter()
    world.servers.answer("a:1", POP, refusal(code))
    world.run(world.member._pop_once(world.source))
    assert (world.source.is_ready, world.source.pause) == (False, pause)


def test_hooks_leave_out_messages_which_are_acknowledged() -> None:
    hooks = Hooks(filter_message=(lambda message: message.offset != 1,))
    world = World(hooks=hooks).enter().fill(3)
    assert [message.offset for message in world.window.waiting] == [0, 2]
    assert world.run(world.member._send_acks(world.now + 3))
    assert world.servers.fields(ACK)["offset"] == "1"


@pytest.mark.parametrize("is_leaving", [True, False])
def test_what_nobody_waits_for_any_more_is_given_back(is_leaving: bool) -> None:
    world = World().enter()
    source = world.source
    world.stored["a"].extend(range(3))
    if is_leaving:
        world.close()
    else:
        world.member.sources.clear()
    world.run(world.member._pop_once(source))
    assert world.member.windows == {}
    assert world.asked(CHANGE) == 3
    assert world.servers.fields(CHANGE)["invisibleTime"] == "0"
    assert (world.member.counts.sent_back, world.member.counts.renewed) == (0, 0)


# ---- handling ----------------------------------------------------------------------------------


def test_messages_that_are_over_are_skipped() -> None:
    world = World(batch=3).enter().fill(1)
    world.servers.clock.seconds += 59
    world.fill(2)
    world.servers.clock.seconds += 2
    room = world.member._room
    delivery = world.take()
    assert [message.body for message in delivery.messages] == [b"0", b"1"]
    assert (world.member.expired, world.window.count, room.is_fired) == (1, 2, True)
    assert delivery in world.window.running.values()
    world.push.finish(delivery)
    assert (world.window.count, world.window.running) == (0, {})


def test_a_batch_that_is_over_is_not_handled() -> None:
    world = World(batch=2, concurrency=1).enter().fill(4)
    world.servers.clock.seconds += 61
    assert world.push._take() is None
    assert (world.member.expired, world.member.buffer.count) == (4, 0)
    assert world.window.running == {}


def test_a_batch_keeps_its_place_when_its_first_message_is_over() -> None:
    world = World(batch=2).enter()
    world.stored["a"].append(4)
    world.run(world.member._pop_once(world.source))
    world.servers.clock.seconds += 59
    world.stored["a"].append(9)
    world.run(world.member._pop_once(world.source))
    world.servers.clock.seconds += 2
    delivery = world.take()
    assert list(world.window.running.values()) == [delivery]
    world.push.finish(delivery)
    assert world.window.running == {}


def test_nothing_is_kept_of_messages_that_are_done() -> None:
    world = World(span=1).enter().fill(8)
    stuck = world.take()
    for _ in range(6):
        world.push.finish(world.take())
    world.errors.append(ValueError())
    world.work()
    assert world.handled
    window = world.window
    assert (window.count, list(window._open), window._done) == (1, [], set())
    world.push.finish(stuck)
    assert world.window.position == 8


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError(), CHANGE), (Retry(after=2), CHANGE), (DeadLetter("bad"), SEND_BACK)],
)
def test_failed_messages_go_back_to_the_broker(error: Exception, code: RequestCode) -> None:
    world = World().enter().fill(1)
    world.errors.append(error)
    world.work()
    assert world.asked(code) == 1
    counts = world.member.counts
    assert (counts.sent_back, counts.dead) == ((1, 0) if code == CHANGE else (0, 1))
    assert world.member._popped == {}
    if isinstance(error, Retry):
        assert world.servers.fields(CHANGE)["invisibleTime"] == "2000"


@pytest.mark.parametrize("is_decoded", [True, False])
def test_bodies_are_decompressed_unless_the_program_does_it(*, is_decoded: bool) -> None:
    world = World(decode_body=is_decoded).enter()
    text = b"again and " * 9
    packed, sys_flag = compress(text, Compression.ZSTD)
    data = record("orders", 0, body=packed, sys_flag=sys_flag)
    world.servers.answer("a:1", POP, reply(PopReply(1_000, 60_000, 2, 0, "0 0 0"), body=data))
    world.run(world.member._pop_once(world.source))
    assert world.take().messages[0].body == (text if is_decoded else packed)


def test_a_failed_message_whose_time_is_over_is_left_to_the_broker() -> None:
    world = World().enter().fill(2)
    first, second = world.take(), world.take()
    world.servers.clock.seconds += 61
    world.run(world.push.fail(first, ValueError()))
    world.member._popped.clear()
    world.run(world.push.fail(second, ValueError()))
    assert (world.asked(CHANGE), world.member.expired) == (0, 1)
    assert world.window.count == 0


def test_a_message_that_the_broker_does_not_take_is_handled_here_again() -> None:
    world = World().enter().fill(1)
    world.cut(CHANGE)
    world.errors.append(ValueError())
    world.work()
    assert len(world.window.postponed) == 1
    assert len(world.member._popped) == 1


# ---- acknowledging -----------------------------------------------------------------------------


def test_a_batch_of_which_none_is_retried_is_acknowledged() -> None:
    world = World(batch=4).enter()
    world.errors = [RetrySome([])]
    world.fill(3)
    world.work()
    counts = world.member.counts
    assert (counts.handled, counts.failed) == (3, 0)
    assert len(world.member._acks) == 3
    assert not world.window.running
    assert not world.member.buffer.count


def test_what_the_log_says_of_a_failed_message_is_what_the_broker_does() -> None:
    for error, retries, plan in (
        (Retry(), 16, "attempt 2 of 17 follows in about 10 s"),
        (Retry(0), 16, "attempt 2 of 17 follows in about 0 s"),
        (Retry(864000), 16, "attempt 2 of 17 follows in about 864000 s"),
        (Retry(6), 0, "it becomes a dead letter after 1 attempts"),
        (DeadLetter("why"), 16, "it becomes a dead letter"),
    ):
        world = World(retries=retries).enter()
        world.errors = [error]
        world.fill(1)
        world.work()
        (notice,) = world.published(HandlerFailed)
        assert notice.plan == plan
        assert world.member.counts.dead == ("dead letter" in plan)


def test_after_a_mistake_messages_are_left_to_the_broker() -> None:
    world = World(batch=2).enter()
    world.errors = [ValueError("bad")]
    world.fill(2)

    def broken(window: DeliveryWindow, verdict: Verdict) -> Flow[None]:
        yield from world.push._send_back(window, Verdict((), verdict.failed[:1]))
        raise LookupError("broken")

    world.push._repeat = broken  # type: ignore[assignment, method-assign]
    world.work()
    assert not world.window.running
    assert not world.member.buffer.count
    assert not world.member._popped
    assert world.asked(CHANGE) == 1


def test_acknowledgements_share_a_request() -> None:
    world = World().enter().fill(3)
    for _ in range(3):
        world.push.finish(world.take())
    world.on_wait[:] = [lambda: None, world.member._left.fire]
    world.run(world.member._ack_loop())
    assert (world.asked(MANY), world.asked(ACK)) == (1, 0)
    world.fill(32)
    for _ in range(32):
        world.push.finish(world.take())
    world.member._left.is_fired = False
    world.on_wait[:] = [world.member._left.fire]  # so many do not wait for others
    world.run(world.member._ack_loop())
    assert world.asked(MANY) == 2


def test_acknowledgements_that_fail_are_repeated() -> None:
    world = World().enter().fill(1)
    world.servers.answer("a:1", ACK, ConnectionLost("a:1", "cut"), reply())
    world.push.finish(world.take())
    world.on_wait[:] = [lambda: None] * 4 + [world.member._left.fire]
    world.run(world.member._ack_loop())
    assert world.asked(ACK) == 2
    assert len(world.published(CommitFailed)) == 1
    assert (world.member.last_commit_error, world.member.counts.commits_failed) == (None, 1)


def test_acknowledgements_that_fail_are_reported_once() -> None:
    world = World().enter().fill(2)
    world.cut(ACK)
    world.push.finish(world.take())
    assert not world.run(world.member._send_acks(world.now + 3))
    assert not world.run(world.member._send_acks(world.now + 3))
    assert len(world.published(CommitFailed)) == 1
    world.servers.clock.seconds += 61
    assert world.run(world.member._send_acks(world.now + 3))
    assert (world.member.expired, world.member.last_commit_error) == (1, None)


def test_receipts_are_renewed_while_handlers_run() -> None:
    world = World(handle_timeout=100.0, concurrency=1).enter().fill(2)
    world.take()

    def after(seconds: float) -> Callable[[], None]:
        def move() -> None:
            world.servers.clock.seconds += seconds

        return move

    world.on_wait[:] = [
        after(5),
        after(30),
        after(0),
        after(45),
        after(30),
        world.member._left.fire,
    ]
    world.run(world.member._renew_loop())
    assert world.asked(CHANGE) == 2
    assert world.member.counts.renewed == 2
    assert world.servers.fields(CHANGE)["invisibleTime"] == "60000"


def test_a_renewal_that_fails_is_published() -> None:
    world = World().enter().fill(2)
    world.take()
    world.take()
    world.cut(CHANGE)

    def late() -> None:
        world.servers.clock.seconds += 40

    world.on_wait[:] = [late, late, world.member._left.fire]
    world.run(world.member._renew_loop())
    assert len(world.published(WorkFailed)) == 2  # the receipts are over at the second look


def test_a_message_without_a_receipt_is_not_renewed() -> None:
    world = World().enter().fill(1)
    world.take()
    world.member._popped.clear()
    world.on_wait[:] = [lambda: None, world.member._left.fire]
    world.run(world.member._renew_loop())
    assert world.asked(CHANGE) == 0


# ---- leaving -----------------------------------------------------------------------------------


def test_a_member_that_leaves_acknowledges_and_gives_back() -> None:
    world = World(concurrency=2).enter().fill(4)
    done, running = world.take(), world.take()
    world.push.finish(done)
    world.leave()
    assert (world.asked(ACK), world.asked(CHANGE)) == (1, 2)
    assert world.servers.fields(CHANGE)["invisibleTime"] == "0"
    assert world.member.owner.is_closed
    world.push.finish(running)  # too late: it is delivered again
    assert world.asked(ACK) == 1
    assert world.run(world.member._ack_loop()) is None


def test_a_member_that_leaves_repeats_acknowledgements() -> None:
    world = World().enter().fill(1)
    world.push.finish(world.take())
    world.servers.answer("a:1", ACK, ConnectionLost("a:1", "cut"), reply())
    world.leave()
    assert (world.asked(ACK), world.asked(CHANGE)) == (2, 0)


def test_a_member_that_leaves_gives_up_acknowledgements_at_its_deadline() -> None:
    world = World().enter().fill(1)
    world.push.finish(world.take())
    world.cut(ACK)
    started = world.now
    world.leave()
    assert world.asked(ACK) >= 2
    assert world.now - started < world.member.core.options.call_timeout


def test_a_member_that_leaves_waits_for_pops_and_acknowledgements() -> None:
    world = World().enter()
    with world.member._popping, world.member._acking:
        flow = world.member.hand_over([], world.now + 3)
        first = next(flow)
        assert isinstance(first, Wait)
        assert first.signal is world.member._popping._over
        second = flow.send(True)
        assert isinstance(second, Wait)
        assert second.signal is world.member._acking._over
        flow.close()


def test_what_is_under_way_again_is_waited_for_again() -> None:
    busy = UnderWay()
    for _ in range(2):
        with busy:
            with busy:
                pass
            effect = next(busy.end_of_all(1.0))
            assert isinstance(effect, Wait)
            assert not effect.signal.is_fired
        assert effect.signal.is_fired
        assert list(busy.end_of_all(1.0)) == []


def test_the_loops_of_a_member() -> None:
    assert set(World().member.loops()) == {
        *("sources", "watch", "acknowledgement", "receipt renewal"),
    }


# ---- workers -----------------------------------------------------------------------------------


def test_a_delivery_whose_worker_was_ended_has_failed() -> None:
    world = World().enter().fill(1)
    worker = world.push.work()
    assert isinstance(next(worker), UserCall)
    with pytest.raises(KeyboardInterrupt):
        worker.throw(KeyboardInterrupt())
    world.work()
    assert (world.member.counts.failed, world.asked(CHANGE)) == (1, 1)
    (failed,) = world.published(HandlerFailed)
    assert isinstance(failed.error, KeyboardInterrupt)


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_handler_that_exits_has_failed(is_watched: bool) -> None:
    ended: list[HandleContext] = []
    hooks = Hooks(after_handle=(ended.append,)) if is_watched else Hooks()
    world = World(hooks=hooks).enter().fill(1)
    worker = world.push.work()
    assert isinstance(next(worker), UserCall)
    effect: Effect | None = worker.throw(SystemExit(1))
    world.push.end_workers()
    while effect is not None:
        try:
            effect = worker.send(world.servers.perform(effect))
        except StopIteration:
            effect = None
    assert (world.member.counts.failed, world.asked(CHANGE)) == (1, 1)
    assert [type(context.error) for context in ended] == [SystemExit] * is_watched
