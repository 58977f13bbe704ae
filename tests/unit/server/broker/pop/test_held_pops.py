"""The table of held pops: order, limits, times, and that nothing is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.server.broker.pop import held_pops
from downrange.server.broker.pop.held_pops import HeldPop, HeldPops
from downrange.server.outputs import Peer

if TYPE_CHECKING:
    import pytest

PLACE = ("T", "G")


def a_pop(place: tuple[str, str] = PLACE, until_ms: int = 100, connection: int = 1) -> HeldPop:
    peer = Peer(connection, "10.0.0.1:1")
    return HeldPop(place, -1, peer, until_ms, lambda _: None, lambda _: ())


def hold(pops: HeldPops, pop: HeldPop) -> HeldPop:
    assert pops.hold(pop, [pop.place[0], f"%RETRY%{pop.place[1]}_{pop.place[0]}"])
    return pop


def is_empty(pops: HeldPops) -> bool:
    """Whether nothing of any pop is left, apart from times that are removed later."""
    tables = (pops._places, pops._by_topic, pops._topics, pops._by_connection, pops._counts)
    return not any(tables) and not pops._wake_ms and not pops._line and len(pops) == 0


def test_order_of_arrival_and_removal() -> None:
    pops = HeldPops()
    held = [hold(pops, a_pop()) for _ in range(3)]
    assert pops.at(PLACE) == held
    assert pops.count(PLACE, -1) == 3
    assert pops.places_of("T") == pops.places_of("%RETRY%G_T") == [PLACE]
    assert pops.places_of("U") == []
    pops.remove(held[1])
    assert pops.at(PLACE) == [held[0], held[2]]
    assert pops.all() == [held[0], held[2]]
    assert is_empty(pops)
    assert pops.at(PLACE) == []


def test_several_places_of_a_topic() -> None:
    pops = HeldPops()
    first, second = hold(pops, a_pop()), hold(pops, a_pop(("T", "H")))
    assert pops.places_of("T") == [PLACE, ("T", "H")]
    pops.remove(first)
    assert pops.places_of("T") == [("T", "H")]
    pops.remove(second)
    assert is_empty(pops)


def test_times() -> None:
    pops = HeldPops()
    late, early = hold(pops, a_pop(until_ms=200)), hold(pops, a_pop(until_ms=100))
    gone = hold(pops, a_pop(until_ms=50))
    pops.remove(gone)
    assert pops.expired(99) == []
    assert pops.expired(100) == [early]
    assert pops.expired(1000) == [late]
    assert is_empty(pops)


def test_connections() -> None:
    pops = HeldPops()
    hold(pops, a_pop(connection=1))
    stays = hold(pops, a_pop(connection=2))
    pops.drop_connection(1)
    pops.drop_connection(7)
    assert pops.all() == [stays]
    assert is_empty(pops)


def test_places_are_woken_once_at_the_earliest_time() -> None:
    pops = HeldPops()
    pops.wake_at(PLACE, 5)  # nothing waits there
    assert pops.woken(5) == []
    pop = hold(pops, a_pop())
    for wake_ms in (30, 10, 20):
        pops.wake_at(PLACE, wake_ms)
    assert pops.woken(9) == []
    assert pops.woken(10) == [PLACE]
    assert pops.woken(100) == []
    pops.wake_all(50)
    assert pops.woken(50) == [PLACE]
    pops.wake_at(PLACE, 60)
    pops.remove(pop)
    assert is_empty(pops)


def test_places_of_the_line_have_their_turn_once_in_each_tick() -> None:
    pops = HeldPops()
    pops.search_on(PLACE)  # nothing waits there
    assert not pops.is_searching(PLACE)
    places = [PLACE, ("T", "H"), ("T", "I")]
    held = [hold(pops, a_pop(place)) for place in places]
    for place in (*places, PLACE):
        pops.search_on(place)
    assert pops.is_behind(0)
    pops.remove(held[2])
    for _ in range(2):
        turns: list[tuple[str, str]] = []
        for place in pops.turns():
            turns.append(place)
            assert not pops.is_searching(place)
            pops.search_on(place)
        assert turns == places[:2]
    assert pops.all() == held[:2]
    assert is_empty(pops)
    assert not pops.is_behind(0)


def test_turns_end_when_the_comparisons_of_a_tick_are_made() -> None:
    pops = HeldPops()
    for place in (PLACE, ("T", "H")):
        hold(pops, a_pop(place))
        pops.search_on(place)
    for place in pops.turns():
        assert place == PLACE
        pops.comparisons_left = 0
        pops.search_on(place)
    assert list(pops.turns()) == []
    pops.comparisons_left = 1
    assert list(pops.turns()) == [("T", "H"), PLACE]


def test_times_of_removed_pops_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pops, "_REMOVED_MAX", 10)
    pops = HeldPops()
    stays = hold(pops, a_pop(until_ms=1_000))
    for _ in range(100):
        pops.remove(hold(pops, a_pop(until_ms=999)))
    assert len(pops._times) <= 2 * 2 + 10 + 1
    assert pops.expired(2_000) == [stays]
