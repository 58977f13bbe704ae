from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.poll_core import PollCore
from downrange.client.flows.consuming.subscriptions import filters_of
from downrange.client.flows.effects import Wait
from downrange.client.flows.hooks import Hooks
from downrange.errors import ClientClosed, ConnectionLost, OptionError
from downrange.model import QueueId, QueueOffset
from downrange.options.consumers import ConsumerOptions
from downrange.wire.bodies import GroupMembersBody, LockedQueuesBody, LockQueuesBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.headers import OffsetReply
from tests.unit.client.flows.consuming.polling import poll
from tests.unit.client.flows.fake_servers import FakeServers, record, reply, route

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.effects import Flow
    from downrange.model import ReceivedMessage
    from downrange.wire.command import Command

A0, A1 = (QueueId("orders", "a", number) for number in range(2))
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
MAX = RequestCode.GET_MAX_OFFSET


class Polls:
    """A subscribed pull consumer with the queues A0 and A1, in which it is at offset 7."""

    def __init__(self, *, is_auto_commit: bool = True) -> None:
        self.servers = FakeServers()
        self.spawned: list[Flow[None]] = []
        self.committed: dict[int, int] = defaultdict(int)
        self.servers.answer_route("orders", route("a"))
        answers: dict[RequestCode, Any] = {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: reply(
                body=GroupMembersBody(consumer_id_list=["10.0.0.1@7"])
            ),
            RequestCode.LOCK_BATCH_MQ: lambda command: reply(
                body=LockedQueuesBody(locked=decode_body(LockQueuesBody, command.body).mq_set)
            ),
            RequestCode.QUERY_CONSUMER_OFFSET: reply(OffsetReply(7)),
            MAX: reply(OffsetReply(20)),
            COMMIT: self.commit,
        }
        for code in (
            *(RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.UNLOCK_BATCH_MQ),
            RequestCode.CHECK_CLIENT_CONFIG,
        ):
            answers[code] = reply()
        for code, answer in answers.items():
            self.servers.answer("a:1", code, answer)
        options = ConsumerOptions(check_subscriptions=False)
        self.core = PollCore(
            self.servers.core,
            "jobs",
            options,
            Hooks(),
            self.spawned.append,
            is_auto_commit=is_auto_commit,
        )
        self.run(self.core.enter(filters_of("orders"), self.now + 3))

    @property
    def now(self) -> float:
        return self.servers.clock.seconds

    @property
    def on_wait(self) -> list[Callable[[], object]]:
        return self.servers.interpreter.on_wait

    def commit(self, command: Command) -> Command:
        self.committed[int(command.fields["queueId"])] = int(command.fields["commitOffset"])
        return reply()

    def run(self, flow: Flow[Any]) -> Any:
        return self.servers.run(flow)

    def fill(self, queue: QueueId, count: int) -> None:
        """Put messages into a window, as its loop does."""
        from downrange.client.flows.consuming.pull import read_messages

        window = self.core.member.windows[queue]
        first = window.next_offset
        data = b"".join(
            record("orders", first + number, queue=queue.number) for number in range(count)
        )
        messages = read_messages(self.servers.core, data, "a")
        window.add(messages, QueueOffset(first + count))
        self.core.member.arrived(window)

    def poll(self, max_count: int = 10, seconds: float = 1.0) -> list[tuple[int, int]]:
        found: list[ReceivedMessage] = self.run(poll(self.core, max_count, self.now + seconds))
        return [(message.queue.number, message.offset) for message in found]

    def save(self) -> dict[QueueId, QueueOffset]:
        found: dict[QueueId, QueueOffset] = self.run(self.core.commit(deadline=self.now + 3))
        return found


def test_a_poll_takes_from_all_queues_in_turn() -> None:
    polls = Polls()
    polls.fill(A0, 3)
    polls.fill(A1, 1)
    assert polls.poll(2) == [(0, 7), (0, 8)]
    assert polls.poll() == [(1, 7), (0, 9)]
    assert polls.core.member.counts.handled == 2
    assert polls.poll() == []
    assert polls.core.member.counts.handled == 4


def test_a_poll_waits_for_messages() -> None:
    polls = Polls()
    polls.on_wait[:] = [lambda: polls.core.member.arrived(polls.core.member.windows[A0])]
    assert polls.poll() == []
    polls.on_wait[:] = [lambda: polls.fill(A1, 1)]
    assert polls.poll() == [(1, 7)]


def test_a_caller_that_gives_up_when_messages_arrive_has_taken_none() -> None:
    polls = Polls()
    assert polls.core.begin_poll(10) == []
    waiting = polls.core.wait_for_messages(polls.now + 1)
    next(waiting)
    polls.fill(A0, 2)
    with pytest.raises(StopIteration):
        waiting.send(True)
    polls.run(polls.core.commit(deadline=polls.now + 3))
    assert polls.committed == {}
    assert polls.core.positions() == {A0: 7, A1: 7}
    assert polls.poll() == [(0, 7), (0, 8)]


def test_a_poll_waits_on_if_another_one_has_taken_the_messages() -> None:
    polls = Polls()
    polls.fill(A0, 1)
    assert polls.run(polls.core.wait_for_messages(polls.now + 1))
    assert polls.poll() == [(0, 7)]
    assert polls.core.take(10) == []
    assert isinstance(next(polls.core.wait_for_messages(polls.now + 1)), Wait)


def test_a_poll_does_not_wait_if_messages_arrive_before_the_wait_begins() -> None:
    """In threads, another one may take a step in between."""
    polls = Polls()
    assert polls.core.begin_poll(10) == []
    polls.fill(A0, 1)
    assert polls.run(polls.core.wait_for_messages(polls.now + 1))
    assert polls.poll(seconds=0) == [(0, 7)]


def test_a_start_that_is_given_up_leaves_the_group() -> None:
    polls = Polls()
    consumers = polls.servers.core.consumers
    polls.core._spawn = polls.run
    assert list(consumers) == ["jobs"]
    polls.run(polls.core.undo_enter())
    assert not consumers
    assert polls.servers.asked(RequestCode.UNREGISTER_CLIENT) == ["a:1"]
    polls.run(polls.core.undo_enter())
    assert polls.servers.asked(RequestCode.UNREGISTER_CLIENT) == ["a:1"]


def test_what_a_poll_returned_is_done_with_the_next_one() -> None:
    polls = Polls()
    polls.fill(A0, 2)
    window = polls.core.member.windows[A0]
    polls.poll()
    assert window.position == 7
    polls.poll()
    assert window.position == 9
    assert len(polls.core.background()) == 4
    assert len(Polls(is_auto_commit=False).core.background()) == 3


def test_a_commit_counts_what_was_returned() -> None:
    polls = Polls(is_auto_commit=False)
    polls.fill(A0, 2)
    polls.poll()
    assert polls.save() == {A0: 9}
    assert polls.committed == {0: 9}
    assert polls.save() == {}
    polls.fill(A0, 1)
    polls.poll()
    error = ConnectionLost("a:1", "cut")
    polls.servers.answer("a:1", COMMIT, error)
    with pytest.raises(ConnectionLost):
        polls.save()


def test_closing_ends_a_poll_and_returns_the_last_messages_again() -> None:
    polls = Polls()
    polls.fill(A0, 2)
    polls.poll(1)
    polls.run(polls.core.exit(polls.now + 3))
    assert polls.committed == {}
    with pytest.raises(ClientClosed):
        polls.poll()


def test_a_queue_that_goes_waits_for_the_next_poll_and_is_committed() -> None:
    polls = Polls()
    polls.fill(A0, 2)
    polls.poll()
    window = polls.core.member.windows[A0]
    polls.run(polls.core.member.release([window]))
    assert not window.idle.is_fired
    polls.fill(A1, 1)
    assert polls.poll() == [(1, 7)]
    assert window.idle.is_fired
    polls.run(polls.spawned.pop())
    assert polls.committed == {0: 9}
    assert list(polls.core.member.windows) == [A1]
    assert polls.core.positions() == {A1: 8}


def test_a_program_that_does_not_poll_delays_the_next_owner_up_to_a_limit() -> None:
    polls = Polls()
    polls.fill(A0, 2)
    polls.poll()
    polls.run(polls.core.member.release([polls.core.member.windows[A0]]))
    started = polls.now
    polls.run(polls.spawned.pop())
    assert polls.now - started == polls.core.member.options.handover_timeout
    assert polls.committed == {}  # they are not done: the next owner gets them, too
    polls.poll()
    assert polls.core.member.buffer.count == 0


def test_a_revoked_queue_can_be_committed_by_hand() -> None:
    polls = Polls(is_auto_commit=False)
    polls.fill(A0, 2)
    polls.poll()
    polls.core.member.on_revoked = lambda queues: polls.save()
    polls.run(polls.core.member.release([polls.core.member.windows[A0]]))
    polls.run(polls.spawned.pop())
    assert polls.committed == {0: 9}


def test_seek_drops_what_was_returned_and_what_waits() -> None:
    polls = Polls()
    polls.fill(A0, 4)
    polls.fill(A1, 1)
    polls.poll(2)
    polls.run(polls.core.seek(A0, 3, deadline=polls.now + 3))
    assert polls.core.position_of(A0) == 3
    polls.fill(A0, 1)
    assert polls.poll() == [(1, 7), (0, 3)]
    polls.poll()
    polls.save()
    assert polls.committed == {0: 4, 1: 8}
    assert polls.core.member.buffer.count == 0


def test_seek_keeps_what_was_returned_of_other_queues() -> None:
    polls = Polls()
    polls.fill(A0, 1)
    polls.fill(A1, 1)
    polls.poll()
    polls.run(polls.core.seek(A1, "latest", deadline=polls.now + 3))
    assert polls.save() == {A0: 8, A1: 20}


def test_paused_queues_return_nothing() -> None:
    polls = Polls()
    polls.core.pause([A0], is_paused=True)
    polls.fill(A0, 1)
    polls.fill(A1, 1)
    assert polls.poll() == [(1, 7)]
    polls.core.pause([A0], is_paused=False)
    assert polls.poll() == [(0, 7)]


def test_queues_of_others_are_refused() -> None:
    polls = Polls()
    other = QueueId("orders", "b", 0)
    with pytest.raises(OptionError, match="is not assigned to this member of group 'jobs' now"):
        polls.core.pause([other], is_paused=True)
    polls.core.member.windows[A0].stop()
    with pytest.raises(OptionError):
        polls.run(polls.core.seek(A0, 0, deadline=polls.now + 3))
    with pytest.raises(OptionError):
        polls.core.position_of(A0)


def test_pulls_that_all_fail_are_an_error_of_the_poll() -> None:
    polls = Polls()
    error = ConnectionLost("a:1", "cut")
    first, second = polls.core.member.windows.values()
    first.failure = error
    assert polls.core.failures() == {A0: error}
    assert polls.poll() == []
    second.failure = error
    with pytest.raises(ConnectionLost):
        polls.poll()


def test_lag_counts_what_was_not_returned() -> None:
    polls = Polls()
    polls.fill(A0, 3)
    polls.poll(1)
    assert polls.run(polls.core.lag(deadline=polls.now + 3)) == {A0: 12, A1: 13}
    assert polls.core.positions() == {A0: 8, A1: 7}
    polls.servers.answer("a:1", MAX, ConnectionLost("a:1", "cut"))
    with pytest.raises(ConnectionLost):
        polls.run(polls.core.lag(deadline=polls.now + 3))


def test_lag_leaves_out_a_queue_that_went_meanwhile() -> None:
    polls = Polls()

    def go(command: Command) -> Command:
        polls.core.member.windows.pop(A0, None)
        return reply(OffsetReply(20))

    polls.servers.answer("a:1", MAX, go)
    assert polls.run(polls.core.lag(deadline=polls.now + 3)) == {A1: 13}


def test_a_pause_of_all_queues_holds_for_those_that_come_later() -> None:
    polls = Polls()
    member = polls.core.member
    polls.core.pause_all(is_paused=True)
    member._remove(member.windows[A0])
    polls.run(member.take_queues())
    polls.fill(A0, 1)
    polls.fill(A1, 1)
    assert polls.poll() == []
    polls.core.pause([A1], is_paused=False)
    assert polls.poll() == [(1, 7)]
    member.windows[A1].stop()  # it goes to another member: that is no error
    polls.core.pause_all(is_paused=False)
    assert polls.poll() == [(0, 7)]
    member._remove(member.windows[A0])
    polls.run(member.take_queues())
    assert not member.windows[A0].is_paused
