"""The options of a read: each has an effect, and invalid ones are rejected at once."""

from __future__ import annotations

import dataclasses
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from downrange.client.flows.consuming.pull import Filter, by_sql
from downrange.errors import OptionError
from downrange.model import QueueId
from downrange.options import TLS, Credentials
from downrange.spark.read.read_options import Bound, ReadOptions, Selection, parse_read

BASE = {"nameServer": "127.0.0.1:9876", "subscribe": "orders"}
QUEUE = QueueId("orders", "broker-a", 0)


def parse(**texts: str) -> ReadOptions:
    return parse_read(BASE | {name.replace("__", "."): text for name, text in texts.items()})


# ---- each option has an effect -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("groupOffsetsFallback", "latest", "group_fallback", "latest"),
        ("newQueueStart", "LATEST", "new_queue_start", "latest"),
        ("failOnDataLoss", "false", "is_loss_fatal", False),
        (
            "tags",
            "new || paid",
            "message_filter",
            Filter("new || paid", "TAG", frozenset(("new", "paid"))),
        ),
        ("sqlFilter", "amount > 5", "message_filter", by_sql("amount > 5")),
        ("maxOffsetsPerTrigger", "10", "trigger_offsets_max", 10),
        ("minOffsetsPerTrigger", "5", "trigger_offsets_min", 5),
        ("maxTriggerDelay", "2m", "trigger_delay_max", 120.0),
        ("minPartitions", "3", "partitions_min", 3),
        ("maxRecordsPerPartition", "100", "partition_records_max", 100),
        ("minRecordsPerPartition", "7", "partition_records_min", 7),
        ("maxPartitions", "9", "partitions_max", 9),
        ("orderBy", "queue", "is_split", False),
        ("pullConcurrency", "8", "pull_concurrency", 8),
        ("pullBatchSize", "64", "pull_count", 64),
        ("pullBatchBytes", "65536", "pull_bytes", 65536),
        ("pullTimeoutMs", "2500", "pull_timeout", 2.5),
        ("batchRows", "50", "batch_rows", 50),
        ("batchBytes", "2048", "batch_bytes", 2048),
        ("metadataIntervalMs", "0", "metadata_interval", 0.0),
        ("routeIntervalMs", "1000", "route_interval", 1.0),
        ("fetchOffset.numRetries", "0", "fetch_retries", 0),
        ("fetchOffset.retryIntervalMs", "10", "retry_interval", 0.01),
        ("group", "readers", "group", "readers"),
        ("includeMetadata", "yes", "include_metadata", True),
    ],
)
def test_an_option_has_its_effect(name: str, text: str, field: str, value: object) -> None:
    parsed = parse_read({**BASE, name: text})
    assert getattr(parsed, field) == value
    changed = {
        each.name
        for each in dataclasses.fields(parsed)
        if getattr(parsed, each.name) != getattr(parse(), each.name)
    }
    assert changed == {field}


def test_options_pickle() -> None:
    parsed = parse(accessKey="shop", secretKey="sesame", tls__ca="ca.pem", startingOffsets="group",
                   group="readers", commitGroupOffsets="true")  # fmt: skip
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert parsed.is_group_committed
    assert parsed.starting == Bound(word="group")


# ---- connection ----------------------------------------------------------------------------------


def test_where_the_cluster_is(monkeypatch: pytest.MonkeyPatch) -> None:
    several = parse_read({**BASE, "nameServer": "a:9876,b:9876"})
    assert several.connection.name_server == "a:9876;b:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "c:9876")
    assert parse_read({"subscribe": "orders"}).connection.name_server == "c:9876"
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(OptionError, match=r"nameServer is missing.*NAMESRV_ADDR"):
        parse_read({"subscribe": "orders"})
    assert parse(callTimeoutMs="500", namespace="shop").connection.call_timeout == 0.5
    assert parse(namespace="shop").connection.namespace == "shop"


def test_account_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse().connection.credentials is None
    given = parse(accessKey="shop", secretKey="sesame", securityToken="token")
    assert given.connection.credentials == Credentials("shop", "sesame", "token")
    monkeypatch.setenv("DOWNRANGE_ACCESS_KEY", "shop")
    monkeypatch.setenv("DOWNRANGE_SECRET_KEY", "sesame")
    monkeypatch.setenv("DOWNRANGE_SECURITY_TOKEN", "")
    assert parse().connection.credentials == Credentials("shop", "sesame")
    monkeypatch.delenv("DOWNRANGE_SECRET_KEY")
    with pytest.raises(OptionError, match="accessKey and secretKey need each other"):
        parse()


def test_tls_options() -> None:
    assert parse().connection.tls_options is None
    assert parse(tls__enabled="true").connection.tls_options == TLS()
    assert parse(tls__enabled="false", tls__ca="ca.pem").connection.tls_options is None
    everything = parse(
        tls__ca="ca.pem",
        tls__certificate="own.pem",
        tls__key="key.pem",
        tls__keyPassword="sesame",
        tls__checkHost="false",
        tls__verify="false",
    )
    assert everything.connection.tls_options == TLS(
        ca="ca.pem",
        certificate="own.pem",
        key="key.pem",
        key_password="sesame",
        check_host=False,
        verify=False,
    )


def test_secrets_show_nowhere() -> None:
    secrets = {
        "accessKey": "shop",
        "secretKey": "sesame-1",
        "securityToken": "sesame-2",
        "tls.certificate": "own.pem",
        "tls.keyPassword": "sesame-3",
    }
    parsed = parse_read({**BASE, **secrets})
    assert "sesame" not in repr(parsed)
    for wrong in ({"subscribe": ""}, {"minPartitions": "x"}, {"secretKeys": "sesame-4"}):
        with pytest.raises(OptionError) as caught:
            parse_read({**BASE, **secrets, **wrong})
        assert "sesame" not in str(caught.value)


# ---- which queues --------------------------------------------------------------------------------


def test_exactly_one_option_says_what_to_read() -> None:
    place = {"nameServer": "a:1"}
    with pytest.raises(OptionError, match=r"exactly one of .* given: none of them"):
        parse_read(place)
    with pytest.raises(OptionError, match="given: subscribe and assign"):
        parse_read({**place, "subscribe": "a", "assign": '{"a": [0]}'})
    with pytest.raises(OptionError, match="did you mean subscribePattern"):
        parse_read({**place, "subscribePatern": "a.*"})


@pytest.mark.parametrize(
    ("texts", "selection"),
    [
        ({"subscribe": "b, a"}, Selection(topics=("b", "a"))),
        ({"subscribePattern": "order.*"}, Selection(pattern="order.*")),
        (
            {"assign": '{"a": [0, 1], "b": {"broker-b": [2]}}'},
            Selection(queues=(("a", None, frozenset((0, 1))), ("b", "broker-b", frozenset((2,))))),
        ),
        (
            {"subscribe": "a", "queueIds": "0, 3", "brokers": "broker-a"},
            Selection(topics=("a",), queue_ids=frozenset((0, 3)), brokers=frozenset(("broker-a",))),
        ),
    ],
)
def test_a_selection_is_read(texts: dict[str, str], selection: Selection) -> None:
    assert parse_read({"nameServer": "a:1", **texts}).selection == selection


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"subscribePattern": "order["}, "subscribePattern"),
        ({"assign": "{}"}, "names no queue"),
        ({"assign": '{"a": []}'}, "is not a list"),
        ({"assign": '{"a": {"broker-a": 1}}'}, "is not a list"),
        ({"assign": '{"a": [-1]}'}, "not queue ids"),
        ({"assign": '{"a": ["0"]}'}, "not queue ids"),
        ({"assign": '{"a": [true]}'}, "not queue ids"),
        ({"assign": "a"}, "not JSON"),
        ({"subscribe": "a", "queueIds": "one"}, "not a list of numbers"),
    ],
)
def test_an_invalid_selection_is_rejected(texts: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_read({"nameServer": "a:1", **texts})


def test_a_selection_takes_queues() -> None:
    there = [QueueId("a", broker, number) for broker in ("x", "y") for number in range(3)]
    chosen = Selection(queues=(("a", None, frozenset((0,))), ("a", "y", frozenset((2,)))))
    assert [queue for queue in there if chosen.includes(queue)] == [there[0], there[3], there[5]]
    narrowed = Selection(topics=("a",), queue_ids=frozenset((1,)), brokers=frozenset(("y",)))
    assert [queue for queue in there if narrowed.includes(queue)] == [there[4]]
    assert chosen.named_topics == chosen.names == ("a",)
    assert Selection(pattern="a.*").names == ("topics that match a.*",)


def test_a_selection_says_what_is_not_there() -> None:
    there = [QueueId("a", "x", 0), QueueId("a", "y", 1)]
    assert Selection(topics=("a",)).missing(there) == []
    narrowed = Selection(
        topics=("a",), queue_ids=frozenset((1, 7)), brokers=frozenset(("x", "brokr"))
    )
    assert narrowed.missing(there) == ["queueIds 7", "brokers brokr"]
    chosen = Selection(queues=(("a", None, frozenset((0, 5))), ("a", "x", frozenset((1,)))))
    assert chosen.missing(there) == ["queue 5 of a", "queue 1 of a on x"]


# ---- where to begin and to end -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "bound", "said"),
    [
        ({"startingOffsets": "Earliest"}, Bound(word="earliest"), "earliest"),
        ({"startingOffsets": "latest"}, Bound(word="latest"), "latest"),
        (
            {"startingOffsets": '{"orders": {"broker-a": {"0": 0, "1": -1, "2": -2}}}'},
            Bound(
                offsets=(
                    (QUEUE, 0),
                    (QueueId("orders", "broker-a", 1), -1),
                    (QueueId("orders", "broker-a", 2), -2),
                )
            ),
            0,
        ),
        (
            {"startingTimestamp": "1000"},
            Bound(time_ms=1000),
            datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        ),
        (
            {"startingTimestamp": "2026-01-01T00:00:00+01:00"},
            Bound(time_ms=1_767_222_000_000),
            datetime(2025, 12, 31, 23, tzinfo=UTC),
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": 2000}'},
            Bound(topic_times_ms=(("orders", 2000),)),
            datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": "1970-01-01T00:00Z"}}}'},
            Bound(queue_times_ms=((QUEUE, 0),)),
            datetime(1970, 1, 1, tzinfo=UTC),
        ),
    ],
)
def test_a_start_is_read(texts: dict[str, str], bound: Bound, said: object) -> None:
    found = parse_read({**BASE, **texts}).starting
    assert found == bound
    assert found is not None
    assert found.of(QUEUE) == said


def test_a_start_does_not_cover_queues_that_it_does_not_name() -> None:
    found = parse(startingOffsets='{"orders": {"broker-a": {"1": 5}}}').starting
    assert found is not None
    assert found.of(QUEUE) is None
    assert found.named_queues == {QueueId("orders", "broker-a", 1)}
    by_topic = parse(startingOffsetsByTimestamp='{"orders": 5}').starting
    assert by_topic is not None
    assert by_topic.named_topics == {"orders"}


def test_a_time_goes_before_offsets() -> None:
    both = {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"orders": 5}'}
    assert parse(**both).starting == Bound(topic_times_ms=(("orders", 5),))
    assert parse(startingTimestamp="7", **both).starting == Bound(time_ms=7)


def test_an_end_offset_can_be_pasted_from_progress() -> None:
    text = json.dumps(
        {
            "init": {"orders": {"broker-a": {"0": 1}}},
            "q": {"orders": {"broker-a": {"0": 42}}},
            "v": 1,
        }
    )
    assert parse(startingOffsets=text).starting == Bound(offsets=((QUEUE, 42),))
    assert parse(endingOffsets=text).ending == Bound(offsets=((QUEUE, 42),))
    with pytest.raises(OptionError, match="later release"):
        parse(startingOffsets=text.replace('"v": 1', '"v": 2'))


def test_topics_may_be_called_like_members_of_an_offset() -> None:
    text = '{"v": {"broker-a": {"0": 1}}, "q": {"broker-a": {"0": 2}}}'
    found = parse_read({"nameServer": "a:1", "subscribe": "v,q", "startingOffsets": text}).starting
    assert found == Bound(
        offsets=((QueueId("v", "broker-a", 0), 1), (QueueId("q", "broker-a", 0), 2))
    )


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"startingOffsets": "first"}, "neither earliest, latest, group nor JSON"),
        ({"startingOffsets": "{}"}, "names no queue"),
        ({"startingOffsets": '{"orders": {"0": 5}}'}, "its name comes first"),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": -3}}}'}, "not an offset"),
        ({"endingOffsets": "earliest"}, "neither latest nor JSON"),
        ({"endingOffsets": '{"orders": {"broker-a": {"0": -2}}}'}, "not an offset"),
        ({"startingTimestamp": "yesterday"}, "neither milliseconds since 1970 nor"),
        ({"startingTimestamp": "-5"}, "neither milliseconds since 1970 nor"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "has no time zone"),
        ({"startingTimestamp": "999999999999999"}, "year 9999"),
        ({"startingOffsetsByTimestamp": "{}"}, "names no topic"),
        ({"startingOffsetsByTimestamp": '{"orders": null}'}, "neither milliseconds"),
        (
            {"startingTimestamp": "2000", "endingTimestamp": "1000"},
            "startingTimestamp=2000 is later than endingTimestamp=1000",
        ),
        (
            {
                "startingOffsets": '{"orders": {"broker-a": {"0": 9}}}',
                "endingOffsets": '{"orders": {"broker-a": {"0": 5}}}',
            },
            "startingOffsets=9 is behind endingOffsets=5",
        ),
    ],
)
def test_an_invalid_bound_is_rejected(texts: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read({**BASE, **texts})
    assert problem in str(caught.value)


def test_bounds_that_need_a_request_to_compare_are_accepted() -> None:
    queues = '{"orders": {"broker-a": {"0": %d}}}'
    assert parse(startingOffsets=queues % 9, endingOffsets=queues % -1).ending is not None
    assert parse(startingTimestamp="9", endingOffsets=queues % 1).ending is not None


# ---- contradictions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"tags": "a", "sqlFilter": "b = 1"}, "exclude each other"),
        ({"tags": " || "}, "contains no tag"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "is more than"),
        ({"minPartitions": "9", "maxPartitions": "5"}, "is more than"),
        ({"minPartitions": "9", "orderBy": "queue"}, "orderBy=queue forbids"),
        ({"commitGroupOffsets": "true"}, "needs the option group"),
        ({"startingOffsets": "group"}, "needs the option group"),
        ({"group": "no blanks"}, "group"),
        ({"pullBatchBytes": "1"}, "less than 1024"),
        ({"pullBatchSize": "0"}, "less than 1"),
        ({"maxOfsetsPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"topic": "orders"}, "unknown option 'topic'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    texts: dict[str, Any], problem: str
) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read({**BASE, **texts})
    assert problem in str(caught.value)
