from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from downrange.client.flows.consuming.pull import EVERYTHING, Filter, by_sql, by_tags
from downrange.client.flows.consuming.simple_core import SimpleCore
from downrange.client.flows.effects import Signal, Wait
from downrange.client.flows.routing.lookup import refresh_all
from downrange.errors import (
    ClientClosed,
    ClosedUnsettled,
    ConnectFailed,
    ConnectionLost,
    GroupTaken,
    NoPermission,
    OptionError,
    PopNotSupported,
    RocketMQError,
    RouteNotFound,
    ServerFailure,
)
from downrange.options import SimpleOptions
from downrange.wire.bodies import HeartbeatBody
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.hashes import tag_hash
from downrange.wire.headers import OffsetReply
from downrange.wire.pop_headers import ChangeInvisibleReply, NotificationReply, PopReply
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from downrange.client.flows.consuming.delivery import Delivery
    from downrange.client.flows.consuming.pop_sources import PopSource
    from downrange.client.flows.effects import Effect, Flow
    from downrange.wire.command import Command

POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
MANY = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
NOTIFICATION = RequestCode.NOTIFICATION
HEARTBEAT = RequestCode.HEART_BEAT
UNREGISTER = RequestCode.UNREGISTER_CLIENT
CHECK = RequestCode.CHECK_CLIENT_CONFIG
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


class Waits(list["Callable[[], object]"]):
    """Does the same at every wait of the interpreter."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__([action])

    def pop(self, index: Any = -1) -> Callable[[], object]:
        return self[0]


class World:
    """A consumer, and brokers that hold the messages that a test puts there."""

    def __init__(self, brokers: str = "a", *, namespace: str | None = None, **options: Any) -> None:
        self.servers = FakeServers(namespace=namespace)
        self.stored: dict[str, deque[int]] = {broker: deque() for broker in brokers}
        self.flows: list[Flow[None]] = []
        self.reports: list[tuple[str, RocketMQError | None]] = []
        self.renewals: list[RocketMQError | None] = []
        for topic in ("orders", "refunds"):
            name = topic if namespace is None else f"{namespace}%{topic}"
            self.servers.answer_route(name, route(brokers))
        for broker in brokers:
            self.open(broker)
        self.core = SimpleCore(
            self.servers.core,
            "jobs",
            SimpleOptions(**options),
            self.flows.append,
            self.report,
            self.report_renewal,
        )
        self.servers.interpreter.on_wait = Waits(self.run_background)

    def open(self, broker: str) -> None:
        """Let a broker answer everything."""
        address = f"{broker}:1"
        for code in (ACK, MANY, HEARTBEAT, UNREGISTER, CHECK, COMMIT):
            self.servers.answer(address, code, reply())
        self.servers.answer(address, CHANGE, reply(ChangeInvisibleReply(1, 0, 0)))
        self.servers.answer(address, NOTIFICATION, lambda command: self.notify(broker, command))
        self.servers.answer(address, POP, lambda command: self.pop(broker, command))

    def cut(self, broker: str, *codes: RequestCode) -> ConnectionLost:
        """Let a broker not answer requests."""
        error = ConnectionLost(f"{broker}:1", "cut")
        for code in codes or (NOTIFICATION, POP, HEARTBEAT):
            self.servers.answer(f"{broker}:1", code, error)
        return error

    def notify(self, broker: str, command: Command) -> Command:
        has_messages = bool(self.stored[broker])
        if not has_messages:
            self.servers.clock.seconds += int(command.fields["pollTime"]) / 1000
        return reply(NotificationReply(has_messages))

    def pop(self, broker: str, command: Command) -> Command:
        stored = self.stored[broker]
        if not stored:
            return refusal(ResponseCode.POLLING_TIMEOUT)
        count = min(len(stored), int(command.fields["maxMsgNums"]))
        offsets = [stored.popleft() for _ in range(count)]
        header = PopReply(1_000, 60_000, 2, len(stored), f"0 0 {offsets[0]}")
        body = b"".join(record(command.fields["topic"], offset) for offset in offsets)
        return reply(header, body=body)

    def run_background(self) -> None:
        flows, self.flows[:] = list(self.flows), []
        for flow in flows:
            self.servers.run(flow)

    def report(self, source: PopSource, error: RocketMQError | None) -> None:
        self.reports.append((source.broker, error))

    def report_renewal(self, delivery: Delivery, error: RocketMQError | None) -> None:
        self.renewals.append(error)

    def start(self, topics: Mapping[str, Filter] | None = None) -> World:
        found = {"orders": EVERYTHING} if topics is None else topics
        self.servers.run(self.core.start(found, self.deadline()))
        return self

    def finish(self, flow: Flow[int], effect: Effect) -> int:
        """Run a flow to its end that a test has stepped by hand."""

        def rest() -> Flow[int]:
            answer: Any = yield effect
            try:
                while True:
                    answer = yield flow.send(answer)
            except StopIteration as ended:
                return int(ended.value)

        return self.servers.run(rest())

    def deadline(self, seconds: float = 3.0) -> float:
        return self.servers.clock.now() + seconds

    def receive(self, count: int = 16, timeout: float = 10.0) -> list[Delivery]:
        return self.servers.run(self.core.receive(count, 60.0, self.deadline(timeout)))

    def offsets(self, count: int = 16, timeout: float = 10.0) -> list[int]:
        return [delivery.message.offset for delivery in self.receive(count, timeout)]

    def heartbeat(self) -> HeartbeatBody:
        bodies = [command.body for _, command in self.servers.calls if command.code == HEARTBEAT]
        return msgspec.json.decode(bodies[-1], type=HeartbeatBody)


# ---- membership --------------------------------------------------------------------------------


def test_brokers_know_the_group_and_its_subscriptions_before_the_first_pop() -> None:
    world = World("ab", namespace="prod")
    world.start({"orders": by_tags("new || paid"), "refunds": by_sql("amount > 100")})
    (member,) = world.heartbeat().consumer_data_set
    assert (member.group_name, member.consume_type) == ("prod%jobs", "CONSUME_PASSIVELY")
    assert (member.message_model, member.consume_from_where) == (
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    orders, refunds, retries = member.subscription_data_set
    assert (orders.topic, orders.sub_string) == ("prod%orders", "new || paid")
    assert orders.tags_set == ["new", "paid"]
    assert orders.code_set == [tag_hash("new"), tag_hash("paid")]
    assert orders.sub_version == world.servers.clock.wall_ms()
    assert (refunds.topic, refunds.expression_type) == ("prod%refunds", "SQL92")
    assert (retries.topic, retries.sub_string) == ("%RETRY%prod%jobs", "*")
    assert set(world.servers.asked(HEARTBEAT)) == {"a:1", "b:1"}
    assert not world.servers.asked(POP)
    assert world.core.topics() == {
        "orders": by_tags("new || paid"),
        "refunds": by_sql("amount > 100"),
    }


def test_an_sql_filter_is_checked_by_a_broker() -> None:
    world = World()
    world.servers.answer("a:1", CHECK, refusal(ResponseCode.SYSTEM_ERROR))
    with pytest.raises(ServerFailure):
        world.start({"orders": by_sql("amount > 100")})


def test_a_client_has_one_consumer_of_a_group() -> None:
    world = World().start()
    with pytest.raises(GroupTaken):
        world.start()


def test_a_missing_topic() -> None:
    world = World()
    world.servers.answer(
        "ns:9876", RequestCode.GET_BROKER_CLUSTER_INFO, ConnectFailed("ns:9876", "refused")
    )
    with pytest.raises(RouteNotFound):
        world.start({"missing": EVERYTHING})


def test_an_old_broker_is_named_at_the_start() -> None:
    world = World("ab")
    world.servers.answer("b:1", NOTIFICATION, refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    with pytest.raises(PopNotSupported, match="b:1 answered with code 3"):
        world.start()
    assert not world.servers.asked(HEARTBEAT)


def test_a_start_without_any_broker() -> None:
    world = World()
    error = world.cut("a")
    with pytest.raises(ConnectionLost) as raised:
        world.start()
    assert raised.value is error


def test_a_start_without_one_of_the_brokers() -> None:
    world = World("ab")
    error = world.cut("b")
    world.start()
    assert world.reports == [("b", error)]
    assert not world.core.health().is_healthy
    world.stored["a"].append(1)
    assert world.offsets() == [1]


def test_a_topic_is_added_and_removed() -> None:
    world = World().start()
    world.servers.run(world.core.subscribe("refunds", EVERYTHING, world.deadline()))
    topics = [each.topic for each in world.heartbeat().consumer_data_set[0].subscription_data_set]
    assert topics == ["orders", "refunds", "%RETRY%jobs"]
    world.servers.run(world.core.unsubscribe("orders", world.deadline()))
    topics = [each.topic for each in world.heartbeat().consumer_data_set[0].subscription_data_set]
    assert topics == ["refunds", "%RETRY%jobs"]
    assert list(world.core.topics()) == ["refunds"]
    with pytest.raises(OptionError, match="'orders' is not subscribed; these are: refunds"):
        world.servers.run(world.core.unsubscribe("orders", world.deadline()))
    world.servers.run(world.core.unsubscribe("refunds", world.deadline()))
    with pytest.raises(OptionError, match="these are: none"):
        world.servers.run(world.core.unsubscribe("refunds", world.deadline()))
    with pytest.raises(OptionError, match="nothing is subscribed"):
        world.receive()


def test_a_group_that_starts_at_the_end_commits_the_end_once() -> None:
    world = World(start="latest")
    world.servers.answer("a:1", RequestCode.GET_MAX_OFFSET, reply(OffsetReply(7)))
    world.servers.answer(
        "a:1",
        RequestCode.QUERY_CONSUMER_OFFSET,
        refusal(ResponseCode.QUERY_NOT_FOUND),
        reply(OffsetReply(3)),
    )
    world.start()
    committed = [command.fields for _, command in world.servers.calls if command.code == COMMIT]
    assert [(fields["queueId"], fields["commitOffset"]) for fields in committed] == [("0", "7")]
    member = world.heartbeat().consumer_data_set[0]
    assert member.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    world.servers.run(world.core.subscribe("orders", by_tags("new"), world.deadline()))
    assert len(world.servers.asked(COMMIT)) == 1


def test_an_end_that_cannot_be_committed_is_an_error() -> None:
    world = World(start="latest")
    world.servers.answer(
        "a:1", RequestCode.QUERY_CONSUMER_OFFSET, refusal(ResponseCode.NO_PERMISSION)
    )
    with pytest.raises(NoPermission):
        world.start()


# ---- receiving ---------------------------------------------------------------------------------


def test_messages_are_popped_as_soon_as_a_broker_has_some() -> None:
    world = World().start()
    began = world.servers.clock.now()

    def arrive() -> None:
        world.stored["a"].extend([3, 4])
        world.run_background()

    world.servers.interpreter.on_wait = Waits(arrive)
    assert world.offsets() == [3, 4]
    assert world.servers.clock.now() == began
    assert world.core.stats().received == 2
    fields = world.servers.fields(POP)
    assert (fields["maxMsgNums"], fields["invisibleTime"]) == ("16", "60000")
    assert (fields["pollTime"], fields["queueId"], fields["initMode"]) == ("0", "-1", "0")


def test_an_empty_list_at_the_timeout() -> None:
    world = World().start()
    began = world.servers.clock.now()
    assert world.receive(timeout=12.0) == []
    assert world.servers.clock.now() == pytest.approx(began + 12.0)
    polls = [
        command.fields["pollTime"]
        for _, command in world.servers.calls
        if command.code == NOTIFICATION
    ]
    assert polls == ["0", "5000", "5000", "2000"]
    assert not world.servers.asked(POP)


def test_without_waiting_each_broker_is_asked_once() -> None:
    world = World("ab").start()
    world.servers.clock.seconds += 1
    asked = len(world.servers.asked(NOTIFICATION))
    assert world.receive(timeout=0.0) == []
    assert len(world.servers.asked(NOTIFICATION)) == asked + 2
    world.stored["b"].append(1)
    world.servers.clock.seconds += 1
    assert world.offsets(timeout=0.0) == [1]


def test_brokers_are_popped_in_turn() -> None:
    world = World("ab").start()
    world.stored["a"].extend(range(10))
    world.stored["b"].extend(range(100, 110))
    assert [world.offsets(3) for _ in range(4)] == [
        [0, 1, 2],
        [100, 101, 102],
        [3, 4, 5],
        [103, 104, 105],
    ]


def test_large_numbers_take_several_pops() -> None:
    world = World().start()
    world.stored["a"].extend(range(80))
    assert world.offsets(70) == list(range(70))
    assert world.offsets(70) == list(range(70, 80))


def test_a_pop_that_fails_after_messages_does_not_lose_them() -> None:
    world = World().start()
    world.stored["a"].extend(range(40))
    cut = ConnectionLost("a:1", "cut")
    world.servers.answer("a:1", POP, lambda command: world.pop("a", command), cut)
    assert world.offsets(40) == list(range(32))
    assert world.reports == [("a", cut)]
    world.servers.answer("a:1", POP, lambda command: world.pop("a", command))
    assert world.offsets(40) == list(range(32, 40))
    assert world.reports == [("a", cut), ("a", None)]


def test_a_promise_without_a_message_is_followed_by_a_pause() -> None:
    world = World().start()
    world.servers.answer("a:1", NOTIFICATION, reply(NotificationReply(has_msg=True)))
    assert world.receive(timeout=2.0) == []
    assert world.servers.interpreter.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


def test_a_broker_that_fails_does_not_delay_the_other() -> None:
    world = World("ab").start()
    world.cut("a")
    world.stored["b"].append(1)
    began = world.servers.clock.now()
    assert world.offsets() == [1]
    assert world.servers.clock.now() == began


def test_without_any_broker_the_error_is_raised_at_the_timeout() -> None:
    world = World().start()
    world.servers.clock.seconds += 1
    error = world.cut("a")
    began = world.servers.clock.now()
    with pytest.raises(ConnectionLost) as raised:
        world.receive(timeout=5.0)
    assert raised.value is error
    assert world.servers.clock.now() >= began + 5.0
    assert world.reports == [("a", error)]


def test_an_error_that_will_not_go_away_is_raised_at_once() -> None:
    world = World().start()
    world.servers.answer("a:1", NOTIFICATION, refusal(ResponseCode.NO_PERMISSION))
    began = world.servers.clock.now()
    with pytest.raises(NoPermission):
        world.receive(timeout=5.0)
    assert world.servers.clock.now() == began


def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_a_call() -> None:
    world = World().start()
    world.servers.clock.seconds += 1
    began = world.servers.clock.now()
    stuck: list[Flow[None]] = []

    def begin() -> None:
        for flow in world.flows:
            next(flow)
            stuck.append(flow)
        world.flows.clear()

    world.servers.interpreter.on_wait = Waits(begin)
    assert world.receive(timeout=0.0) == []
    assert world.servers.clock.now() == began + world.servers.core.options.call_timeout
    assert len(stuck) == 1
    assert world.receive(timeout=0.0) == []  # the watch still runs, so there is no second one
    assert len(stuck) == 1
    stuck[0].close()


def test_new_brokers_of_a_topic_are_popped_and_old_ones_are_not() -> None:
    world = World("ab")
    world.servers.answer_route("orders", route("a"))
    world.start()
    world.servers.answer_route("orders", route("b"))
    world.stored["a"].append(1)
    world.stored["b"].append(2)
    world.servers.run(refresh_all(world.servers.core))
    assert world.offsets() == [2]
    assert [source.broker for source in world.core.health().sources] == ["b"]


def test_the_last_known_brokers_are_popped_when_a_route_is_forgotten() -> None:
    world = World().start()
    world.stored["a"].append(1)
    world.servers.core.routes.forget("orders")
    assert [source.broker for source in world.core.health().sources] == ["a"]


# ---- settling and closing ----------------------------------------------------------------------


def test_counters_tell_what_became_of_messages() -> None:
    world = World().start()
    world.servers.answer("a:1", RequestCode.CONSUMER_SEND_MSG_BACK, reply())
    world.stored["a"].extend(range(6))
    first, second, third, fourth, *others = world.receive()
    run, until = world.servers.run, world.deadline()
    run(first.ack(until))
    run(second.retry(None, until))
    run(third.dead_letter(until))
    run(fourth.extend(30.0, until))
    assert run(world.core.ack(others, until)) == [None, None]
    stats = world.core.stats()
    assert (stats.received, stats.acknowledged, stats.given_back) == (6, 3, 1)
    assert (stats.dead_letters, stats.renewed, stats.processing) == (1, 1, 0)


def test_close_leaves_the_group_and_ends_a_receive() -> None:
    world = World().start()
    receiving = world.core.receive(16, 60.0, world.deadline(60.0))
    effect = next(receiving)
    while not isinstance(effect, Wait):
        effect = receiving.send(world.servers.perform(effect))
    closing = world.core.close(world.deadline())
    assert isinstance(next(closing), Wait)
    with pytest.raises(ClientClosed):
        receiving.send(True)
    assert world.finish(closing, closing.send(True)) == 0
    assert world.servers.fields(UNREGISTER)["consumerGroup"] == "jobs"
    assert not world.servers.core.consumers
    assert not world.core.health().is_healthy
    with pytest.raises(ClientClosed):
        world.receive()
    with pytest.raises(ClientClosed):
        world.servers.run(world.core.subscribe("refunds", EVERYTHING, world.deadline()))
    world.servers.run(world.core.close(world.deadline()))
    assert len(world.servers.asked(UNREGISTER)) == 1


def test_messages_that_arrive_while_the_consumer_is_closed_are_given_back() -> None:
    world = World().start()
    world.stored["a"].extend([1, 2])

    def pop_late(command: Command) -> Command:
        closing = world.core.close(world.deadline())
        next(closing)
        return world.pop("a", command)

    world.servers.answer("a:1", POP, pop_late)
    with pytest.raises(ClientClosed):
        world.receive()
    assert len(world.servers.asked(CHANGE)) == 2
    assert world.servers.fields(CHANGE)["invisibleTime"] == "0"
    assert world.core.stats().received == 0


def test_a_block_renews_its_message_and_close_waits_for_it() -> None:
    world = World().start()
    world.stored["a"].append(1)
    (delivery,) = world.receive()
    done = Signal()
    world.servers.run(world.core.begin_processing(delivery, done))
    assert len(world.flows) == 1
    world.servers.clock.seconds += 5
    assert list(world.core.health().processing.values()) == [5.0]
    assert world.core.stats().processing == 1
    closing = world.core.close(world.deadline())
    assert isinstance(next(closing), Wait)
    world.servers.run(delivery.ack(world.deadline()))
    world.core.end_processing(delivery, done)
    assert world.finish(closing, closing.send(True)) == 0
    assert world.core.stats().processing == 0


def test_a_block_that_does_not_end_is_not_waited_for_for_ever() -> None:
    world = World().start()
    world.stored["a"].append(1)
    (delivery,) = world.receive()
    world.servers.run(world.core.begin_processing(delivery, Signal()))
    world.flows.clear()
    assert world.servers.run(world.core.close(world.deadline())) == 1
    assert world.core.is_closed
    with pytest.raises(ClosedUnsettled):
        world.servers.run(delivery.ack(world.deadline()))
    with pytest.raises(ClosedUnsettled):
        world.servers.run(world.core.begin_processing(delivery, Signal()))


def test_renewals_that_fail_are_counted_and_reported() -> None:
    world = World(handle_timeout=20.0).start()
    world.stored["a"].append(1)
    (delivery,) = world.receive()
    world.servers.run(world.core.begin_processing(delivery, Signal()))
    world.run_background()
    assert world.renewals == [None]
    assert world.core.stats().not_renewed == 1


def test_calls_at_the_same_time_share_the_watches() -> None:
    world = World().start()
    began = world.servers.clock.now()
    asked = len(world.servers.asked(NOTIFICATION))
    calls = [world.core.receive(16, 60.0, began + 2.0) for _ in range(3)]
    assert world.servers.interpreter.run_together(calls) == [[], [], []]
    assert len(world.servers.asked(NOTIFICATION)) == asked + 1


def test_a_failure_of_calls_at_the_same_time_is_reported_once() -> None:
    world = World("ab").start()
    world.stored["a"].append(1)
    assert world.offsets() == [1]
    world.stored["a"].extend(range(32))
    world.stored["b"].extend(range(32))
    error = world.cut("a", POP)
    world.cut("b", POP)
    calls = [world.core.receive(1, 60.0, world.deadline(1.0)) for _ in range(2)]
    outcomes = world.servers.interpreter.run_together(calls)
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 2
    assert world.reports.count(("a", error)) == 1
