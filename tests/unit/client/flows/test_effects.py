"""Signals."""

from __future__ import annotations

from downrange.client.flows.effects import Signal


def test_a_signal_calls_every_listener_once() -> None:
    signal, woken = Signal(), list[str]()
    signal.listen(lambda: woken.append("first"))
    signal.listen(lambda: woken.append("second"))
    assert not signal.is_fired
    signal.fire()
    signal.fire()
    assert signal.is_fired
    assert woken == ["first", "second"]


def test_a_signal_that_has_fired_wakes_a_listener_at_once() -> None:
    signal, woken = Signal(), list[bool]()
    signal.fire()
    signal.listen(lambda: woken.append(True))
    assert woken == [True]


def test_a_listener_that_went_away_is_not_woken() -> None:
    signal, woken = Signal(), list[bool]()

    def listener() -> None:
        woken.append(True)

    signal.listen(listener)
    signal.unlisten(listener)
    signal.unlisten(listener)  # no error
    signal.fire()
    assert not woken


def test_a_listener_may_listen_for_the_next_signal_while_it_is_woken() -> None:
    signal, again, woken = Signal(), Signal(), list[str]()
    signal.listen(lambda: again.listen(lambda: woken.append("again")))
    signal.fire()
    again.fire()
    assert woken == ["again"]
