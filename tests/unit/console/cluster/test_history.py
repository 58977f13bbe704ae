from __future__ import annotations

from downrange.console.cluster.history import COLUMNS, History


def test_points_are_kept_for_their_time_only() -> None:
    history = History(2.0, recent=10.0, day=100.0, day_step=20.0)
    for second in range(0, 200, 2):
        history.add(1000.0 + second, {"sent": float(second)})
    recent = history.recent()
    assert recent.times == tuple(1188.0 + second for second in range(0, 12, 2))
    assert recent.columns["sent"] == tuple(188.0 + second for second in range(0, 12, 2))
    assert recent.columns["lag"] == (None,) * 6
    day = history.day()
    assert day.step == 20.0
    assert day.times == (1060.0, 1080.0, 1100.0, 1120.0, 1140.0, 1160.0, 1180.0)
    assert set(day.columns) == set(COLUMNS)


def test_a_coarse_point_is_the_mean_of_what_is_known() -> None:
    history = History(1.0, day_step=10.0)
    for second, sent in ((0, 4.0), (1, None), (2, 8.0), (10, None), (11, 3.0)):
        history.add(100.0 + second, {"sent": sent})
    assert history.day().times == (100.0, 110.0)
    assert history.day().columns["sent"] == (6.0, 3.0)


def test_a_clock_that_is_set_back_adds_no_point() -> None:
    history = History(1.0)
    history.add(100.0, {"sent": 1.0})
    history.add(99.0, {"sent": 2.0})
    history.add(101.0, {"sent": 3.0})
    assert history.recent().times == (100.0, 101.0)


def test_a_new_history_is_empty() -> None:
    history = History(1.0)
    assert (history.recent().times, history.day().times) == ((), ())
