from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.admin.clusters import BrokerFacts
from downrange.console.cluster import limits
from downrange.console.cluster.broker_rows import BrokerRows
from downrange.errors import ConnectFailed, MalformedBody, server_error
from tests.unit.console.cluster.fake_admin import at, figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.errors import RocketMQError


def facts(*names: str) -> Mapping[str, BrokerFacts]:
    return {name: BrokerFacts(name, "main", {0: f"{name}:1", 1: f"{name}:2"}) for name in names}


def test_rates_are_differences_of_counters() -> None:
    rows = BrokerRows()
    rows.update(facts("a"), {"a": figures(msgPutTotalTodayNow="10")}, 100.0)
    (first,) = rows.rows
    assert (first.sent_rate, first.sent_total, first.is_up) == (None, 10, True)
    assert (first.address, first.replicas, first.version) == ("a:1", 2, "5.5.0")
    assert (first.stored_bytes, first.disk_used, first.started_at) == (100, 0.25, at(1.0))
    rows.update(
        facts("a"), {"a": figures(msgPutTotalTodayNow="30", msgGetTotalTodayNow="5")}, 102.0
    )
    (second,) = rows.rows
    assert (second.sent_rate, second.received_rate, second.since) == (10.0, 2.5, at(100.0))


def test_a_broker_that_was_started_again_has_no_rate_at_first() -> None:
    rows = BrokerRows()
    rows.update(facts("a"), {"a": figures(msgPutTotalTodayNow="10")}, 100.0)
    again = figures(msgPutTotalTodayNow="4", bootTimestamp="90000")
    rows.update(facts("a"), {"a": again}, 102.0)
    assert rows.rows[0].sent_rate is None
    rows.update(facts("a"), {"a": {**again, "msgPutTotalTodayNow": "8"}}, 104.0)
    assert rows.rows[0].sent_rate == 2.0


def test_a_broker_that_is_down_stays_in_the_list_and_says_since_when() -> None:
    rows = BrokerRows()
    rows.update(facts("a", "b"), {"a": figures(), "b": figures()}, 100.0)
    rows.update(
        facts("a", "b"), {"a": figures(), "b": ConnectFailed("b:1", "connection refused")}, 102.0
    )
    rows.update(facts("a"), {"a": figures()}, 104.0)
    up, down = rows.rows
    assert (up.is_up, down.is_up, down.since) == (True, False, at(102.0))
    assert (down.problem, down.sent_rate) == ("it is not registered at the name server", None)
    rows.gone("the name server is gone", 106.0)
    assert [row.problem for row in rows.rows] == ["the name server is gone"] * 2
    assert [row.since for row in rows.rows] == [at(106.0), at(102.0)]
    rows.update(facts("a", "b"), {"a": figures(), "b": figures()}, 108.0)
    assert [(row.is_up, row.since) for row in rows.rows] == [(True, at(108.0))] * 2


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (server_error(1, "not yet", "a:1"), "code 1: not yet"),
        (server_error(16, "no admin", "a:1"), "code 16: no admin"),
        (MalformedBody("figures", "is no JSON"), "figures: is no JSON"),
    ],
)
def test_a_broker_that_answers_with_an_error_is_up_and_has_no_figures(
    error: RocketMQError, problem: str
) -> None:
    rows = BrokerRows()
    rows.update(facts("a"), {"a": error}, 98.0)
    (row,) = rows.rows
    assert (row.is_up, row.since, row.problem) == (True, at(98.0), problem)
    assert (row.address, row.version, row.stored_bytes) == ("a:1", None, None)
    rows.update(facts("a"), {"a": figures(msgPutTotalTodayNow="10")}, 100.0)
    assert (rows.rows[0].problem, rows.rows[0].sent_total) == (None, 10)
    rows.update(facts("a"), {"a": error}, 102.0)
    (row,) = rows.rows
    assert (row.is_up, row.since, row.version) == (True, at(98.0), "5.5.0")
    known = (row.sent_rate, row.received_rate, row.sent_total, row.stored_bytes, row.disk_used)
    assert known == (None,) * 5
    rows.update(facts("a"), {"a": figures(msgPutTotalTodayNow="90")}, 104.0)
    assert rows.rows[0].sent_rate is None  # the time of the counter before is not known
    rows.update(facts("a"), {"a": ConnectFailed("a:1", "connection refused")}, 106.0)
    assert (rows.rows[0].is_up, rows.rows[0].since) == (False, at(106.0))


def test_figures_that_are_missing_or_wrong_are_not_known() -> None:
    rows = BrokerRows()
    wrong = {"msgPutTotalTodayNow": "many", "commitLogDiskRatio": "-1.0", "bootTimestamp": "x"}
    rows.update(facts("a"), {"a": wrong}, 100.0)
    rows.update(facts("b"), {"b": {"commitLogDiskRatio": "?"}}, 100.0)
    for row in rows.rows:
        assert (row.sent_total, row.stored_bytes, row.disk_used) == (None, None, None)
        assert (row.started_at, row.version) == (None, None)


def test_an_empty_log_of_apache_holds_nothing() -> None:
    rows = BrokerRows()
    empty = figures(commitLogMinOffset="-1", commitLogMaxOffset="0")
    rows.update(facts("a"), {"a": empty}, 100.0)
    assert rows.rows[0].stored_bytes == 0


def test_brokers_that_went_away_are_forgotten_beyond_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "BROKERS_MAX", 2)
    rows = BrokerRows()
    for second, name in enumerate("abcd"):
        rows.update(facts(name), {name: figures()}, 100.0 + second)
    assert [(row.name, row.is_up) for row in rows.rows] == [("c", False), ("d", True)]
