"""The console's view of our own cluster: one that goes away, one that is slow, limits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Admin, Cluster, DeadMessage
from downrange.client.flows.client_core import ClientCore
from downrange.console.cluster import limits
from downrange.console.cluster.actions.dead_letters import ResendDeadLetters
from downrange.console.cluster.actions.messages import SendAgain, SendMessage
from downrange.console.cluster.pages.common import ListRequest
from downrange.console.cluster.pages.messages import TailRequest
from downrange.console.cluster.problems import (
    ActionTooSlow,
    ClusterGone,
    PageTooSlow,
    TooManyViewers,
)
from downrange.console.cluster.view import ClusterView
from downrange.embedded import Interception, cut, drop, refuse
from downrange.errors import CallTimeout, OptionError
from downrange.options import ClientOptions
from downrange.wire.codes import RequestCode
from downrange.wire.headers import SendBackRequest
from tests.apache import probe
from tests.apache.ports import draw_name_server_port
from tests.support.waiting import WAIT_TIMEOUT, wait_until_async
from tests.unit.console.cluster.fake_admin import message

if TYPE_CHECKING:
    from pathlib import Path


def test_a_cluster_that_goes_away_is_shown_as_gone_and_comes_back_by_itself(
    tmp_path: Path,
) -> None:
    port = draw_name_server_port()  # the system gives it to no other process meanwhile
    first = Cluster(store=tmp_path, nameserver_port=port)
    first.start()

    async def work() -> None:
        async with ClusterView(first.name_server, poll_seconds=0.1) as view:
            assert (await view.overview()).state.is_up
            await view.admin.create_topic("orders", queues=1)
            await view.do(SendMessage(topic="orders", body="1"))
            tail = view.tail(TailRequest(topic="orders"))
            await anext(tail)
            await asyncio.to_thread(first.stop)
            last = [batch async for batch in tail][-1]
            assert last.stopped == "gone"
            await wait_until_async(lambda: not view.state.is_up)
            state = view.state
            assert state.problem
            assert state.since is not None
            for page in (view.topics, view.groups, view.waiting, view.clients, view.brokers):
                with pytest.raises(ClusterGone, match="does not answer since") as gone:
                    await page()
                assert gone.value.since == state.since
            overview = await view.overview()
            assert (overview.brokers_up, overview.brokers[0].is_up) == (0, False)
            with Cluster(store=tmp_path, nameserver_port=port):
                await wait_until_async(lambda: view.state.is_up)
                assert (await view.search("orders")).messages[0].preview == "1"
                row = (await view.overview()).brokers[0]
                assert row.is_up

    asyncio.run(work())


def test_a_view_starts_without_a_cluster(tmp_path: Path) -> None:
    port = draw_name_server_port()  # the system gives it to no other process meanwhile

    async def work() -> None:
        async with ClusterView(f"127.0.0.1:{port}", poll_seconds=0.1) as view:
            assert not (await view.overview()).state.is_up
            with pytest.raises(ClusterGone):
                await view.topics()
            with Cluster(store=tmp_path, nameserver_port=port):
                await wait_until_async(lambda: view.state.is_up)
                assert (await view.topics()).rows == ()

    asyncio.run(work())


def test_one_broker_of_two_that_is_down_does_not_hide_the_other() -> None:
    with Cluster(brokers=2) as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server, poll_seconds=0.1) as view:
                await view.admin.create_topic("orders", queues=1)
                await view.admin.create_group("billing")
                for queue in await view.admin.read_queues("orders"):
                    await view.admin.set_group_offset("billing", queue, 0)
                await asyncio.to_thread(cluster.kill_broker, 1)
                await wait_until_async(
                    lambda: [row.is_up for row in view._poller.overview().brokers] == [True, False]
                )
                assert view.state.is_up
                view._poller.forget()
                assert [row.topic for row in (await view.topics()).rows] == ["orders"]
                assert [row.group for row in (await view.groups()).rows] == ["billing"]
                detail = await view.topic("orders")
                assert len(detail.queues) == 1
                name = view._poller.overview().brokers[1].name
                assert (await view.broker(name)).notes[0].code == "broker-down"

        asyncio.run(work())


def test_a_broker_that_is_registered_and_does_not_answer_is_named() -> None:
    with Cluster(brokers=2) as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server, poll_seconds=0.1) as view:
                await view.admin.create_topic("orders", queues=1)
                await view.admin.create_group("billing")
                for queue in await view.admin.read_queues("orders"):
                    await view.admin.set_group_offset("billing", queue, 0)
                await view.do(SendMessage(topic="orders", body="1"))
                for code in RequestCode:
                    cluster.intercept(code, cut(), broker=1)
                view.forget()
                detail = await view.topic("orders")
                (missing,) = detail.missing
                assert {queue.broker for queue in detail.queues} == {
                    row.name for row in (await view.overview()).brokers
                } - {missing.broker}
                assert (detail.settings, detail.row.problem is None) == ((), False)
                assert [each.group for each in detail.groups] == ["billing"]
                (row,) = (await view.topics()).rows
                assert missing.broker in str(row.problem)
                groups = await view.groups()
                assert [row.group for row in groups.rows] == ["billing"]
                assert groups.notes[0].code == "lags-incomplete"
                assert (await view.group("billing")).missing
                assert {each.code for each in (await view.search("orders")).notes} >= {"scanned"}
                assert (await view.waiting()).missing

        asyncio.run(work())


def test_a_broker_that_answers_with_an_error_is_up() -> None:
    with Cluster(brokers=2) as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server, poll_seconds=0.1) as view:
                await view.admin.create_topic("orders", queues=1)
                code = RequestCode.GET_BROKER_RUNTIME_INFO
                cluster.intercept(code, refuse(1, "not yet"), broker=1)
                await wait_until_async(
                    lambda: (
                        [row.problem for row in view._poller.overview().brokers]
                        == [None, "code 1: not yet"]
                    )
                )
                page = await view.overview()
                assert (page.brokers_up, page.state.is_up, page.state.problem) == (2, True, None)
                assert page.brokers[1].stored_bytes is None
                detail = await view.broker(page.brokers[1].name)
                assert detail.notes[0].code == "broker-figures-refused"
                assert detail.settings["brokerName"] == detail.row.name
                cluster.intercept(code, refuse(1, "not yet"), broker=0)
                await wait_until_async(lambda: view.state.problem is not None)
                assert view.state.is_up
                assert view.state.problem == "no broker tells its figures: code 1: not yet"
                view.forget()  # what was read before the topic was there
                assert [row.topic for row in (await view.topics()).rows] == ["orders"]
                # No answer at all is another thing.
                cluster.intercept(code, cut(), broker=1)
                await wait_until_async(
                    lambda: [row.is_up for row in view._poller.overview().brokers] == [True, False]
                )
                cluster.intercept(code, None)
                await wait_until_async(lambda: (view._poller.overview().brokers_up) == 2)
                await wait_until_async(lambda: view.state.problem is None)

        asyncio.run(work())


def test_a_page_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster() as cluster:
        cluster.intercept(RequestCode.GET_TOPIC_STATS_INFO, Interception(delay=2.0))

        async def work() -> None:
            async with ClusterView(cluster.name_server) as view:
                await view.admin.create_topic("orders")
                with pytest.raises(PageTooSlow, match=r"in 0\.2 s"):
                    await view._ask(view.admin.topic_stats("orders"), seconds=0.2)
                # One that hangs longer than a request may take is an error of that request.
                cluster.intercept(RequestCode.GET_TOPIC_STATS_INFO, drop())
                with pytest.raises(CallTimeout):
                    await view._ask(view.admin.topic_stats("orders", timeout=0.2))
                assert view.state.is_up

        asyncio.run(work())


def test_an_action_that_takes_too_long_says_that_a_part_may_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ACTION_SECONDS", 0.2)
    with Cluster() as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server) as view:
                await view.admin.create_topic("orders", queues=1)
                cluster.intercept(RequestCode.SEND_MESSAGE_V2, Interception(delay=2.0))
                with pytest.raises(ActionTooSlow, match="a part of it may have been done"):
                    await view.do(SendMessage(topic="orders", body="1"))

        asyncio.run(work())


def test_visitors_send_at_the_same_time() -> None:
    with Cluster() as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server) as view:
                await view.admin.create_topic("orders", queues=1)
                cluster.intercept(RequestCode.SEND_MESSAGE_V2, Interception(delay=0.2))
                actions = [SendMessage(topic="orders", body=str(number)) for number in range(5)]
                results = await asyncio.gather(*map(view.do, actions))
                assert {result.values["offset"] for result in results} == set(range(5))
            assert view.admin.state == "closed"

        asyncio.run(work())


def test_a_body_that_cannot_be_decompressed_hides_nothing_else() -> None:
    with Cluster() as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server) as view:
                await _send_broken(view, "orders")
                await view.do(SendMessage(topic="orders", body="fine"))
                rows = (await view.search("orders")).messages
                assert [row.preview for row in rows] == ["fine", ""]
                assert "cannot be decompressed" in str(rows[1].problem)
                tail = view.tail(TailRequest(topic="orders", start="earliest"))
                assert [row.preview for row in (await anext(tail)).messages] == ["", "fine"]
                page = await view.message("orders", rows[1].offset_id)
                assert (page.body.problem is None, page.body.size) == (False, 8)
                again = await view.do(SendAgain(topic="orders", message_id=rows[1].offset_id))
                copy = await view.message("orders", str(again.values["message_id"]))
                assert (copy.body.problem, copy.body.size) == (page.body.problem, 8)

        asyncio.run(work())


def test_a_dead_letter_that_cannot_be_decompressed_is_listed_exported_and_sent_again() -> None:
    with Cluster() as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server) as view:
                await view.admin.create_group("billing")
                await _send_broken(view, "orders")
                (found,) = (await view.search("orders")).messages
                stored = await view.admin.view_message("orders", found.offset_id, decode_body=False)
                back = SendBackRequest(
                    offset=stored.log_offset,
                    group="billing",
                    delay_level=-1,
                    origin_topic="orders",
                    unit_mode=False,
                )
                code = RequestCode.CONSUMER_SEND_MSG_BACK
                assert probe.call(cluster.brokers[0], code, back.to_fields()).code == 0
                (row,) = (await view.dead_letters("billing")).rows
                assert row.problem == found.problem
                pieces = [each async for each in view.export_dead_letters("billing", "jsonl")]
                assert b'"body_problem": "ZLIB body: cannot be decompressed' in b"".join(pieces)
                sent = await view.do(ResendDeadLetters(group="billing", ids=(row.id,)))
                assert sent.is_ok
                copy = (await view.search("orders")).messages[0]
                assert (copy.problem, copy.offset) == (found.problem, 1)

        asyncio.run(work())


async def _send_broken(view: ClusterView, topic: str) -> None:
    """Send a message whose body claims to be compressed."""
    await view.admin.create_topic(topic, queues=1)
    broken = replace(message(0, b"not zlib", UNIQ_KEY="U"), compression="zlib")
    letter = DeadMessage(group="g", message=broken, topic=topic, origin_id="O")
    (result,) = await view.admin.resend_dead_letters([letter], skip_resent=False)
    assert result.outcome == "sent", result


def test_source_of_a_message_sends_it_to_the_topic_of_its_namespace() -> None:
    with Cluster() as cluster:

        async def work() -> str:
            options = ClientOptions(namespace="ns1")
            async with ClusterView(cluster.name_server, client_options=options) as view:
                await view.admin.create_topic("orders", queues=1)
                sent = await view.do(SendMessage(topic="orders", body="1"))
                page = await view.message("orders", str(sent.values["offset_id"]))
                return page.python

        exec(asyncio.run(work()), {})
        with Admin(cluster.name_server) as admin:
            assert [state.count for state in admin.topic_stats("ns1%orders")] == [2]


def test_wrong_settings_are_refused() -> None:
    for seconds in (0.0, -1.0, 1e9):
        with pytest.raises(OptionError, match="poll_seconds="):
            ClusterView("127.0.0.1:9876", poll_seconds=seconds)
    with pytest.raises(OptionError):
        ClusterView("no address")
    assert ClusterView(iter(["a:1", "b:2"])).name_servers == "a:1;b:2"


def test_topics_are_offered_unless_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster() as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server) as view:
                for name in ("payments", "orders"):
                    await view.admin.create_topic(name, queues=1)
                await view.overview()
                view.forget()
                await view._poller.poll_slowly()
                assert view.offered_topics() == ("orders", "payments")
                monkeypatch.setattr(limits, "TOPICS_OFFERED_MAX", 1)
                assert view.offered_topics() == ()

        asyncio.run(work())


def test_tails_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TAILS_MAX", 1)
    with Cluster() as cluster:

        async def work() -> None:
            async with ClusterView(cluster.name_server) as view:
                await view.admin.create_topic("orders")
                first = view.tail(TailRequest(topic="orders"))
                await anext(first)
                with pytest.raises(TooManyViewers, match="1 tails are running"):
                    await anext(view.tail(TailRequest(topic="orders")))
                await first.aclose()  # type: ignore[attr-defined]
                await anext(view.tail(TailRequest(topic="orders")))

        asyncio.run(work())


def test_requests_of_a_page_do_not_grow_with_topics_or_viewers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses: list[str] = []
    counted: list[str] = []
    original = ClientCore.call

    def call(core: ClientCore, address: str, *args: Any, **settings: Any) -> Any:
        if address in addresses:  # other clients of this process have timers
            counted.append(address)
        return original(core, address, *args, **settings)

    monkeypatch.setattr(ClientCore, "call", call)
    with Cluster() as cluster:
        addresses += [cluster.name_server, *cluster.brokers]
        seldom = 3600.0  # no timer runs while requests are counted

        async def requests_of(topics: int, viewers: int) -> int:
            async with ClusterView(
                cluster.name_server,
                client_options=ClientOptions(
                    call_timeout=WAIT_TIMEOUT,
                    route_refresh_interval=seldom,
                    heartbeat_interval=seldom,
                ),
                poll_seconds=WAIT_TIMEOUT,
            ) as view:
                names = [f"t-{number:04}" for number in range(topics)]
                for first in range(0, topics, 20):  # all at once take longer than a request may
                    some = names[first : first + 20]
                    await asyncio.gather(
                        *(view.admin.create_topic(each, queues=1) for each in some)
                    )
                await view.overview()
                view._poller.forget()  # what was read before the topics were there
                await view._poller.poll_slowly()
                counted.clear()
                page = ListRequest(size=10)
                await asyncio.gather(*(view.topics(page) for _ in range(viewers)))
                return len(counted)

        few, many = asyncio.run(requests_of(20, 1)), asyncio.run(requests_of(300, 1))
        assert 0 < many <= few + 5
        # Rows are read for each viewer; lists and lags are shared.
        assert asyncio.run(requests_of(300, 3)) <= 3 * few + 5
