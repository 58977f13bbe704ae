"""What the console shows of a cluster is the same on every kind of server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import ANY

import pytest

from downrange import (
    AsyncClient,
    AsyncProducer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ClientOptions,
    ConsumerOptions,
    Credentials,
    DeadLetter,
    Message,
    Outcome,
    ProducerOptions,
    RouteNotFound,
)
from downrange.console.cluster.pages.common import ListRequest, as_json
from downrange.console.cluster.pages.messages import TailRequest
from downrange.console.cluster.view import ClusterView
from downrange.errors import GroupNotFound, InvalidSql, NoPermission, NotFound, OptionError
from tests.apache.fixtures import ACCOUNTS
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import only_async, patient
from tests.support.waiting import WAIT_SCALE, WAIT_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

    from downrange import SendReceipt
    from downrange.console.cluster.pages.messages import MessageDetail
    from downrange.console.cluster.pages.overview import Overview
    from downrange.console.cluster.pages.waiting import WaitingPage
    from tests.apache.fixtures import UniqueName
    from tests.contract.servers import Server

pytestmark = only_async
ResultT = TypeVar("ResultT")
#: A busy server may pause for longer than the default timeout.
PATIENT = ClientOptions(call_timeout=LONG_TIMEOUT)


def look(server: Server, work: Callable[[ClusterView], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Run work with a view of a server."""

    async def run() -> ResultT:
        async with ClusterView(
            server.name_server, client_options=PATIENT, poll_seconds=0.2
        ) as view:
            return await work(view)

    return asyncio.run(run())


async def until(
    read: Callable[[], Awaitable[ResultT]], is_wanted: Callable[[ResultT], object]
) -> ResultT:
    """Read again and again, until what is read is wanted."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_TIMEOUT * WAIT_SCALE
    while not is_wanted(found := await read()):
        assert loop.time() < deadline, f"not what is wanted: {found!r}"
        await asyncio.sleep(0.1)
    return found


async def send(
    view: ClusterView, *messages: Message, options: ProducerOptions | None = None
) -> list[SendReceipt]:
    """Send messages one after the other."""
    async with AsyncProducer(
        view.admin.client, group="console-tests", options=patient(options)
    ) as producer:
        return [await producer.send(message) for message in messages]


@contextlib.asynccontextmanager
async def consumers(
    view: ClusterView,
    group: str,
    topic: str,
    *expressions: str,
    handler: Any = None,
    options: ConsumerOptions | None = None,
) -> AsyncGenerator[list[AsyncPushConsumer]]:
    """Run members of a group, each of a client of its own."""

    async def consume(message: Any) -> None:
        if handler is not None:
            handler(message)

    async with contextlib.AsyncExitStack() as stack:
        members: list[AsyncPushConsumer] = []
        for expression in expressions:
            client = await stack.enter_async_context(
                AsyncClient(view.name_servers, options=PATIENT)
            )
            consumer = AsyncPushConsumer(
                client,
                group=group,
                subscribe={topic: expression},
                handler=consume,
                options=options,
            )
            members.append(await stack.enter_async_context(consumer))
        yield members


# ---- overview ------------------------------------------------------------------------------------


def test_overview_has_rates_storage_brokers_and_lags(
    server: Server, unique_name: UniqueName
) -> None:
    topic, other, group = server.topic(), server.topic(), unique_name("group")

    async def work(view: ClusterView) -> None:
        async def look_after_a_send() -> Overview:
            # A rate is the difference between two polls, and a new broker may refuse the first.
            await send(view, Message(other, b"x"))
            return await view.overview()

        await view.admin.create_group(group)
        for queue in await view.admin.read_queues(topic):
            await view.admin.set_group_offset(group, queue, 0)
        # Enough to be the largest lag of a server that all tests share.
        for _ in range(4):
            await send(view, *(Message(topic, b"x" * 100) for _ in range(20)))
        await asyncio.to_thread(server.read_all, topic, 80)  # all can be read
        page = await until(look_after_a_send, lambda page: any(page.recent.columns["sent"]))
        assert page.state.is_up
        assert len(page.brokers) == page.brokers_up == len(server.brokers)
        (broker, *_) = page.brokers
        assert broker.version == (server.version or "5.5.0")
        assert broker.is_up
        assert (page.stored_bytes or 0) > 0
        assert 0 < (page.disk_used or 0) < 1
        view._poller.forget()  # what was read before the group had offsets
        await view._poller.poll_slowly()
        page = await view.overview()
        assert (page.topic_count or 0) >= 1
        assert page.dead_letters_last_hour is not None
        lags = {(row.group, row.topic): row.messages for row in page.largest_lags}
        assert lags[group, topic] == 80
        assert (page.lag or 0) >= 80
        viewer = view.overviews()
        first = await anext(viewer)
        second = await anext(viewer)
        assert len(second.recent.times) >= len(first.recent.times)
        assert json.loads(as_json(second))["state"]["is_up"] is True

    look(server, work)


# ---- topics --------------------------------------------------------------------------------------


def test_topics_are_searched_sorted_and_paged(server: Server, unique_name: UniqueName) -> None:
    prefix, group = unique_name("list"), unique_name("group")
    names = [server.topic(queues=2, name=f"{prefix}-{number}") for number in range(3)]

    async def work(view: ClusterView) -> None:
        await send(view, *(Message(names[1], b"1") for _ in range(3)), Message(names[2], b"2"))
        await view.admin.create_group(group)
        for queue in await view.admin.read_queues(names[1]):
            await view.admin.set_group_offset(group, queue, 0)
        wanted = ListRequest(search=prefix.upper(), size=2)
        page = await until(
            lambda: view.topics(replace(wanted, sort="lag", is_descending=True)),
            lambda page: page.rows and (page.rows[0].messages, page.rows[0].lag) == (3, 3),
        )
        assert (page.paging.total, page.paging.page_count) == (3, 2)
        first, second = page.rows
        assert (first.topic, second.topic) == (names[1], names[0])
        assert (first.messages, first.queues, first.lag) == (3, 2 * len(server.brokers), 3)
        assert first.groups[0].group == group
        assert first.groups[0].lag == 3
        assert first.first_stored_at is not None
        assert first.last_stored_at is not None
        # The three may have been stored in one millisecond.
        assert first.span is not None
        assert 0 <= first.span < 600
        assert (second.messages, second.first_stored_at, second.span) == (0, None, None)
        (last,) = (
            await until(
                lambda: view.topics(replace(wanted, page=2)),
                lambda page: page.rows and page.rows[0].messages,
            )
        ).rows
        assert (last.topic, last.messages) == (names[2], 1)
        by_count = await view.topics(replace(wanted, sort="messages"))
        assert by_count.notes[0].code == "order-by-sweep"
        system = await view.topics(ListRequest(search="SCHEDULE_TOPIC", with_system=True))
        assert [(row.topic, row.kind) for row in system.rows] == [("SCHEDULE_TOPIC_XXXX", "system")]
        with pytest.raises(OptionError, match="sort='size'"):
            await view.topics(ListRequest(sort="size"))

    look(server, work)


def test_a_topic_shows_queues_route_settings_and_groups(
    server: Server, unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=2), unique_name("group")

    async def work(view: ClusterView) -> None:
        (receipt,) = await send(view, Message(topic, b"1"))
        await view.admin.create_group(group)
        await view.admin.set_group_offset(group, receipt.queue, 0)
        # Lags and queues are asked for one after the other, and both may be older than the message.
        page = await until(
            lambda: view.topic(topic),
            lambda page: page.groups and page.groups[0].lag and page.row.messages,
        )
        assert len(page.queues) == 2 * len(server.brokers)
        (full,) = [queue for queue in page.queues if queue.messages]
        assert (full.broker, full.queue, full.first, full.end) == (
            *(receipt.queue.broker, receipt.queue.number, 0),
            1,
        )
        assert full.first_stored_at == full.last_stored_at
        assert (full.span, page.row.messages, page.missing) == (0.0, 1, ())
        assert [(part.read_queues, part.permission) for part in page.route] == [(2, "rw")]
        assert page.route[0].addresses == {0: server.brokers[0]}
        assert [(each.write_queues, each.permission) for each in page.settings] == [(2, "rw")]
        assert [(each.group, each.lag) for each in page.groups] == [(group, 1)]
        with pytest.raises(RouteNotFound):
            await view.topic("nowhere")

    look(server, work)


# ---- messages ------------------------------------------------------------------------------------


def test_one_text_finds_messages_by_id_key_time_and_place(server: Server) -> None:
    topic = server.topic(queues=1)

    async def work(view: ClusterView) -> None:
        messages = [Message(topic, b"%d" % number, keys=f"key-{number}") for number in range(40)]
        receipts = await send(view, *messages[:35])
        await asyncio.sleep(0.1)
        receipts += await send(view, *messages[35:])
        everything = await until(
            lambda: view.search(topic, rows=100), lambda found: len(found.messages) == 40
        )
        assert [row.preview for row in everything.messages[:2]] == ["39", "38"]
        assert (everything.stopped, everything.scanned) == ("complete", 40)
        middle = receipts[20]
        for text in (middle.message_id, middle.offset_id):
            (row,) = (await view.search(topic, text)).messages
            assert (row.preview, row.message_id) == ("20", middle.message_id)
        by_key = await until(lambda: view.search(topic, "key-7"), lambda found: found.messages)
        assert [row.preview for row in by_key.messages] == ["7"]
        placed = await view.search(topic, "0:38")
        assert [row.offset for row in placed.messages] == [38, 39]
        # Of messages of the same millisecond Apache's brokers may find any, so none has this time.
        begin = everything.messages[5].stored_at + timedelta(milliseconds=50)
        recent = await view.search(topic, f"time={begin.isoformat()}", rows=100)
        assert [row.preview for row in recent.messages] == ["35", "36", "37", "38", "39"]
        few = await view.search(topic, "1h", rows=3)
        assert ([row.preview for row in few.messages], few.stopped) == (["0", "1", "2"], "rows")
        late = await view.search(topic, f"time={(datetime.now(UTC) + timedelta(days=1))}")
        assert (late.messages, late.stopped) == ((), "complete")
        with pytest.raises(RouteNotFound):
            await view.search("nowhere")

    look(server, work)


def test_a_message_shows_body_properties_trace_and_deliveries(
    server: Server, unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=1), unique_name("group")

    async def work(view: ClusterView) -> None:
        message = Message(topic, b'{"a": 1}' * 1, tags="new", keys="k", properties={"own": "p"})
        zipped = Message(topic, b"z" * 10_000)
        traced = ProducerOptions(trace=True, compress_over_bytes=100)
        async with consumers(view, group, topic, "*", options=ConsumerOptions(trace=True)):
            await until(lambda: view.group(group), lambda page: page.topics)
            receipt, large = await send(view, message, zipped, options=traced)

            async def shown() -> MessageDetail | None:
                try:
                    return await view.message(topic, receipt.message_id)
                except NotFound:
                    return None  # indexes are written a moment later

            page = await until(
                shown,
                lambda page: (
                    page is not None
                    and len(page.trace.steps) == 3
                    and page.deliveries
                    and page.deliveries[0].is_consumed
                ),
            )
        assert page is not None
        assert page.body.json == '{\n  "a": 1\n}'
        assert (page.properties["own"], page.row.tags, page.row.keys) == ("p", "new", ("k",))
        assert {step.step for step in page.trace.steps} == {"send", "receive", "process"}
        sent = next(step for step in page.trace.steps if step.step == "send")
        assert (sent.group, sent.is_ok) == ("console-tests", True)
        processed = next(step for step in page.trace.steps if step.step == "process")
        assert (processed.group, processed.is_ok, processed.detail) == (group, True, "success")
        assert all(step.client.startswith("127.0.0.1") for step in page.trace.steps)
        (delivery,) = page.deliveries
        assert (delivery.group, len(delivery.members)) == (group, 1)
        assert "mq.Message(" in page.python
        assert page.command.startswith("downrange message show --name-server")
        other = await view.message(topic, large.offset_id)
        assert (other.body.size, other.body.compression) == (10_000, "zlib")
        assert await view.body(topic, large.message_id) == b"z" * 10_000
        report = await view.trace_report()
        assert report.is_on
        sums = {(row.topic, row.step): row.count for row in report.rows}
        assert sums[topic, "send"] == 2
        assert sums[topic, "process"] >= 1
        with pytest.raises(NotFound):
            await view.message(topic, "AB" * 16)

    look(server, work)


@pytest.mark.parametrize(
    ("form", "text", "wanted"),
    [
        ("none", "", ["1", "2", "3"]),
        ("tags", "new || paid", ["1", "3"]),
        ("sql", "amount > 15", ["2", "3"]),
        ("text", "BLUE", ["2"]),
    ],
)
def test_a_tail_filters_here(server: Server, form: str, text: str, wanted: list[str]) -> None:
    topic = server.topic(queues=2)

    async def work(view: ClusterView) -> None:
        request = TailRequest(topic=topic, filter_kind=form, filter=text)  # type: ignore[arg-type]
        (before,) = await send(view, Message(topic, b"before"))
        # Apache's brokers count a message as stored a moment after its receipt.
        await until(lambda: view.admin.max_offset(before.queue), lambda end: end > before.offset)
        tail = view.tail(request)
        first = await anext(tail)
        assert (first.messages, first.scanned, first.stopped) == ((), 0, None)
        await send(
            view,
            Message(topic, b"1", tags="new", properties={"amount": "10"}),
            Message(topic, b"2", tags="old", properties={"amount": "20", "color": "blue"}),
            Message(topic, b"3", tags="paid", properties={"amount": "30"}),
        )
        found: list[str] = []
        batch = first
        async with asyncio.timeout(WAIT_TIMEOUT * WAIT_SCALE):
            async for batch in tail:
                found += [row.preview for row in batch.messages]
                if batch.scanned == 3:
                    break
        assert (sorted(found), batch.matched, batch.dropped) == (wanted, len(wanted), 0)
        everything = await anext(view.tail(replace(request, start="earliest")))
        assert everything.scanned == 4
        with pytest.raises(InvalidSql):
            await anext(view.tail(replace(request, filter_kind="sql", filter="a >")))
        with pytest.raises(RouteNotFound):
            await anext(view.tail(TailRequest(topic="nowhere")))

    look(server, work)


# ---- groups and clients --------------------------------------------------------------------------


def test_a_group_shows_members_mismatches_and_lag(server: Server, unique_name: UniqueName) -> None:
    topic, group = server.topic(queues=2), unique_name("group")

    async def work(view: ClusterView) -> None:
        await view.admin.create_group(group)
        await send(view, *(Message(topic, b"1", tags="new") for _ in range(4)))
        async with consumers(view, group, topic, "*", "new"):
            page = await until(
                lambda: view.group(group),
                lambda page: (
                    len(page.members) == 2
                    and all(member.reads for member in page.members)
                    and page.topics
                ),
            )
            # These lists are shared by all viewers, and may be older.
            (row,) = (
                await until(
                    lambda: view.groups(ListRequest(search=group)),
                    lambda page: page.rows and page.rows[0].members == 2,
                )
            ).rows
            clients = await until(
                lambda: view.clients(ListRequest(search=group, sort="address")),
                lambda page: page.paging.total == 2,
            )
        assert {member.language for member in page.members} == {"PYTHON"}
        assert all(member.version for member in page.members)
        different = page.subscriptions[0]
        assert (different.topic, different.is_same) == (topic, False)
        assert sorted(str(each) for each in different.expressions.values()) == ["*", "new"]
        assert (page.mode, page.model, page.topics) == ("push", "clustering", (topic,))
        assert {queue.topic for queue in page.queues} >= {topic}
        assert len(page.settings) == len(server.brokers)
        assert (row.members, row.mode, row.group) == (2, "push", group)
        assert clients.paging.total == 2
        assert {client.role for client in clients.rows} == {"consumer"}
        assert clients.consumers >= 2
        in_flight = {queue.in_flight is None for queue in page.queues}
        assert in_flight == {server.is_old}
        with pytest.raises(GroupNotFound):
            await view.group(unique_name("missing"))

    look(server, work)


def test_lag_of_a_group_is_told_in_messages_and_time(
    server: Server, unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=1), unique_name("group")

    async def work(view: ClusterView) -> None:
        await view.admin.create_group(group)
        receipts = await send(view, *(Message(topic, b"1") for _ in range(5)))
        await view.admin.set_group_offset(group, receipts[0].queue, 2)
        page = await until(lambda: view.group(group), lambda page: page.lag)
        page = await until(lambda: view.group(group), lambda page: page.queues[0].end == 5)
        (queue,) = page.queues
        assert (queue.committed, queue.end, queue.lag, page.lag) == (2, 5, 3, 3)
        assert queue.age is not None
        assert 0 <= queue.age < 600
        assert queue.consumed_at is not None
        assert (page.members, page.mode, page.dead_letters) == ((), None, 0)

    look(server, work)


def test_producers_are_listed_as_clients(server: Server, unique_name: UniqueName) -> None:
    topic, group = server.topic(), unique_name("producers")

    async def work(view: ClusterView) -> None:
        async with AsyncProducer(view.name_servers, group=group, options=patient(None)) as producer:
            await producer.send(Message(topic, b"1"))
            page = await until(
                lambda: view.clients(ListRequest(search=group)), lambda page: page.rows
            )
        (row,) = page.rows
        assert (row.role, row.group, row.language) == ("producer", group, "PYTHON")
        assert page.producers >= 1

    look(server, work)


# ---- dead letters --------------------------------------------------------------------------------


def test_dead_letters_are_listed_counted_and_exported(
    server: Server, unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=1), unique_name("group")

    def refuse(message: Any) -> None:
        raise DeadLetter("unreadable")

    async def work(view: ClusterView) -> None:
        async with consumers(view, group, topic, "*", handler=refuse):
            await until(lambda: view.group(group), lambda page: page.topics)
            await send(
                view, *(Message(topic, b"=%d" % number, keys=f"k{number}") for number in range(3))
            )
            page = await until(
                lambda: view.dead_letters(group, size=2),
                lambda page: page.total == 3 and len(page.rows) == 2,
            )
        assert page.next is not None
        rest = await view.dead_letters(group, size=2, next=page.next)
        assert (len(rest.rows), rest.next) == (1, None)
        rows = [*page.rows, *rest.rows]
        assert sorted(row.preview for row in rows) == ["=0", "=1", "=2"]
        assert {row.topic for row in rows} == {topic}
        assert len({row.id for row in rows}) == 3
        (count,) = (
            await until(
                lambda: view.dead_letter_groups(ListRequest(search=group)),
                lambda page: page.rows and page.rows[0].total == 3,
            )
        ).rows
        assert (count.group, count.last_hour, count.total) == (group, 3, 3)
        later = datetime.now(UTC) + timedelta(hours=1)
        assert (await view.dead_letters(group, begin=later)).rows == ()
        chosen = {rows[0].id, rows[2].id}
        lines = b"".join(
            [each async for each in view.export_dead_letters(group, "jsonl", ids=chosen)]
        )
        assert {json.loads(line)["offset_id"] for line in lines.splitlines()} == chosen
        sheet = b"".join([each async for each in view.export_dead_letters(group, "csv")]).decode()
        assert sheet.splitlines()[0].startswith("group,origin_topic")
        assert sheet.count("'=") == 3
        with pytest.raises(OptionError, match="begin with the first page"):
            await view.dead_letters(group, next="zz")
        with pytest.raises(GroupNotFound):
            await view.dead_letters(unique_name("missing"))

    look(server, work)


# ---- what waits ----------------------------------------------------------------------------------


def test_delayed_timed_and_half_messages_are_shown_as_far_as_a_release_tells(
    server: Server, unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("halves")

    async def work(view: ClusterView) -> None:
        if not server.is_old:
            await send(view, Message(topic, b"timed", deliver_in=3000.0))
        async with AsyncTransactionProducer(
            view.admin.client,
            group=group,
            check=lambda message: Outcome.UNKNOWN,
            options=patient(None),
        ) as producer:
            await producer.send_in_transaction(
                Message(topic, b"half"), execute=lambda *_: Outcome.UNKNOWN
            )

            async def look_again() -> WaitingPage:
                # The one before may have been delivered meanwhile: our level 5 is five seconds.
                await send(view, Message(topic, b"later", delay_level=5))
                return await view.waiting()

            wanted = {"later"} if server.is_old else {"later", "timed"}
            # A broker that checks a half stores it once more and ends the first record. A page that
            # is read meanwhile has the end, and not the new record.
            is_ended = None if server.is_old else False
            page = await until(
                look_again,
                lambda page: (
                    any(
                        (half.group, half.is_ended) == (group, is_ended)
                        for half in page.newest_halves
                    )
                    and any(level.level == 5 and level.waiting for level in page.levels)
                    and {each.preview for each in page.delayed if each.topic == topic} == wanted
                    and (server.is_old or any(each.topic == topic for each in page.timed))
                ),
            )
        level = next(level for level in page.levels if level.level == 5 and level.waiting)
        assert level.delay == (60.0 if server.is_apache else 5.0)
        assert level.stored >= (level.waiting or 0)
        half = next(half for half in page.newest_halves if half.group == group)
        assert (half.topic, half.preview) == (topic, "half")
        assert half.is_ended is is_ended
        waiting = {each.preview: each for each in page.delayed if each.topic == topic}
        assert waiting["later"].due_at is not None
        assert waiting["later"].level == 5
        assert ("timed" in waiting) is not server.is_old
        found = await view.message(waiting["later"].stored_in, waiting["later"].offset_id)
        assert found.body.text == "later"
        codes = {note.code for note in page.notes}
        assert ("half-state-not-told" in codes) is server.is_old
        assert ("timers-too-old" in codes, "half-ends-not-told" in codes) == (
            *(server.is_old,),
            server.is_old,
        )
        if server.is_old:
            assert (page.timers, page.halves[0].ended) == ((), None)
        else:
            (timed,) = [each for each in page.timed if each.topic == topic]
            assert timed.waiting == 1
            assert page.timers[0].waiting
        assert page.missing == ()

    look(server, work)


# ---- brokers -------------------------------------------------------------------------------------


def test_brokers_and_name_servers_tell_settings_figures_and_disks(server: Server) -> None:
    async def work(view: ClusterView) -> None:
        page = await view.brokers()
        assert [(each.address, each.is_up) for each in page.name_servers] == [
            (server.name_server, True)
        ]
        assert page.name_servers[0].settings["listenPort"]
        name = page.brokers[0].name
        # A broker of Apache 4.9 that was just started does not tell its figures for some seconds.
        detail = await until(lambda: view.broker(name), lambda detail: detail.figures)
        assert detail.addresses == {0: server.brokers[0]}
        assert detail.settings["brokerName"] == name
        assert "commitLogMaxOffset" in detail.figures
        log = detail.disks[0]
        assert log.path is not None
        assert 0 < (log.used or 0) < 1
        assert log.total is not None
        with pytest.raises(OptionError, match="there is no broker 'zz'"):
            await view.broker("zz")

    look(server, work)


# ---- access --------------------------------------------------------------------------------------


def test_a_cluster_with_access_control_is_shown_to_an_account_that_may(guarded: str) -> None:
    account = ACCOUNTS.admin

    def is_told(page: Overview, is_wanted: bool) -> bool:
        """Whether a broker tells its figures, which a new one of Apache 4.9 refuses at first."""
        return (page.state.problem is None) is is_wanted

    async def read(credentials: Credentials | None) -> None:
        async with ClusterView(
            guarded, client_options=PATIENT, credentials=credentials, poll_seconds=0.2
        ) as view:
            page = await until(view.overview, lambda page: is_told(page, credentials is not None))
            assert (page.state.is_up, page.brokers_up) == (True, 1)
            detail = await view.broker(page.brokers[0].name)
            if credentials is not None:
                assert page.state.problem is None
                await view.topics()
                await view.groups()
                assert (detail.figures["commitLogMaxOffset"], detail.notes) == (ANY, ())
            else:
                assert str(page.state.problem).startswith("no broker tells its figures: code ")
                assert str(page.brokers[0].problem) in str(page.state.problem)
                assert page.brokers[0].version is None
                codes = [note.code for note in detail.notes]
                assert codes == ["broker-figures-refused", "broker-settings-refused"]
                with pytest.raises(NoPermission):
                    await view.groups()

    asyncio.run(read(Credentials(account.access_key, account.secret_key)))
    asyncio.run(read(None))
