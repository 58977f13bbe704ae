"""A view of a cluster that exists only here: every page has a row, and hostile names in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from downrange.console.cluster.actions.action import ActionResult, command_line
from downrange.console.cluster.pages import brokers as brokers_pages
from downrange.console.cluster.pages import clients as clients_pages
from downrange.console.cluster.pages import dead_letters as dead_letters_pages
from downrange.console.cluster.pages import groups as groups_pages
from downrange.console.cluster.pages import messages as messages_page
from downrange.console.cluster.pages import overview as overview_page
from downrange.console.cluster.pages import topics as topics_pages
from downrange.console.cluster.pages import traces as traces_pages
from downrange.console.cluster.pages import waiting as waiting_page
from downrange.console.cluster.pages.common import ClusterState, ListRequest, Note, Paging
from downrange.console.cluster.problems import ClusterGone, NotConfirmed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from downrange.console.cluster.actions.action import Action
    from downrange.errors import RocketMQError

AT: Final = datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC)
ATTACK: Final = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
NAME_SERVER: Final = "127.0.0.1:9876"


def paging(request: ListRequest, *columns: str) -> Paging:
    """Return a list of one page."""
    return Paging(request=request, page_count=3, total=120, columns=columns)


BROKER: Final = overview_page.BrokerRow(
    name="broker-a",
    cluster="DefaultCluster",
    address="127.0.0.1:10911",
    replicas=1,
    is_up=True,
    since=AT,
    version="5.5.0",
    sent_rate=12.5,
    received_rate=250.0,
    stored_bytes=5 * 1024**3,
    disk_used=0.25,
    started_at=AT,
)
MESSAGE: Final = messages_page.MessageRow(
    topic=ATTACK,
    broker="broker-a",
    queue=1,
    offset=7,
    message_id="ID" + ATTACK,
    offset_id="7F000001",
    tags=ATTACK,
    keys=(ATTACK,),
    stored_at=AT,
    born_at=AT,
    body_bytes=9,
    preview=ATTACK,
)


@dataclass
class FakeView:
    """Implements what the web side uses of `ClusterView`.

    Attributes:
        failure: Raised by every page and action, if set.
        done: The actions that were done.
        is_up: Whether the cluster answers.
        problem: Why its brokers tell no figures, if so.
        requests: Lists that were asked for.
    """

    failure: RocketMQError | None = None
    done: list[Action] = field(default_factory=list["Action"])
    is_up: bool = True
    problem: str | None = None
    requests: list[ListRequest] = field(default_factory=list[ListRequest])
    tails: list[messages_page.TailRequest] = field(default_factory=list[messages_page.TailRequest])
    name_servers: str = NAME_SERVER

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        return None

    @property
    def state(self) -> ClusterState:
        return ClusterState(
            name_servers=(NAME_SERVER,),
            is_up=self.is_up,
            since=AT,
            checked_at=AT,
            problem=self.problem if self.is_up else "connection refused",
        )

    def offered_topics(self) -> tuple[str, ...]:
        return ("orders", "payments", ATTACK)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self.is_up:
            raise ClusterGone((NAME_SERVER,), AT, "connection refused")

    async def overview(self) -> overview_page.Overview:
        series = overview_page.Series(
            step=2.0,
            times=(1.0, 3.0),
            columns={"sent": (None, 12.5), "received": (1.0, 2.0), "lag": (3.0, 3.0)},
        )
        return overview_page.Overview(
            state=self.state,
            at=AT,
            poll_seconds=2.0,
            sent_rate=12.5,
            received_rate=None,
            stored_bytes=1024,
            disk_used=0.25,
            brokers_up=1,
            brokers=(BROKER, replace(BROKER, name=ATTACK, is_up=False, problem=ATTACK)),
            topic_count=2,
            group_count=1,
            lag=3,
            largest_lags=(
                overview_page.LagRow(
                    group=ATTACK, topic=ATTACK, messages=3, rate=0.5, consumed_at=AT
                ),
            ),
            dead_letters=(
                overview_page.DeadLetterCount(group=ATTACK, last_hour=1, total=2, last_at=AT),
            ),
            dead_letters_last_hour=1,
            recent=series,
            day=series,
            notes=(Note(code="any", text=ATTACK, values={}),),
        )

    async def overviews(self) -> AsyncIterator[overview_page.Overview]:
        for _ in range(2):
            yield await self.overview()

    async def topics(self, request: ListRequest) -> topics_pages.TopicsPage:
        self._check()
        self.requests.append(request)
        group = topics_pages.TopicGroup(group=ATTACK, lag=3, rate=1.0, consumed_at=AT)
        row = topics_pages.TopicRow(topic=ATTACK, kind="retry", groups=(group,) * 5, problem=ATTACK)
        full = topics_pages.TopicRow(
            topic="orders",
            kind="normal",
            queues=4,
            messages=1234567,
            stored_bytes=2048.0,
            sent_rate=1.25,
            sent_day=5,
            first_stored_at=AT,
            last_stored_at=AT,
            span=90_061.0,
            lag=0,
        )
        return topics_pages.TopicsPage(
            paging=paging(request, "name", "lag", "messages"), rows=(row, full)
        )

    async def topic(self, topic: str) -> topics_pages.TopicDetail:
        self._check()
        row = topics_pages.TopicRow(topic=topic, kind="normal")
        return topics_pages.TopicDetail(
            row=row,
            queues=(
                topics_pages.TopicQueue(
                    broker=ATTACK,
                    queue=0,
                    first=0,
                    end=5,
                    messages=5,
                    first_stored_at=AT,
                    last_stored_at=AT,
                    span=0.05,
                ),
            ),
            route=(
                topics_pages.TopicRoute(
                    broker=ATTACK,
                    cluster=ATTACK,
                    addresses={0: ATTACK, 1: "127.0.0.1:1"},
                    read_queues=4,
                    write_queues=4,
                    permission="",
                ),
            ),
            settings=(
                topics_pages.TopicSettingsRow(
                    broker=ATTACK,
                    read_queues=4,
                    write_queues=4,
                    permission="rw",
                    is_ordered=False,
                    attributes={ATTACK: ATTACK},
                ),
            ),
            groups=(topics_pages.TopicGroup(group=ATTACK, lag=None, rate=None),),
        )

    async def search(
        self, topic: str, text: str = "", *, rows: int = 50
    ) -> messages_page.SearchResult:
        self._check()
        return messages_page.SearchResult(
            topic=topic,
            text=text,
            kind="key",
            meaning=ATTACK,
            messages=(MESSAGE, replace(MESSAGE, problem=ATTACK))[:rows],
            scanned=5000,
            stopped="scanned",
        )

    async def message(self, topic: str, message_id: str) -> messages_page.MessageDetail:
        self._check()
        step = messages_page.TraceStep(
            at=AT,
            step="send",
            group=ATTACK,
            client=ATTACK,
            seconds=0.01,
            is_ok=False,
            detail=ATTACK,
        )
        return messages_page.MessageDetail(
            row=replace(MESSAGE, topic=topic, offset_id=message_id),
            born_host=ATTACK,
            delivery_attempts=1,
            flag=0,
            log_offset=99,
            properties={ATTACK: ATTACK},
            body=messages_page.Body(
                size=9, compression="zlib", text=ATTACK, json=ATTACK, hex=ATTACK, is_cut=True
            ),
            trace=messages_page.MessageTrace(is_on=True, steps=(step, replace(step, is_ok=None))),
            deliveries=(
                messages_page.Delivery(group=ATTACK, is_consumed=None, members=(ATTACK,)),
                messages_page.Delivery(group="billing", is_consumed=False, members=()),
            ),
            python=ATTACK,
            command=ATTACK,
        )

    async def body(self, topic: str, message_id: str) -> bytes:
        self._check()
        return ATTACK.encode()

    async def tail(
        self, request: messages_page.TailRequest
    ) -> AsyncIterator[messages_page.TailBatch]:
        self._check()
        self.tails.append(request)
        yield messages_page.TailBatch(messages=(MESSAGE,), scanned=10, matched=1)
        yield messages_page.TailBatch(messages=(), scanned=20, matched=1, stopped="deadline")

    async def groups(self, request: ListRequest) -> groups_pages.GroupsPage:
        self._check()
        self.requests.append(request)
        row = groups_pages.GroupRow(
            group=ATTACK,
            kind="system",
            topics=1,
            members=None,
            mode=None,
            model=None,
            lag=3,
            rate=None,
            consumed_at=None,
            brokers=("broker-a",),
            problem=ATTACK,
        )
        return groups_pages.GroupsPage(paging=paging(request, "name", "lag"), rows=(row,))

    async def group(self, group: str) -> groups_pages.GroupDetail:
        self._check()
        return groups_pages.GroupDetail(
            group=group,
            settings=(
                groups_pages.GroupSettingsRow(
                    broker=ATTACK,
                    is_enabled=False,
                    can_broadcast=True,
                    retries=16,
                    retry_queues=1,
                    is_ordered=False,
                    attributes={ATTACK: ATTACK},
                ),
            ),
            mode="push",
            model="clustering",
            start=None,
            members=(
                groups_pages.MemberRow(
                    client_id=ATTACK,
                    address=ATTACK,
                    language=ATTACK,
                    version=None,
                    brokers=(ATTACK,),
                    reads={ATTACK: ATTACK},
                    queues=2,
                ),
            ),
            subscriptions=(
                groups_pages.SubscriptionRow(
                    topic=ATTACK, expressions={ATTACK: ATTACK, "b": None}, is_same=False, known="*"
                ),
            ),
            queues=(
                groups_pages.GroupQueue(
                    topic=ATTACK,
                    broker=ATTACK,
                    queue=0,
                    committed=1,
                    end=4,
                    lag=3,
                    in_flight=None,
                    age=75.0,
                    consumed_at=AT,
                    owner=ATTACK,
                ),
            ),
            topics=(ATTACK,),
            lag=3,
            age=75.0,
            rate=0.0,
            dead_letters=2,
        )

    async def dead_letter_groups(self, request: ListRequest) -> dead_letters_pages.DeadLetterGroups:
        self._check()
        row = overview_page.DeadLetterCount(group=ATTACK, last_hour=0, total=2, last_at=AT)
        return dead_letters_pages.DeadLetterGroups(paging=paging(request, "name"), rows=(row,))

    async def dead_letters(self, group: str, **query: Any) -> dead_letters_pages.DeadLettersPage:
        self._check()
        row = dead_letters_pages.DeadLetterRow(
            id="7F01",
            message_id=ATTACK,
            origin_id=ATTACK,
            topic=ATTACK,
            broker=ATTACK,
            queue=0,
            offset=0,
            died_at=AT,
            born_at=AT,
            attempts=16,
            tags=ATTACK,
            keys=(ATTACK,),
            body_bytes=3,
            preview=ATTACK,
        )
        return dead_letters_pages.DeadLettersPage(
            group=group,
            rows=(row, replace(row, topic=None, problem=ATTACK)),
            next="2:" + ATTACK,
            total=2,
            begin=query["begin"],
            end=query["end"],
        )

    async def export_dead_letters(
        self, group: str, form: str, **query: Any
    ) -> AsyncIterator[bytes]:
        self._check()
        yield f"{form} {group}\n".encode()
        yield ",".join(query["ids"]).encode()

    async def waiting(self) -> waiting_page.WaitingPage:
        self._check()
        return waiting_page.WaitingPage(
            levels=(
                waiting_page.DelayLevel(
                    broker=ATTACK,
                    level=3,
                    delay=10.0,
                    stored=1,
                    delivered=None,
                    waiting=1,
                    last_stored_at=AT,
                ),
            ),
            timers=(
                waiting_page.TimerRow(
                    broker=ATTACK,
                    waiting=1,
                    read_behind=0.0,
                    unread=0,
                    stored=1,
                    last_stored_at=AT,
                ),
            ),
            timed=(waiting_page.TimedTopic(broker=ATTACK, topic=ATTACK, waiting=1, changed_at=AT),),
            delayed=(
                waiting_page.DelayedMessageRow(
                    broker=ATTACK,
                    topic=ATTACK,
                    level=3,
                    due_at=AT,
                    message_id=ATTACK,
                    stored_in="SCHEDULE_TOPIC_XXXX",
                    offset_id=ATTACK,
                    stored_at=AT,
                    keys=(ATTACK,),
                    preview=ATTACK,
                ),
            ),
            halves=(waiting_page.HalfRow(broker=ATTACK, stored=1, ended=None, last_stored_at=AT),),
            newest_halves=(
                waiting_page.HalfMessageRow(
                    broker=ATTACK,
                    offset=0,
                    topic=ATTACK,
                    group=ATTACK,
                    message_id=ATTACK,
                    stored_at=AT,
                    checks=0,
                    is_ended=False,
                    preview=ATTACK,
                ),
            ),
        )

    async def clients(self, request: ListRequest) -> clients_pages.ClientsPage:
        self._check()
        row = clients_pages.ClientRow(
            client_id=ATTACK,
            role="producer",
            group=ATTACK,
            address=ATTACK,
            language=None,
            version=None,
            brokers=(ATTACK,),
        )
        return clients_pages.ClientsPage(
            paging=paging(request, "name"),
            rows=(row, replace(row, role="consumer")),
            producers=1,
            consumers=1,
        )

    async def brokers(self) -> brokers_pages.BrokersPage:
        self._check()
        server = brokers_pages.NameServerRow(
            address=ATTACK, is_up=False, problem=ATTACK, settings={ATTACK: ATTACK}
        )
        return brokers_pages.BrokersPage(
            state=self.state,
            brokers=(replace(BROKER, name=ATTACK),),
            name_servers=(server, replace(server, settings={}, is_up=True)),
        )

    async def broker(self, name: str) -> brokers_pages.BrokerDetail:
        self._check()
        disk = brokers_pages.Disk(what="commit log", path=ATTACK, used=0.5, total=ATTACK, free=None)
        return brokers_pages.BrokerDetail(
            row=replace(BROKER, name=name, problem=ATTACK),
            addresses={0: ATTACK, 1: ATTACK},
            disks=(disk,),
            figures={ATTACK: ATTACK},
            settings={"a": ATTACK},
        )

    async def trace_report(self) -> traces_pages.TraceReport:
        self._check()
        row = traces_pages.TraceRow(
            topic=ATTACK,
            step="process",
            group=ATTACK,
            count=5,
            failed=1,
            mean=0.01,
            p95=None,
            max=3.0,
            clients=1,
        )
        return traces_pages.TraceReport(
            is_on=True,
            topic="RMQ_SYS_TRACE_TOPIC",
            stored=9,
            begin=AT,
            end=AT,
            records=5,
            stopped="complete",
            rows=(row, replace(row, topic="", failed=0)),
            report=None,
            command=ATTACK,
        )

    async def preview(self, action: Action) -> groups_pages.ResetPreview:
        self._check()
        queue = groups_pages.ResetQueue(
            topic=ATTACK,
            broker=ATTACK,
            queue=0,
            old=None,
            new=5,
            first=0,
            end=9,
            change=-4,
            is_cut=True,
        )
        return groups_pages.ResetPreview(
            group=action.target,
            queues=(queue,),
            repeated=4,
            skipped=0,
            is_done=False,
            command=command_line(action, NAME_SERVER),
        )

    async def do(self, action: Action) -> ActionResult:
        self._check()
        if getattr(action, "typed", action.target) != action.target:
            raise NotConfirmed(f"the name {action.target!r} was not typed in")
        self.done.append(action)
        return ActionResult(
            action=action.name,
            target=action.target,
            is_ok=True,
            text=f"done: {action.target}",
            values={"message_id": "NEW1"},
            command=command_line(action, NAME_SERVER),
        )
