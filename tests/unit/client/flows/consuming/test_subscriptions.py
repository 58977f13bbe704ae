"""What a member reads, and how heartbeats say so."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.consuming.pull import EVERYTHING, by_tags
from downrange.client.flows.consuming.subscriptions import (
    Subscriptions,
    check_not_empty,
    filter_of,
    filters_of,
    member_entry,
)
from downrange.errors import OptionError
from downrange.filters.sql import Sql
from downrange.wire.hashes import java_hash


def test_all_forms_of_subscribe() -> None:
    assert filters_of("orders") == {"orders": EVERYTHING}
    assert filters_of(["orders", "refunds"]) == {"orders": EVERYTHING, "refunds": EVERYTHING}
    filters = filters_of({"orders": "new || paid", "refunds": Sql("amount > 100")})
    assert filters["orders"] == by_tags("new || paid")
    assert filters["refunds"].kind == "SQL92"


@pytest.mark.parametrize(
    ("subscribe", "words"),
    [
        (5, "subscribe must be a topic, a list of topics, or a dict of topics to tags or Sql"),
        (None, "subscribe must be"),
        ([5], "each topic of subscribe must be a str, not 5"),
        ({5: "*"}, "each topic of subscribe must be a str, not 5"),
        ("a b", "topic 'a b' contains ' '"),
        ({"orders": 5}, "each expression of subscribe must be a str of tags or an Sql, not 5"),
        ({"orders": "||"}, "tags='||' contains no tag"),
    ],
)
def test_bad_subscriptions(subscribe: Any, words: str) -> None:
    with pytest.raises(OptionError) as raised:
        filters_of(subscribe)
    assert words in str(raised.value)


def test_no_topic_is_refused() -> None:
    with pytest.raises(OptionError, match="subscribe names no topic; give at least one"):
        check_not_empty(filters_of([]))
    check_not_empty(filters_of("orders"))
    assert filter_of("*") == EVERYTHING


def test_an_entry_that_stays_the_same_keeps_its_version() -> None:
    entries = Subscriptions("billing", None, retry_topic=True)
    entries.replace(filters_of({"orders": "*", "refunds": "*"}), 1000)
    entries.replace(filters_of({"orders": "*", "refunds": "new"}), 2000)
    assert entries.topics == ["orders", "refunds", "%RETRY%billing"]
    versions = [entry.version for topic in entries.topics if (entry := entries.get(topic))]
    assert versions == [1000, 2000, 1000]
    assert list(entries.filters) == ["orders", "refunds"]
    assert entries.get("other") is None


def test_the_entry_of_a_heartbeat() -> None:
    entries = Subscriptions("billing", "prod", retry_topic=False)
    entries.replace(filters_of({"orders": "paid || new"}), 1000)
    member = member_entry(
        "prod%billing", entries, model="broadcast", start="CONSUME_FROM_LAST_OFFSET", unit_mode=True
    )
    (body,) = member.subscription_data_set
    assert (body.topic, body.sub_string, body.sub_version) == ("prod%orders", "paid || new", 1000)
    assert body.tags_set == ["new", "paid"]
    assert body.code_set == [java_hash("new"), java_hash("paid")]
    assert (member.group_name, member.message_model) == ("prod%billing", "BROADCASTING")
    assert member.unit_mode
    shared = member_entry(
        "billing", entries, model="clustering", start="CONSUME_FROM_TIMESTAMP", unit_mode=False
    )
    assert shared.message_model == "CLUSTERING"


def test_another_filter_has_a_higher_version_even_if_the_clock_went_back() -> None:
    """Brokers go by the version, and keep a subscription that is not older."""
    entries = Subscriptions("billing", None, retry_topic=False)
    versions: list[int] = []
    for tags, now_ms in (("new", 1000), ("paid", 1000), ("paid", 3000), ("new", 900)):
        entries.replace(filters_of({"orders": tags}), now_ms)
        entry = entries.get("orders")
        assert entry is not None
        versions.append(entry.version)
    assert versions == [1000, 1001, 1001, 1002]
