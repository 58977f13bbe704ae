"""Which half messages are ended."""

from __future__ import annotations

from downrange.server.broker.transactions.ended_halves import EndedHalves


def test_a_half_is_open_until_an_op_record_names_it() -> None:
    ended = EndedHalves(10)
    assert ended.is_open(12)
    ended.end([12])
    assert not ended.is_open(12)
    assert ended.is_open(11)
    assert ended.is_open(13)


def test_halves_before_the_first_are_ended() -> None:
    assert not EndedHalves(10).is_open(9)


def test_the_next_open_half_is_found_behind_ended_ones() -> None:
    ended = EndedHalves(10)
    ended.end([10, 11, 13])
    assert [ended.next_open(offset) for offset in (0, 10, 12, 13, 20)] == [12, 12, 12, 14, 20]


def test_the_first_passes_ended_halves_only() -> None:
    ended = EndedHalves(10, 100)
    ended.end([10])
    ended.end([12])
    ended.begin_end(11)
    ended.advance()
    assert (ended.first, ended.first_op) == (11, 101)


def test_a_half_that_is_being_ended_is_neither_open_nor_passed_until_it_is_released() -> None:
    ended = EndedHalves()
    ended.begin_end(0)
    ended.advance()
    assert not ended.is_open(0)
    assert ended.first == 0
    ended.cancel_end(0)
    assert ended.is_open(0)


def test_an_op_record_is_needed_as_long_as_the_highest_half_that_it_names() -> None:
    ended = EndedHalves()
    ended.end([0, 2])
    ended.advance()
    assert (ended.first, ended.first_op) == (1, 0)
    ended.end([1])
    ended.advance()
    assert (ended.first, ended.first_op) == (3, 2)


def test_an_op_record_that_names_nothing_new_is_passed() -> None:
    ended = EndedHalves(5)
    ended.end([])
    ended.end([3])
    ended.advance()
    assert (ended.first, ended.first_op) == (5, 2)


def test_a_half_that_is_skipped_is_passed_without_an_op_record() -> None:
    ended = EndedHalves()
    ended.skip(0)
    ended.advance()
    assert (ended.first, ended.first_op) == (1, 0)


def test_halves_that_are_gone_from_the_store_are_dropped() -> None:
    ended = EndedHalves()
    ended.end([3])
    ended.drop_before(2)
    ended.drop_before(1)
    assert ended.first == 2
    assert ended.is_open(2)
    assert not ended.is_open(3)
