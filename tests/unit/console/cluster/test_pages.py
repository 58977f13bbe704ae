"""Pages of a cluster that answers only in part, and limits of what they show."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from downrange import (
    ClientOptions,
    DeadLetterPage,
    DeadMessage,
    GroupMembers,
    GroupSummary,
    Member,
    NameServerFacts,
    TopicFilter,
    TopicName,
    TopicProgress,
    Traffic,
)
from downrange.console.cluster import limits
from downrange.console.cluster.broker_pages import (
    HIDDEN,
    broker_detail,
    brokers_page,
    disks_of,
    without_secrets,
)
from downrange.console.cluster.client_page import list_clients
from downrange.console.cluster.dead_letter_counts import count_of
from downrange.console.cluster.dead_letter_pages import (
    export_dead_letters,
    read_place,
    write_place,
)
from downrange.console.cluster.group_pages import groups_page, subscriptions_of
from downrange.console.cluster.message_page import message_detail, trace_of
from downrange.console.cluster.message_search import search
from downrange.console.cluster.pages.common import ListRequest, as_json, as_values
from downrange.console.cluster.poller import Poller
from downrange.console.cluster.topic_figures import TopicFigures
from downrange.console.cluster.topic_pages import permission_text, topics_page
from downrange.console.cluster.topic_states import read_states
from downrange.console.cluster.trace_report import trace_report
from downrange.console.cluster.waiting_page import delays_of, waiting_page
from downrange.errors import (
    ConnectFailed,
    NotSupported,
    OptionError,
    ServerFailure,
    server_error,
)
from downrange.model import QueueId
from tests.unit.console.cluster.fake_admin import FakeAdmin, at, figures, message
from tests.unit.console.cluster.test_commands import values_of

BROKEN = ServerFailure(1, "broken", "a:1", "orders")
GONE = ConnectFailed("a:1", "connection refused")


def poller_of(admin: FakeAdmin) -> Poller:
    return Poller(cast("Any", admin), ("ns:9876",))


# ---- topics --------------------------------------------------------------------------------------


async def test_a_page_of_topics_reads_no_topic_that_it_does_not_show() -> None:
    admin = FakeAdmin()
    for number in range(300):
        admin.add(message(0, topic=f"t{number:03}"))
    page = await topics_page(poller_of(admin), ListRequest(size=50))
    assert (len(page.rows), page.paging.total, page.paging.page_count) == (50, 300, 6)
    counts = {name: admin.count(name) for name in ("topic_stats", "topic_traffic", "list_topics")}
    assert counts == {"topic_stats": 50, "topic_traffic": 50, "list_topics": 1}
    assert admin.count("earliest_store_time") == 50


async def test_the_size_of_a_topic_is_estimated_from_the_mean_size() -> None:
    admin = FakeAdmin()
    admin.add(message(0, topic="big"), message(1, topic="big"), message(0, topic="idle"))
    admin.traffic["big"] = Traffic(topic="big", mean_bytes=1000.0)
    admin.topics.append(TopicName("empty"))
    page = await topics_page(poller_of(admin), ListRequest())
    assert {row.topic: row.stored_bytes for row in page.rows} == {
        "big": 2000.0,
        "empty": 0.0,
        # The newest message is read: 91 bytes, the topic and the body.
        "idle": 91.0 + 4 + 4,
    }
    assert [note.code for note in page.notes] == ["sizes-estimated"]
    assert (await topics_page(poller_of(FakeAdmin()), ListRequest())).notes == ()


async def test_a_mean_size_is_kept_when_the_counters_of_a_broker_have_passed() -> None:
    admin = FakeAdmin()
    admin.add(*(message(number, b"x" * 9, topic="orders", own="p") for number in range(20)))
    poller = poller_of(admin)
    for _ in range(2):
        (row,) = (await topics_page(poller, ListRequest())).rows
        assert row.stored_bytes == 20 * (91 + 6 + 6 + 9)
    assert admin.count("read_queue") == 1  # once, not for each page
    admin.traffic["orders"] = Traffic(topic="orders", mean_bytes=1000.0)
    assert (await topics_page(poller, ListRequest())).rows[0].stored_bytes == 20_000.0
    admin.traffic.clear()
    assert (await topics_page(poller, ListRequest())).rows[0].stored_bytes == 20_000.0
    assert admin.count("read_queue") == 1


async def test_a_topic_that_cannot_be_read_has_no_size() -> None:
    admin = FakeAdmin()
    admin.add(message(0, topic="orders"))
    admin.broken["read_queue"] = BROKEN
    (row,) = (await topics_page(poller_of(admin), ListRequest())).rows
    assert (row.messages, row.stored_bytes, row.problem) == (1, None, None)


async def test_messages_of_a_topic_that_is_younger_than_a_day_were_sent_in_a_day() -> None:
    now = datetime.now(UTC).timestamp()
    admin = FakeAdmin()
    admin.add(*(message(number, topic="new", second=now - 90) for number in range(3)))
    admin.add(message(0, topic="old", second=now - 90_000))
    admin.traffic["new"] = Traffic(topic="new", day=1)  # brokers take a sample per hour
    rows = (await topics_page(poller_of(admin), ListRequest())).rows
    assert {row.topic: row.sent_day for row in rows} == {"new": 3, "old": 0}


async def test_a_topic_whose_broker_fails_says_why_and_the_others_are_shown() -> None:
    admin = FakeAdmin()
    admin.add(message(0, topic="good"), message(0, topic="bad"))
    admin.broken["topic_stats bad"] = GONE
    admin.progress = [TopicProgress(group="g", topic="bad", lag=3)]
    bad, good = (await topics_page(poller_of(admin), ListRequest())).rows
    assert (bad.problem, bad.messages, bad.lag) == ("connection refused", None, 3)
    assert (good.problem, good.messages) == (None, 1)


async def test_a_topic_with_many_queues_does_not_cost_a_request_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ROW_QUEUES_MAX", 2)
    admin = FakeAdmin()
    admin.add(*(message(0, queue=queue) for queue in range(5)), message(0, topic="small"))
    page = await topics_page(poller_of(admin), ListRequest())
    assert admin.count("earliest_store_time") == 3
    notes = {note.code: note.values for note in page.notes}
    assert notes.keys() == {"span-limited", "sizes-estimated"}
    assert notes["span-limited"]["topics"] == 1


async def test_queues_of_other_brokers_are_shown_while_one_is_down() -> None:
    admin = FakeAdmin()
    admin.figures["b"] = GONE
    admin.add(message(0), message(0, broker="b"))
    (row,) = (await topics_page(poller_of(admin), ListRequest())).rows
    assert (row.messages, row.problem) == (1, "broker b is missing: connection refused")
    found = await search(cast("Any", admin), "orders", "", 10)
    assert [each.broker for each in found.messages] == ["a"]
    assert [note.code for note in found.notes] == ["scanned", "broker-missing"]
    admin.figures["a"] = GONE
    with pytest.raises(ConnectFailed):
        await read_states(cast("Any", admin), "orders")


async def test_an_order_by_rate_goes_by_the_sweep_and_says_how_old_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = datetime.now(UTC).timestamp()
    monkeypatch.setattr("downrange.console.cluster.topic_pages.time.time", lambda: now)
    admin = FakeAdmin()
    for name, count in (("quiet", 1), ("busy", 5)):
        admin.add(*(message(offset, topic=name) for offset in range(count)))
    poller = Poller(cast("Any", admin), ("ns:9876",), now=lambda: now)
    request = ListRequest(sort="messages", is_descending=True)
    before = await topics_page(poller, request)
    assert before.notes[0].values == {"known": 2, "topics": 2, "age": 0}
    after = await topics_page(poller, request)
    assert [row.topic for row in after.rows] == ["busy", "quiet"]
    assert "are up to 0 s old" in after.notes[0].text


async def test_the_sweep_reads_topics_in_turn_and_forgets_those_that_are_gone() -> None:
    admin, known = FakeAdmin(), TopicFigures()
    names = [f"t{number}" for number in range(5)]
    for name in names:
        admin.add(message(0, topic=name))
    admin.broken["topic_stats t3"] = BROKEN
    for second in (10.0, 20.0, 30.0):
        await known.sweep(cast("Any", admin), names, 2, second)
    assert [known.get(name) is not None for name in names] == [True, True, True, False, True]
    assert known.oldest(names) is None
    assert known.oldest(["t0", "t4"]) == 10.0
    admin.add(message(1, topic="t0"), message(2, topic="t0"))
    await known.sweep(cast("Any", admin), names, 2, 20.0)
    figure = known.get("t0")
    assert figure is not None
    assert (figure.rate, figure.messages, figure.at) == (0.2, 3, 20.0)
    known.note("t0", [], 21.0)  # too soon after the last reading
    assert known.get("t0") == figure
    await known.sweep(cast("Any", admin), ["t1"], 2, 40.0)
    assert known.get("t0") is None
    await known.sweep(cast("Any", admin), [], 2, 50.0)
    assert known.get("t1") is None


def test_permissions_are_letters() -> None:
    assert [permission_text(number) for number in (6, 7, 4, 2, 0)] == ["rw", "rw", "r", "w", ""]


# ---- groups and clients --------------------------------------------------------------------------


async def test_members_are_asked_only_for_groups_that_are_shown() -> None:
    admin = FakeAdmin()
    admin.groups = [GroupSummary(group=f"g{number}") for number in range(5)]
    admin.progress = [
        TopicProgress(group="g3", topic="a", lag=9, rate=2.0, consumed_at=at(5)),
        TopicProgress(group="g3", topic="b", lag=1, rate=1.0, consumed_at=at(7)),
    ]
    asked: list[str] = []

    async def members(group: str, **_: Any) -> GroupMembers:
        asked.append(group)
        if group == "g3":
            raise GONE
        return GroupMembers(group=group, mode="push")

    admin.group_members = members  # type: ignore[attr-defined]
    request = ListRequest(sort="lag", is_descending=True, size=2)
    first, second = (await groups_page(poller_of(admin), request)).rows
    assert (first.group, first.lag, first.rate, first.topics) == ("g3", 10, 3.0, 2)
    assert (first.consumed_at, first.problem, first.members) == (at(7), "connection refused", None)
    assert (second.members, second.mode) == (0, "push")
    assert sorted(asked) == ["g0", "g3"]


def test_subscriptions_that_differ_come_first() -> None:
    def member(name: str, *filters: TopicFilter) -> Member:
        return Member(client_id=name, address="h:1", filters=filters)

    members = GroupMembers(
        group="g",
        members=(
            member("a", TopicFilter("one", "x || y"), TopicFilter("two", "a > 1", "SQL92")),
            member("b", TopicFilter("one", "y||x")),
            Member(client_id="silent", address="h:2"),
        ),
        filters=(TopicFilter("one", "x || y"), TopicFilter("three")),
    )
    two, one, three = subscriptions_of(members)[0], *subscriptions_of(members)[1:]
    assert (two.topic, two.is_same) == ("two", False)
    assert two.expressions == {"a": "SQL92: a > 1", "b": None}
    assert (one.topic, one.is_same, one.known) == ("one", True, "x || y")
    assert (three.topic, three.known, three.expressions) == ("three", "*", {"a": None, "b": None})


async def test_clients_are_listed_without_producers_where_a_broker_does_not_tell_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CLIENT_GROUPS_MAX", 1)
    admin = FakeAdmin()

    async def producers(**_: Any) -> Any:
        raise NotSupported(3, "too old", "a:1", None)

    async def members(group: str, **_: Any) -> GroupMembers:
        return GroupMembers(group=group, members=(Member(client_id="c", address="h:1"),))

    admin.list_producers = producers  # type: ignore[attr-defined]
    admin.group_members = members  # type: ignore[attr-defined]
    groups = [GroupSummary(group="g"), GroupSummary(group="h")]
    rows, notes = await list_clients(cast("Any", admin), groups)
    assert [(row.role, row.group) for row in rows] == [("consumer", "g")]
    assert [note.code for note in notes] == ["producers-not-told", "groups-limited"]

    async def gone(**_: Any) -> Any:
        raise GONE

    admin.list_producers = gone  # type: ignore[attr-defined]
    with pytest.raises(ConnectFailed):
        await list_clients(cast("Any", admin), groups)


# ---- messages and traces -------------------------------------------------------------------------


async def test_a_trace_that_cannot_be_read_does_not_hide_a_message() -> None:
    admin = FakeAdmin()
    admin.add(message(0, UNIQ_KEY="U"))
    (stored,) = admin.queues[QueueId("orders", "a", 0)]
    assert not (await trace_of(cast("Any", admin), stored)).is_on
    admin.topics.append(TopicName("RMQ_SYS_TRACE_TOPIC", "system"))
    assert (await trace_of(cast("Any", admin), stored)).steps == ()
    admin.broken["query_messages"] = BROKEN
    trace = await trace_of(cast("Any", admin), stored)
    assert trace.is_on
    assert "broken" in str(trace.problem)
    admin.topic_groups = _raising  # type: ignore[attr-defined]
    page = await message_detail(cast("Any", admin), "orders", "U", "ns:9876")
    assert (page.deliveries, page.body.text) == ((), "body")


async def test_a_message_is_shown_with_a_command_and_source_for_its_namespace() -> None:
    admin = FakeAdmin()
    admin.client.options = ClientOptions(namespace="ns1")
    admin.add(message(0, topic="-x", UNIQ_KEY="U"))
    admin.topic_groups = _raising  # type: ignore[attr-defined]
    page = await message_detail(cast("Any", admin), "-x", "U", "ns:9876")
    assert page.command.startswith("downrange message show ")
    values = values_of(page.command)
    given = [values[name] for name in ("name_server", "namespace", "topic", "message_id")]
    assert given == ["ns:9876", "ns1", "-x", "U"]
    assert "client_options=mq.ClientOptions(namespace='ns1')" in page.python


async def _raising(*_: Any, **__: Any) -> Any:
    raise BROKEN


async def test_deliveries_show_what_is_known_of_each_group() -> None:
    admin = FakeAdmin()
    admin.add(message(3, UNIQ_KEY="U"))

    async def groups(topic: str, **_: Any) -> list[str]:
        return ["past", "behind", "new", "broken"]

    async def offset(group: str, queue: QueueId, **_: Any) -> int | None:
        if group == "broken":
            raise BROKEN
        return {"past": 4, "behind": 3, "new": None}[group]

    async def members(group: str, **_: Any) -> GroupMembers:
        return GroupMembers(group=group, members=(Member(client_id=group, address="h:1"),))

    admin.topic_groups = groups  # type: ignore[attr-defined]
    admin.group_offset = offset  # type: ignore[attr-defined]
    admin.group_members = members  # type: ignore[attr-defined]
    page = await message_detail(cast("Any", admin), "orders", "U", "ns:9876")
    assert [(each.group, each.is_consumed, each.members) for each in page.deliveries] == [
        ("past", True, ("past",)),
        ("behind", False, ("behind",)),
        ("new", None, ("new",)),
        ("broken", None, ()),
    ]


async def test_a_compressed_body_is_shown_decompressed_or_says_why_not() -> None:
    import zlib

    admin = FakeAdmin()
    packed = replace(message(0, zlib.compress(b"text"), UNIQ_KEY="U"), compression="zlib")
    broken = replace(message(1, b"not packed", UNIQ_KEY="B"), compression="zlib")
    admin.add(packed, broken)
    admin.topic_groups = _raising  # type: ignore[attr-defined]
    good = (await message_detail(cast("Any", admin), "orders", "U", "ns")).body
    assert (good.text, good.compression, good.problem, good.size) == ("text", "zlib", None, 4)
    bad = (await message_detail(cast("Any", admin), "orders", "B", "ns")).body
    assert (bad.text, bad.compression) == ("not packed", "zlib")
    assert "cannot be decompressed" in str(bad.problem)


async def test_a_report_of_traces_says_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.console.cluster.test_trace_steps import pub, traced

    admin = FakeAdmin()
    off = await trace_report(cast("Any", admin), "ns:9876", "/report")
    assert (off.is_on, off.rows, off.report) == (False, (), "/report")
    for offset in range(5):
        (trace,) = traced(pub("A"), pub("B"))
        admin.add(replace(cast("Any", trace), offset=offset))
    page = await trace_report(cast("Any", admin), "ns:9876", None)
    assert (page.records, page.stopped, page.stored) == (10, "complete", 5)
    command = "downrange pipeline trace --output traces --name-server ns:9876"
    assert page.command == command
    admin.client.options = ClientOptions(namespace="ns1")
    page = await trace_report(cast("Any", admin), "ns:9876", None)
    assert page.command == f"{command} --namespace ns1"
    monkeypatch.setattr(limits, "TRACE_RECORDS_MAX", 4)
    page = await trace_report(cast("Any", admin), "ns:9876", None)
    assert (page.records, page.stopped) == (4, "rows")
    monkeypatch.setattr(limits, "SCAN_MAX", 2)
    page = await trace_report(cast("Any", admin), "ns:9876", None)
    assert page.stopped in ("scanned", "rows")


# ---- dead letters --------------------------------------------------------------------------------


async def test_dead_letters_of_the_last_hour_are_counted_on_old_brokers_too() -> None:
    admin = FakeAdmin()
    admin.topics.append(TopicName("%DLQ%g", "dead-letter"))
    for offset, second in enumerate((100.0, 5000.0, 6000.0)):
        admin.add(message(offset, topic="%DLQ%g", second=second))
    now = at(7000.0)
    assert (await count_of(cast("Any", admin), "%DLQ%g", now, ())).last_hour == 2
    assert admin.count("read_queue") == 0

    async def nearest(queue: Any, at: Any, **_: Any) -> int:
        return 0

    admin.search_offset = nearest  # type: ignore[method-assign]
    found = await count_of(cast("Any", admin), "%DLQ%g", now, ("a",))
    assert (found.group, found.last_hour, found.total) == ("g", 2, 3)
    late = await count_of(cast("Any", admin), "%DLQ%g", at(90_000.0), ("a",))
    assert (late.last_hour, late.last_at) == (0, at(6000.0))
    admin.broken["topic_stats"] = GONE
    with pytest.raises(ConnectFailed):
        await count_of(cast("Any", admin), "%DLQ%g", now, ())
    admin.broken["topic_stats"] = BROKEN
    assert (await count_of(cast("Any", admin), "%DLQ%g", now, ())).total == 0


async def test_an_export_that_is_too_large_is_not_cut_silently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "EXPORT_MAX", 3)
    admin = FakeAdmin()
    letters = tuple(
        DeadMessage(group="g", message=message(offset), topic="t", origin_id="O")
        for offset in range(4)
    )

    async def pages(group: str, *, after: Any = None, max_count: int, **_: Any) -> DeadLetterPage:
        begin = 0 if after is None else after
        shown = letters[begin : begin + max_count]
        end = begin + len(shown)
        return DeadLetterPage(
            group=group, letters=shown, next=cast("Any", end), is_complete=end == len(letters)
        )

    admin.dead_letters = pages  # type: ignore[attr-defined]

    async def export(form: Any, *ids: str) -> list[bytes]:
        pieces = export_dead_letters(cast("Any", admin), "g", form, ids=ids, begin=None, end=None)
        return [piece async for piece in pieces]

    with pytest.raises(OptionError, match="more than 3 dead letters"):
        await export("jsonl")
    (one,) = await export("jsonl", letters[1].message.offset_id)
    assert one.count(b"\n") == 1
    monkeypatch.setattr(limits, "EXPORT_MAX", 100)
    sheet = b"".join(await export("csv"))
    assert sheet.startswith(b"group,")
    assert sheet.count(b"\r\n") == 5
    letters = ()
    (empty,) = await export("csv")
    assert empty.startswith(b"group,")
    assert await export("jsonl") == []
    with pytest.raises(OptionError, match="is not one of csv, jsonl"):
        await export("xlsx")


def test_a_place_in_dead_letters_is_read_back() -> None:
    place = {QueueId("%DLQ%g", "b", 1): 7, QueueId("%DLQ%g", "a", 0): 0}
    assert read_place("g", write_place(place)) == place
    for text in ("", "zz", "{}x", "[1]", '[["a","b",1]]', '[["a",true,1]]', "[" * 5000):
        with pytest.raises(OptionError, match="begin with the first page"):
            read_place("g", text)


# ---- what waits ----------------------------------------------------------------------------------


def test_delay_levels_are_read_from_the_setting() -> None:
    assert delays_of("1s 5m 2h 1d") == {1: 1.0, 2: 300.0, 3: 7200.0, 4: 86_400.0}
    assert delays_of("1s often 3s") == {1: 1.0, 3: 3.0}
    assert delays_of("") == {}


async def test_what_is_not_told_is_said() -> None:
    admin = FakeAdmin()
    facts = await admin.cluster_facts()
    admin.timed_messages = _raising  # type: ignore[attr-defined]
    admin.delay_offsets = _raising  # type: ignore[attr-defined]
    page = await waiting_page(cast("Any", admin), facts)
    codes = {note.code for note in page.notes}
    assert codes >= {"delay-levels-not-told", "timers-not-told", "halves-not-told"}
    admin.add(message(0, topic="SCHEDULE_TOPIC_XXXX", queue=2))
    admin.add(message(0, topic="RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC="t", PGROUP="p"))
    admin.broken["read_queue"] = BROKEN
    page = await waiting_page(cast("Any", admin), facts)
    codes = {note.code for note in page.notes}
    assert codes >= {"delay-offsets-not-told", "half-ends-not-told", "halves-not-read"}
    (level,) = page.levels
    assert (level.level, level.delay, level.waiting, level.stored) == (3, 60.0, None, 1)
    assert page.halves[0].ended is None
    assert page.delayed == (), "which of them wait is not told"
    admin.figures["b"] = GONE
    page = await waiting_page(cast("Any", admin), await admin.cluster_facts())
    assert [(each.broker, each.address) for each in page.missing] == [("b", "b:1")]
    assert page.levels == (level,)


# ---- brokers -------------------------------------------------------------------------------------


async def test_a_broker_that_is_down_has_its_last_line() -> None:
    admin = FakeAdmin()
    admin.figures["b"] = figures()
    poller = poller_of(admin)
    await poller.poll()
    up = await broker_detail(poller, "b")
    assert up.settings["aclSecretKey"] == HIDDEN
    assert (up.disks[0].used, up.addresses) == (0.25, {0: "b:1"})
    admin.figures["b"] = GONE
    await poller.poll()
    down = await broker_detail(poller, "b")
    assert (down.row.is_up, down.notes[0].code, down.figures) == (False, "broker-down", {})
    with pytest.raises(OptionError, match="there is no broker 'z'"):
        await broker_detail(poller, "z")
    page = await brokers_page(poller)
    assert page.name_servers[0].settings == {"password": HIDDEN, "port": "1"}
    assert [row.is_up for row in page.brokers] == [True, False]


def test_disks_are_those_that_a_broker_tells() -> None:
    told = {
        "commitLogDirCapacity": "Total : 252.0 GiB, Free : 72.5 GiB.",
        "commitLogDiskRatio": "0.7",
        "consumeQueueDiskRatio": "?",
    }
    log, index = disks_of(told, {"storePathRootDir": "/data"})
    assert (log.total, log.free, log.used, log.path) == ("252.0 GiB", "72.5 GiB", 0.7, "/data")
    assert (index.path, index.used) == ("/data/consumequeue", None)
    log, index = disks_of({"commitLogDiskRatio": "7"}, {})
    assert (log.path, log.used, log.total, index.path) == (None, None, None, None)


async def test_the_password_of_an_administrator_is_hidden_wherever_a_page_has_it() -> None:
    """Apache 5.x: the name of the setting says nothing of it."""
    secrets = {"initAuthenticationUser": '{"username":"root","password":"hunter2"}'}
    admin = FakeAdmin()

    async def broker_settings(broker: str, **_: Any) -> dict[str, dict[str, str]]:
        return {broker: secrets}

    async def name_servers(**_: Any) -> list[NameServerFacts]:
        return [NameServerFacts(address="ns:9876", settings=secrets)]

    admin.broker_settings = broker_settings  # type: ignore[method-assign]
    admin.name_servers = name_servers  # type: ignore[method-assign]
    poller = poller_of(admin)
    await poller.poll()
    assert (await broker_detail(poller, "a")).settings == {"initAuthenticationUser": HIDDEN}
    (server,) = (await brokers_page(poller)).name_servers
    assert server.settings == {"initAuthenticationUser": HIDDEN}


def test_values_of_secrets_are_hidden() -> None:
    shown = without_secrets({"innerClientSecret": "x", "tlsKeyPassword": "", "port": "1"})
    assert shown == {"innerClientSecret": HIDDEN, "tlsKeyPassword": "", "port": "1"}


async def test_pages_become_json() -> None:
    admin = FakeAdmin()
    admin.add(message(0))
    poller = poller_of(admin)
    await poller.poll()
    values = as_values(poller.overview())
    assert values["brokers"][0]["name"] == "a"
    page = await topics_page(poller, ListRequest())
    assert b'"topic":"orders"' in as_json(page)


async def test_a_broker_that_refuses_to_tell_something_tells_the_rest() -> None:
    admin = FakeAdmin()
    refused = server_error(1, "not yet", "a:1")
    admin.figures["a"] = refused
    poller = poller_of(admin)
    await poller.poll()
    page = await broker_detail(poller, "a")
    assert (page.row.is_up, page.row.problem, page.figures) == (True, "code 1: not yet", {})
    assert page.settings["aclSecretKey"] == HIDDEN
    (note,) = page.notes
    assert (note.code, note.values["problem"]) == ("broker-figures-refused", "code 1: not yet")
    admin.broken["broker_settings"] = refused
    page = await broker_detail(poller, "a")
    assert [note.code for note in page.notes] == [
        "broker-figures-refused",
        "broker-settings-refused",
    ]
    assert (page.settings, page.disks) == ({}, ())
