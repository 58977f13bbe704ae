from __future__ import annotations

from struct import pack, unpack_from

from downrange.server.broker.scheduled.timer_handover import TimerHandover
from tests.unit.server.broker.delivery_stage import START_MS, DeliveryStage


def check_of(until_ms: int, read: int) -> bytes:
    """Return the file as Apache writes it."""
    return pack(">qqqqqq", until_ms, 208, read, read, 0, until_ms + 341).ljust(4096, b"\x00")


def test_what_apache_delivered_is_not_delivered_again() -> None:
    world = DeliveryStage()
    world.put("waits", TIMER_DELAY_SEC="60")
    world.put("delivered", TIMER_DELAY_SEC="1")
    world.put("not in its wheel yet", TIMER_DELAY_SEC="1")
    TimerHandover(world.state.timers).load(check_of(START_MS + 2_000, 2))
    world.tick(3_000)
    assert world.bodies() == ["not in its wheel yet"]
    world.tick(60_000)
    assert world.bodies() == ["not in its wheel yet", "waits"]


def test_apache_gets_an_offset_before_everything_that_waits() -> None:
    world = DeliveryStage()
    for seconds in ("1", "60", "2"):
        world.put(seconds, TIMER_DELAY_SEC=seconds)
    world.tick(2_500)
    data = TimerHandover(world.state.timers).dump()
    assert len(data) == 4096
    assert unpack_from(">qqqq", data) == (START_MS + 2_000, 0, 1, 1)


def test_apache_gets_the_front_of_the_queue_before_it_is_read() -> None:
    timers = DeliveryStage().state.timers
    handover = TimerHandover(timers)
    handover.load(check_of(START_MS, 5))
    assert unpack_from(">qqqq", handover.dump()) == (START_MS, 0, 0, 0)


def test_own_progress_counts_where_it_is_newer() -> None:
    world = DeliveryStage()
    world.put("1", TIMER_DELAY_SEC="1")
    world.tick(1_500)
    handover = TimerHandover(world.state.timers)
    before = world.state.timers.dump()
    handover.load(handover.dump())
    assert world.state.timers.dump() == before


def test_file_that_is_cut_off_is_ignored() -> None:
    timers = DeliveryStage().state.timers
    before = timers.dump()
    TimerHandover(timers).load(b"\x7f" * 31)
    assert timers.dump() == before


def test_version_is_that_of_the_messages() -> None:
    world = DeliveryStage()
    handover = TimerHandover(world.state.timers)
    before = handover.version
    world.put("later", TIMER_DELAY_SEC="1")
    world.tick()
    assert handover.version > before
