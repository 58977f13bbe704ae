"""SQL92 expressions of groups: which version counts, how long it stays, and the file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from downrange.errors import MalformedBody
from downrange.filters.compiled import CompiledExpressions
from downrange.server.broker.tables.filter_table import FilterTable
from downrange.wire.bodies import Subscription

NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000
#: Written by a 5.5.0 broker for a Java consumer, without its tabs and line breaks.
JAVAS = (
    b'{"filterDataByTopic":{"tsql":{"groupFilterData":{"gsql":{"bloomFilterData":{"bitNum":112,'
    b'"bitPos":[77,21,88]},"bornTime":1794919175066,"clientVersion":1794919175203,'
    b'"consumerGroup":"gsql","dead":false,"deadTime":0,"expression":"a > 2 AND color = \'red\'",'
    b'"expressionType":"SQL92","topic":"tsql"}},"topic":"tsql"}}}'
)


def a_subscription(
    expression: str = "a > 2", version: int = 1, topic: str = "T", kind: str = "SQL92"
) -> Subscription:
    return Subscription(
        topic=topic, sub_string=expression, sub_version=version, expression_type=kind
    )


def a_table(*subscriptions: Subscription, group: str = "G") -> FilterTable:
    table = FilterTable(CompiledExpressions())
    if subscriptions:
        table.register(group, subscriptions, NOW_MS)
    return table


def facts(table: FilterTable, topic: str = "T", group: str = "G") -> tuple[Any, ...] | None:
    found = table.get(topic, group)
    if found is None:
        return None
    return found.expression, found.client_version, found.born_time, found.dead_time


def test_a_new_expression_is_kept() -> None:
    table = a_table(a_subscription())
    assert facts(table) == ("a > 2", 1, NOW_MS, 0)
    assert (table.version, len(table)) == (1, 1)
    assert (facts(table, "other"), facts(table, group="other")) == (None, None)


@pytest.mark.parametrize(
    "subscription",
    [
        a_subscription("a || b", kind="TAG"),
        a_subscription("a || b", kind=""),
        a_subscription("a >"),
        a_subscription(""),
        a_subscription("a > 2", kind="CLASS"),
        a_subscription("a = '\ud800'"),  # half a surrogate pair cannot be saved
    ],
)
def test_what_is_not_an_expression_is_not_kept(subscription: Subscription) -> None:
    table = a_table(subscription)
    assert (len(table), table.version) == (0, 0)


def test_a_later_version_replaces_an_expression() -> None:
    table = a_table(a_subscription())
    table.register("G", [a_subscription("a > 3", 2)], NOW_MS + 5)
    assert facts(table) == ("a > 3", 2, NOW_MS + 5, 0)
    table.register("G", [a_subscription("a >", 3)], NOW_MS + 6)  # the client gets code 27
    assert facts(table) is None


@pytest.mark.parametrize("version", [1, 0])
def test_a_version_that_is_not_later_changes_nothing(version: int) -> None:
    table = a_table(a_subscription())
    table.register("G", [a_subscription("a > 3", version)], NOW_MS + 5)
    assert facts(table) == ("a > 2", 1, NOW_MS, 0)
    assert table.version == 1


def test_the_same_expression_gets_the_later_version() -> None:
    table = a_table(a_subscription())
    table.register("G", [a_subscription("a > 2", 2)], NOW_MS + 5)
    assert facts(table) == ("a > 2", 2, NOW_MS, 0)


def test_a_heartbeat_without_changes_changes_nothing() -> None:
    table = a_table(a_subscription())
    table.register("G", [a_subscription()], NOW_MS + 5)
    assert table.version == 1


def test_a_topic_that_is_missing_in_a_heartbeat_is_gone() -> None:
    table = a_table(a_subscription(), a_subscription(topic="U"))
    table.register("G", [a_subscription(topic="U")], NOW_MS + 5)
    table.register("G", [a_subscription(topic="U")], NOW_MS + 6)
    assert facts(table) == ("a > 2", 1, NOW_MS, NOW_MS + 5)
    assert facts(table, "U") == ("a > 2", 1, NOW_MS, 0)


def test_a_group_that_left_and_returns_is_alive_again() -> None:
    table = a_table(a_subscription())
    table.unregister("G", NOW_MS + 5)
    table.unregister("G", NOW_MS + 6)
    table.unregister("unknown", NOW_MS)
    assert facts(table) == ("a > 2", 1, NOW_MS, NOW_MS + 5)
    table.register("G", [a_subscription()], NOW_MS + 7)
    assert facts(table) == ("a > 2", 1, NOW_MS, 0)


def test_an_expression_is_removed_a_day_after_its_group_left() -> None:
    table = a_table(a_subscription(), a_subscription(topic="U"))
    table.register("H", [a_subscription()], NOW_MS)
    table.unregister("G", NOW_MS)
    table.expire(NOW_MS + DAY_MS - 1)
    assert len(table) == 3
    table.expire(NOW_MS + DAY_MS)
    assert len(table) == 1
    assert facts(table, group="H") is not None


def test_the_file_is_that_of_java() -> None:
    table = FilterTable(CompiledExpressions())
    subscription = a_subscription("a > 2 AND color = 'red'", 1794919175203, "tsql")
    table.register("gsql", [subscription], 1794919175066)
    assert table.dump() == JAVAS
    table.unregister("gsql", 1794919175067)
    entry = json.loads(table.dump())["filterDataByTopic"]["tsql"]["groupFilterData"]["gsql"]
    assert (entry["dead"], entry["deadTime"]) == (True, 1794919175067)


def test_the_file_of_java_is_read() -> None:
    table = FilterTable(CompiledExpressions())
    table.load(JAVAS)
    table.prepare(1794919175066 + 60_000)
    # All groups count as gone for half a minute.
    assert facts(table, "tsql", "gsql") == (
        *("a > 2 AND color = 'red'", 1794919175203, 1794919175066, 1794919175066 + 30_000),
    )
    table.prepare(1794919175066 + 90_000)
    assert facts(table, "tsql", "gsql") == (
        *("a > 2 AND color = 'red'", 1794919175203, 1794919175066, 1794919175066 + 30_000),
    )


def test_a_filter_that_is_younger_than_half_a_minute_died_when_it_was_born() -> None:
    table = FilterTable(CompiledExpressions())
    table.load(JAVAS)
    table.prepare(1794919175066 + 5)
    assert facts(table, "tsql", "gsql") == (
        *("a > 2 AND color = 'red'", 1794919175203, 1794919175066, 1794919175066),
    )


def test_an_empty_table_is_written_and_read() -> None:
    table = FilterTable(CompiledExpressions())
    assert table.dump() == b'{"filterDataByTopic":{}}'
    table.load(table.dump())
    assert len(table) == 0


@pytest.mark.parametrize("data", [b"[", b'{"filterDataByTopic":5}'])
def test_a_file_that_cannot_be_read_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedBody):
        FilterTable(CompiledExpressions()).load(data)


def test_the_table_has_a_limit() -> None:
    table = FilterTable(CompiledExpressions())
    values = ", ".join([f"'{number:07}'" for number in range(5_900)])
    for number in range(300):
        table.register(f"G{number}", [a_subscription(f"a IN ({values})")], NOW_MS)
    assert 200 < len(table) < 300
    before = len(table)
    table.unregister("G0", NOW_MS)
    table.expire(NOW_MS + DAY_MS)
    table.register("new", [a_subscription(f"a IN ({values})")], NOW_MS)
    assert len(table) == before
    assert table.get("T", "new") is not None


def test_one_heartbeat_brings_a_limited_number_of_new_expressions() -> None:
    values = ", ".join([f"'{number:07}'" for number in range(2_000)])
    many = [a_subscription(f"a IN ({values})", topic=f"T{number}") for number in range(8)]
    table = FilterTable(CompiledExpressions())
    counts = []
    for _ in range(4):
        table.register("G", many, NOW_MS)
        counts.append(len(table))
    assert counts == [2, 4, 6, 8]
