from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.consumer_core import ConsumerCore
from downrange.client.flows.consuming.pull import EVERYTHING, Filter, by_sql
from downrange.client.flows.effects import Call, Flow, Gather, Wait
from downrange.client.flows.routing.lookup import refresh_all
from downrange.errors import (
    ClientClosed,
    ConnectFailed,
    NoPermission,
    OptionError,
    RocketMQError,
    RouteNotFound,
    ServerFailure,
)
from downrange.model import QueueId
from downrange.options import PullOptions
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import OffsetReply, PullReply
from tests.unit.client.flows.consuming.polling import poll
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.consuming.offsets import Start

A0 = QueueId("orders", "a", 0)
A1 = QueueId("orders", "a", 1)
B0 = QueueId("orders", "b", 0)
PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


class Fetching:
    """A flow in the background, run one effect at a time."""

    def __init__(self, flow: Flow[None]) -> None:
        self.flow = flow
        self.effect = next(flow)

    @property
    def is_calling(self) -> bool:
        return isinstance(self.effect, Call)

    def go_on(self, servers: FakeServers) -> bool:
        """Perform its effect; return whether it has another one."""
        try:
            answer = servers.perform(self.effect)
        except RocketMQError as error:
            step = partial(self.flow.throw, error)
        else:
            step = partial(self.flow.send, answer)
        try:
            self.effect = step()
        except StopIteration:
            return False
        return True


class World:
    """A consumer, and brokers whose queues hold the messages that a test puts there."""

    def __init__(self, brokers: str = "a", *, queues: int = 2, **options: Any) -> None:
        self.servers = FakeServers()
        self.ends: dict[QueueId, int] = defaultdict(int)
        self.committed: dict[QueueId, int] = {}
        self.flows: list[Fetching] = []
        self.reports: list[tuple[QueueId, bool]] = []
        self.servers.answer_route("orders", route(brokers, queues=queues))
        for broker in brokers:
            self.open(broker)
        self.state = ConsumerCore(
            self.servers.core, "audit", PullOptions(**options), self.spawn, self.report
        )

    def report(self, queue: QueueId, error: RocketMQError | None) -> None:
        self.reports.append((queue, error is None))

    def spawn(self, flow: Flow[None]) -> None:
        self.flows.append(Fetching(flow))

    def open(self, broker: str) -> None:
        """Make a broker answer."""

        def queue_of(command: Command) -> QueueId:
            return QueueId(command.fields["topic"], broker, int(command.fields["queueId"]))

        def pull(command: Command) -> Command:
            queue, offset = queue_of(command), int(command.fields["queueOffset"])
            end = self.ends[queue]
            if offset > end:
                return Command(21, PullReply(0, end, 0, end).to_fields())
            if offset == end:
                return Command(19, PullReply(0, end, 0, end).to_fields())
            last = min(end, offset + int(command.fields["maxMsgNums"]))
            body = b"".join(
                record("orders", number, queue=queue.number) for number in range(offset, last)
            )
            return Command(0, PullReply(0, last, 0, end).to_fields(), body)

        def commit(command: Command) -> Command:
            self.committed[queue_of(command)] = int(command.fields["commitOffset"])
            return reply()

        def progress(command: Command) -> Command:
            offset = self.committed.get(queue_of(command))
            missing = refusal(ResponseCode.QUERY_NOT_FOUND)
            return missing if offset is None else reply(OffsetReply(offset))

        def end(command: Command) -> Command:
            return reply(OffsetReply(self.ends[queue_of(command)]))

        address = f"{broker}:1"
        self.servers.answer(address, PULL, pull)
        self.servers.answer(address, COMMIT, commit)
        self.servers.answer(address, RequestCode.QUERY_CONSUMER_OFFSET, progress)
        self.servers.answer(address, RequestCode.GET_MAX_OFFSET, end)
        self.servers.answer(address, RequestCode.GET_MIN_OFFSET, reply(OffsetReply(0)))

    def close(self, broker: str, error: RocketMQError | Command | None = None) -> None:
        """Make a broker stop answering."""
        for code in (
            *(PULL, COMMIT, RequestCode.QUERY_CONSUMER_OFFSET),
            *(RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET),
        ):
            address = f"{broker}:1"
            self.servers.answer(address, code, error or ConnectFailed(address, "away"))

    def assign(
        self,
        *what: str | QueueId,
        start: Start = "earliest",
        message_filter: Filter = EVERYTHING,
    ) -> None:
        self.servers.run(
            self.state.assign(
                what or ["orders"], start=start, message_filter=message_filter, deadline=200.0
            )
        )

    def fetch(self, pulls: int = 1) -> None:
        """Run each fetch flow for a number of pulls; remove those that have ended."""
        for fetching in list(self.flows):
            self._fetch(fetching, pulls)

    def _fetch(self, fetching: Fetching, pulls: int) -> None:
        made = len(self.servers.asked(PULL))
        while len(self.servers.asked(PULL)) - made < pulls or not fetching.is_calling:
            effect = fetching.effect
            if isinstance(effect, Wait) and not effect.signal.is_fired:
                return
            if not fetching.go_on(self.servers):
                self.flows.remove(fetching)
                return

    def poll(self, max_count: int = 100, *, timeout: float = 1.0) -> list[tuple[QueueId, int]]:
        deadline = self.servers.clock.now() + timeout
        messages = self.servers.run(poll(self.state, max_count, deadline))
        return [(message.queue, message.offset) for message in messages]

    def commit(self) -> dict[QueueId, int]:
        return dict(self.servers.run(self.state.commit(deadline=200.0)))


def offsets(queue: QueueId, numbers: Iterable[int]) -> list[tuple[QueueId, int]]:
    return [(queue, number) for number in numbers]


# ---- reading -------------------------------------------------------------------------------------


def test_reader_hands_out_what_its_queues_hold_in_order() -> None:
    world = World()
    world.ends.update({A0: 3, A1: 2})
    world.assign()
    world.fetch()
    assert world.poll() == offsets(A0, range(3)) + offsets(A1, range(2))


def test_reader_begins_with_the_next_queue_each_time() -> None:
    world = World()
    world.ends.update({A0: 4, A1: 4})
    world.assign()
    world.fetch()
    assert world.poll(3) == offsets(A0, range(3))
    assert world.poll(3) == offsets(A1, range(3))
    assert world.poll(3) == [(A0, 3), (A1, 3)]


def test_poll_waits_for_a_message_until_its_deadline() -> None:
    world = World()
    world.assign()
    assert world.poll(timeout=2.0) == []
    assert world.servers.clock.now() == 102.0


def test_reader_wakes_up_when_a_message_arrives() -> None:
    world = World()
    world.assign()
    world.fetch()

    def arrive() -> None:
        world.ends[A1] = 1
        world.fetch()

    world.servers.interpreter.on_wait = [lambda: None, arrive]
    assert world.poll() == []
    assert world.poll() == [(A1, 0)]


def test_reader_goes_on_waiting_when_another_one_was_faster() -> None:
    world = World()
    world.assign()
    world.fetch()

    def steal() -> None:
        world.ends[A1] = 1
        world.fetch()
        assert world.state.take(1)

    world.servers.interpreter.on_wait = [steal]
    assert world.poll() == []


def test_reader_waits_at_the_broker_and_allows_for_its_slow_clock() -> None:
    world = World()
    world.assign(A0)
    world.fetch()
    assert world.servers.fields(PULL)["suspendTimeoutMillis"] == "15000"


def test_reader_does_not_overrun_a_broker_that_holds_nothing_back() -> None:
    world = World(queues=1)
    world.assign()
    world.fetch(pulls=3)
    assert world.servers.interpreter.pauses == [0.05, 0.05, 0.05]


def test_reader_asks_again_at_once_when_the_broker_held_its_pull_back() -> None:
    world = World(queues=1)
    world.assign()

    def hold_back(command: Command) -> Command:
        world.servers.clock.seconds += 15.0
        return Command(19, PullReply(0, 0, 0, 0).to_fields())

    world.servers.answer("a:1", PULL, hold_back)
    world.fetch(pulls=3)
    assert world.servers.interpreter.pauses == []


def test_reader_fetches_no_more_than_may_be_buffered() -> None:
    world = World(batch_count=4, buffered_max=16)
    world.ends[A0] = 100
    world.assign()
    world.fetch(pulls=20)
    assert len(world.state.cursors[A0].buffer) == 8
    assert len(world.poll(6)) == 6
    world.fetch(pulls=20)
    assert world.poll(100) == offsets(A0, range(6, 12))


def test_reader_without_anything_to_read_says_so() -> None:
    world = World()
    with pytest.raises(OptionError, match="nothing is assigned"):
        world.poll()


def test_poll_ends_with_an_error_when_the_consumer_is_closed() -> None:
    world = World()
    world.assign()
    world.fetch()
    world.servers.interpreter.on_wait = [world.state.close]
    with pytest.raises(ClientClosed, match="group 'audit'"):
        world.poll()


def test_reader_that_is_closed_takes_nothing_on() -> None:
    world = World()
    flow = world.state.assign(
        ["orders"], start="earliest", message_filter=EVERYTHING, deadline=200.0
    )
    effect = next(flow)
    world.state.close()
    answer = world.servers.perform(effect)
    with pytest.raises(ClientClosed, match="group 'audit'"):
        world.servers.run(_from(flow, answer))
    assert (world.state.cursors, world.flows) == ({}, [])


def _from(flow: Flow[None], answer: object) -> Flow[None]:
    """Resume a flow that waits for an answer."""
    while True:
        answer = yield flow.send(answer)


def test_reader_that_waits_goes_on_when_everything_is_taken_from_it() -> None:
    world = World()
    world.assign()
    world.servers.interpreter.on_wait = [world.state.drop_all]
    assert world.poll() == []


# ---- where to begin ------------------------------------------------------------------------------


def test_latest_means_what_is_sent_after_it_was_asked_for() -> None:
    world = World()
    world.ends[A0] = 3
    world.assign(start="latest")
    world.ends[A0] = 4
    world.fetch()
    assert world.poll() == [(A0, 3)]


def test_assignment_takes_the_place_of_the_one_before() -> None:
    world = World()
    world.ends.update({A0: 1, A1: 1})
    world.assign()
    world.fetch()
    world.assign(A1)
    world.fetch(pulls=2)
    assert list(world.state.cursors) == [A1]
    assert world.poll() == [(A1, 0)]
    assert len(world.flows) == 1


def test_queue_that_is_named_twice_is_read_once() -> None:
    world = World()
    world.ends[A0] = 1
    world.assign("orders", A0)
    world.fetch()
    assert world.poll() == [(A0, 0)]


def test_expression_is_checked_before_anything_is_assigned() -> None:
    world = World()
    code = RequestCode.CHECK_CLIENT_CONFIG
    world.servers.answer("a:1", code, refusal(ResponseCode.SYSTEM_ERROR, "no SQL92 here"))
    with pytest.raises(ServerFailure, match="no SQL92 here"):
        world.assign(message_filter=by_sql("amount > 100"))
    assert world.state.cursors == {}


def test_expression_that_the_broker_understands_goes_with_each_pull() -> None:
    world = World()
    world.servers.answer("a:1", RequestCode.CHECK_CLIENT_CONFIG, reply())
    world.assign(A0, message_filter=by_sql("amount > 100"))
    world.fetch()
    fields = world.servers.fields(PULL)
    assert (fields["subscription"], fields["expressionType"]) == ("amount > 100", "SQL92")


def test_start_that_means_nothing_changes_nothing() -> None:
    world = World()
    world.assign(A0)
    with pytest.raises(OptionError, match="start=-5"):
        world.assign(A1, start=-5)
    assert list(world.state.cursors) == [A0]


def test_seek_forgets_what_was_fetched() -> None:
    world = World()
    world.ends[A0] = 5
    world.assign(A0)
    world.fetch()
    world.servers.run(world.state.seek(A0, 2, deadline=200.0))
    assert world.state.cursors[A0].position == 2
    world.fetch()
    assert world.poll() == offsets(A0, range(2, 5))


def test_seek_discards_messages_that_still_arrive_for_the_old_cursor() -> None:
    world = World()
    world.ends[A0] = 5
    world.assign(A0)
    (stale,) = world.flows
    assert stale.is_calling
    world.servers.run(world.state.seek(A0, 4, deadline=200.0))
    world.fetch()
    world.fetch()
    assert stale not in world.flows
    assert world.poll() == [(A0, 4)]


def test_seek_in_a_queue_that_is_not_assigned_is_refused() -> None:
    world = World()
    world.assign(A0)
    with pytest.raises(OptionError, match="is not assigned"):
        world.servers.run(world.state.seek(A1, 0, deadline=200.0))


def test_reader_goes_on_where_the_queue_begins_when_its_offset_has_gone() -> None:
    world = World()
    world.ends[A0] = 2
    world.assign(A0, start=7)
    world.fetch()
    assert world.state.cursors[A0].moves == 1
    world.ends[A0] = 3
    world.fetch()
    assert world.poll() == [(A0, 2)]
    world.servers.run(world.state.seek(A0, 0, deadline=200.0))
    assert world.state.cursors[A0].moves == 1


def test_queues_that_a_topic_gets_later_are_read_from_their_beginning() -> None:
    world = World(queues=1)
    world.assign(start="latest")
    world.servers.answer_route("orders", route("ab", queues=1))
    world.open("b")
    world.ends[B0] = 2
    world.servers.run(refresh_all(world.servers.core))
    assert world.poll() == []  # adds the new queues
    world.fetch()
    assert world.poll() == offsets(B0, range(2))
    flows = len(world.flows)
    world.poll()
    assert len(world.flows) == flows


def test_queues_stay_assigned_when_the_route_is_gone() -> None:
    world = World(queues=1)
    world.assign()
    world.servers.core.routes.forget("orders")
    assert world.poll() == []
    assert list(world.state.cursors) == [A0]


# ---- when brokers fail ---------------------------------------------------------------------------


def test_broker_that_is_away_does_not_block_other_queues() -> None:
    world = World("ab", queues=1)
    world.ends.update({A0: 1, B0: 1})
    world.assign()
    world.close("a")
    world.fetch()
    assert world.poll() == [(B0, 0)]
    assert world.poll() == []
    assert list(world.state.failures()) == [A0]


def test_broker_that_comes_back_is_read_again() -> None:
    world = World(queues=1)
    world.ends[A0] = 1
    world.assign()
    world.close("a")
    world.fetch(pulls=2)
    world.open("a")
    world.fetch()
    assert world.state.failures() == {}
    assert world.poll() == [(A0, 0)]


def test_failure_of_a_queue_is_reported_once_and_its_end_once() -> None:
    world = World(queues=1)
    world.assign()
    world.close("a")
    world.fetch(pulls=3)
    world.open("a")
    world.fetch(pulls=3)
    assert world.reports == [(A0, False), (A0, True)]


def test_pauses_between_failed_pulls_grow_to_a_limit() -> None:
    world = World(queues=1)
    world.assign()
    world.close("a")
    world.fetch(pulls=8)
    assert world.servers.interpreter.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0]


def test_pauses_between_failed_pulls_are_options() -> None:
    world = World(queues=1, retry_backoff=1.0, retry_backoff_max=3.0)
    world.assign()
    world.close("a")
    world.fetch(pulls=4)
    assert world.servers.interpreter.pauses == [1.0, 2.0, 3.0, 3.0]


def test_failed_pull_asks_where_the_broker_is_now() -> None:
    world = World(queues=1)
    world.assign()
    world.close("a")
    moved = route("a", queues=1)
    moved.broker_datas[0].broker_addrs = {0: "b:1"}
    world.servers.answer_route("orders", moved)
    world.fetch(pulls=2)
    assert world.servers.asked(PULL) == ["a:1", "b:1"]


def test_failed_pull_is_tried_again_though_no_name_server_answers() -> None:
    world = World(queues=1)
    world.assign()
    world.close("a")
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    world.servers.answer("ns:9876", code, ConnectFailed("ns:9876", "away"))
    world.fetch(pulls=2)
    assert world.servers.asked(PULL) == ["a:1", "a:1"]


def test_caller_that_gives_up_when_messages_arrive_has_taken_none() -> None:
    world = World(queues=1)
    world.assign()
    assert world.state.begin_poll(10) == []
    world.ends[A0] = 2
    world.fetch()
    assert world.servers.run(world.state.wait_for_messages(200.0))
    assert world.state.positions() == {A0: 0}
    assert world.poll() == offsets(A0, range(2))


def test_reader_fails_at_the_deadline_when_all_brokers_are_away() -> None:
    world = World(queues=1)
    world.assign()
    world.close("a")
    world.fetch()
    world.fetch()
    now = world.servers.clock.now()
    with pytest.raises(ConnectFailed, match="a:1: away"):
        world.poll(timeout=2.0)
    assert world.servers.clock.now() == now + 2.0


def test_reader_fails_at_once_when_trying_again_cannot_help() -> None:
    world = World(queues=1)
    world.assign()
    world.close("a", refusal(ResponseCode.NO_PERMISSION))
    world.fetch(pulls=2)
    now = world.servers.clock.now()
    with pytest.raises(NoPermission, match="a:1"):
        world.poll(timeout=2.0)
    assert world.servers.clock.now() == now


def test_assignment_survives_a_broker_that_is_away_and_finds_its_start_later() -> None:
    world = World("ab", queues=1)
    world.ends.update({A0: 1, B0: 1})
    world.close("b")
    world.assign()
    assert list(world.state.failures()) == [B0]
    assert world.state.cursors[B0].position is None
    world.open("b")
    world.fetch()
    assert world.poll() == [(A0, 0), (B0, 0)]


def test_assignment_fails_when_all_brokers_are_away() -> None:
    world = World("ab", queues=1)
    for broker in "ab":
        world.close(broker)
    with pytest.raises(ConnectFailed, match="a:1: away"):
        world.assign()


def test_assignment_of_an_unknown_topic_fails() -> None:
    world = World()
    world.servers.answer_route("orders", None)
    with pytest.raises(RouteNotFound, match="'orders'"):
        world.assign()


# ---- progress ------------------------------------------------------------------------------------


def test_commit_records_what_was_handed_out_and_not_what_was_fetched() -> None:
    world = World()
    world.ends.update({A0: 5, A1: 1})
    world.assign()
    world.fetch()
    world.poll(2)
    assert world.commit() == {A0: 2, A1: 0}
    assert world.committed == {A0: 2, A1: 0}


def test_commit_leaves_out_what_has_not_changed() -> None:
    world = World()
    world.ends.update({A0: 5, A1: 1})
    world.assign()
    world.fetch()
    world.poll(2)
    world.commit()
    assert world.commit() == {}
    world.poll(1)
    assert world.commit() == {A1: 1}


def test_commit_skips_the_offset_that_the_group_had() -> None:
    world = World()
    world.committed[A0] = 3
    world.assign(A0, start="committed")
    assert world.commit() == {}


def test_commit_after_a_seek_records_the_new_place_once() -> None:
    world = World()
    world.ends[A0] = 5
    world.assign(A0)
    world.commit()
    world.servers.run(world.state.seek(A0, 3, deadline=200.0))
    assert world.commit() == {A0: 3}
    assert world.commit() == {}


def test_commit_that_fails_in_part_repeats_only_the_rest() -> None:
    world = World("ab", queues=1)
    world.assign(start=1)
    world.close("a")
    with pytest.raises(ConnectFailed, match="a:1"):
        world.commit()
    assert world.committed == {B0: 1}
    world.open("a")
    assert world.commit() == {A0: 1}


def test_commit_passes_over_a_queue_whose_place_is_not_known() -> None:
    world = World("ab", queues=1)
    world.close("b")
    world.assign()
    assert world.commit() == {A0: 0}


def test_positions_are_those_of_the_next_messages() -> None:
    world = World("ab", queues=1)
    world.ends[A0] = 5
    world.close("b")
    world.assign(start="latest")
    assert world.state.positions() == {A0: 5, B0: None}


def test_lag_counts_what_was_not_handed_out() -> None:
    world = World()
    world.ends.update({A0: 5, A1: 1})
    world.assign()
    world.fetch()
    world.poll(2)
    assert world.servers.run(world.state.lag(deadline=200.0)) == {A0: 3, A1: 1}


def test_lag_fails_with_the_broker_that_fails() -> None:
    world = World()
    world.assign()
    world.close("a")
    with pytest.raises(ConnectFailed, match="a:1"):
        world.servers.run(world.state.lag(deadline=200.0))


def test_lag_of_a_queue_that_was_dropped_meanwhile_is_all_of_it() -> None:
    world = World()
    world.ends[A0] = 5
    world.assign(A0, start=2)
    flow = world.state.lag(deadline=200.0)
    effect = next(flow)
    assert isinstance(effect, Gather)
    ends = world.servers.perform(effect)
    world.state.drop_all()
    with pytest.raises(StopIteration) as finished:
        flow.send(ends)
    assert finished.value.value == {A0: 5}


def test_reader_refuses_a_group_that_is_no_name() -> None:
    servers = FakeServers()
    with pytest.raises(OptionError, match="au dit"):
        ConsumerCore(servers.core, "au dit", PullOptions(), lambda _: None, lambda *_: None)


def test_fetching_ends_when_its_cursor_was_dropped() -> None:
    world = World()
    world.assign()
    world.fetch()
    world.state.drop_all()
    world.fetch(pulls=2)
    assert world.flows == []


def test_fetching_that_fails_after_its_cursor_was_dropped_is_not_reported() -> None:
    world = World()
    world.assign()
    world.state.drop_all()
    world.close("a")
    world.fetch(pulls=2)
    assert (world.flows, world.reports) == ([], [])


def test_fetching_that_waits_for_room_ends_when_its_cursor_was_dropped() -> None:
    world = World(batch_count=4, buffered_max=4)
    world.ends[A0] = 100
    world.assign(A0)
    world.fetch(pulls=2)
    world.state.drop_all()
    world.fetch(pulls=2)
    assert world.flows == []
