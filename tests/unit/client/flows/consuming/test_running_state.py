from __future__ import annotations

from downrange.client.flows.consuming.running_state import running_state
from downrange.model import QueueOffset
from downrange.options.consumers import LOCK_TRUST
from tests.unit.client.flows.consuming.test_pop_member import A0, World


def test_the_state_of_a_member() -> None:
    world = World().enter().fill(3)
    world.take()
    state = running_state(world.member)
    queue = state.mq_table[A0]
    assert (queue.cached_msg_count, queue.transaction_msg_count) == (3, 1)
    assert (queue.cached_msg_min_offset, queue.cached_msg_max_offset) == (0, 2)
    assert (queue.transaction_msg_min_offset, queue.transaction_msg_max_offset) == (0, 0)
    assert (queue.commit_offset, queue.locked, queue.last_lock_timestamp) == (3, False, 0)
    assert queue.last_pull_timestamp == world.servers.clock.wall_ms()
    assert queue.last_consume_timestamp == 0
    assert list(state.status_table) == ["orders"]
    assert {body.topic for body in state.subscription_set} >= {"orders"}
    assert state.user_consumer_info["mode"] == "pop"
    assert state.encode()


def test_times_are_times_of_the_day() -> None:
    world = World().enter().fill(1)
    world.push.finish(world.take())
    window = world.window
    window.committed = QueueOffset(1)
    window.locked_until = world.now + LOCK_TRUST
    wall_ms = world.servers.clock.wall_ms()
    world.servers.clock.seconds += 2
    queue = running_state(world.member).mq_table[A0]
    now_ms = world.servers.clock.wall_ms()
    assert queue.last_lock_timestamp == now_ms - 2000
    assert queue.last_consume_timestamp == now_ms - 2000
    assert wall_ms <= now_ms
    assert (queue.locked, queue.commit_offset, queue.cached_msg_count) == (True, 1, 0)


def test_the_messages_of_a_run_before_its_last_one_are_done() -> None:
    world = World().enter().fill(6)
    delivery = world.window.take_run(5, world.now)
    assert delivery is not None
    assert delivery.rest is not None
    for _ in range(3):
        delivery.messages.append(delivery.rest.popleft())
    queue = running_state(world.member).mq_table[A0]
    assert (queue.cached_msg_min_offset, queue.transaction_msg_count) == (2, 1)


def test_a_message_that_is_tried_again_later_is_not_done() -> None:
    world = World().enter().fill(2)
    delivery = world.take()
    world.window.end(delivery, world.now)
    world.window.postpone(delivery.messages[0], world.now + 5)
    queue = running_state(world.member).mq_table[A0]
    assert (queue.cached_msg_min_offset, queue.transaction_msg_count) == (0, 0)
