"""Stepping flows by hand: a core with routes, the effects of a flow, and replies of servers.

flow = send_with_retries(producer_with(route("a", "b")), …)
call = expect_call(next(flow))
receipt = finish(flow, stored(call))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from downrange.client.flows.client_core import ClientCore
from downrange.client.flows.effects import Call, Effect, Flow, UserCall
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.notices import UserCodeFailed
from downrange.client.flows.producing.producer_core import ProducerCore
from downrange.client.flows.routing.routes import Route, route_of
from downrange.options import ClientOptions, Credentials, ProducerOptions
from downrange.wire.bodies import BrokerQueues, BrokerReplicas, RouteBody
from downrange.wire.codes import ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import SendReply
from downrange.wire.ids import UniqueIdMaker
from tests.support.clock import FakeClock
from tests.unit.client.flows.interpreter import Interpreter
from tests.unit.client.flows.randomness import FakeRandomness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.client.flows.notices import Notice
    from tests.unit.client.flows.interpreter import Serve

ResultT = TypeVar("ResultT")
EffectT = TypeVar("EffectT", bound=Effect)
TOPIC = "orders"


# ---- cores and routes ----------------------------------------------------------------------------


def body(
    *brokers: str,
    queues: int = 4,
    perm: int = 6,
    order: str | None = None,
    masterless: Iterable[str] = (),
) -> RouteBody:
    """Return a name server's answer; masters are at "a:10911", slaves at "a:10921"."""
    without = set(masterless)
    return RouteBody(
        queue_datas=[
            BrokerQueues(
                broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
            )
            for name in brokers
        ],
        broker_datas=[
            BrokerReplicas(
                broker_name=name,
                broker_addrs={1: f"{name}:10921"}
                | ({} if name in without else {0: f"{name}:10911"}),
            )
            for name in brokers
        ],
        order_topic_conf=order,
    )


def route(
    *brokers: str,
    topic: str = TOPIC,
    queues: int = 4,
    order: str | None = None,
    masterless: Iterable[str] = (),
) -> Route:
    """Return the route of a topic with queues on these brokers."""
    return route_of(topic, body(*brokers, queues=queues, order=order, masterless=masterless))


def core_with(
    *routes: Route,
    options: ClientOptions | None = None,
    hooks: Hooks | None = None,
    credentials: Credentials | None = None,
    name_servers: Iterable[str] = ("ns:9876",),
    clock: FakeClock | None = None,
    randomness: FakeRandomness | None = None,
) -> ClientCore:
    """Return a client with these routes cached."""
    core = ClientCore(
        options or ClientOptions(),
        client_id="10.0.0.1@7#1",
        name_servers=name_servers,
        credentials=credentials,
        hooks=hooks or Hooks(),
        clock=clock or FakeClock(),
        randomness=randomness or FakeRandomness(),
        unique_ids=UniqueIdMaker(b"\x0a\x00\x00\x01", 7, 1, lambda _: (0, 1 << 60)),
    )
    for known in routes:
        core.routes.replace(known)
    core.notices.clear()
    return core


def producer_with(
    *routes: Route,
    options: ProducerOptions | None = None,
    hooks: Hooks | None = None,
    client: ClientCore | None = None,
    report: Callable[[str, BaseException], None] | None = None,
    group: str = "shop",
) -> ProducerCore:
    """Return a producer; its client has these routes cached, unless a client is given.

    With `report`, its notices are published, and those of exceptions in user code go there.
    """
    core = client or core_with(*routes)
    if report is not None:

        def observe(notice: Notice) -> None:
            if isinstance(notice, UserCodeFailed):
                report(notice.where, notice.error)

        core.observe = observe
    return ProducerCore(core, group, options or ProducerOptions(), hooks or Hooks())


def clock_of(producer: ProducerCore | ClientCore) -> FakeClock:
    """Return the fake clock of a client or producer."""
    core = producer.client if isinstance(producer, ProducerCore) else producer
    assert isinstance(core.clock, FakeClock)
    return core.clock


# ---- effects -------------------------------------------------------------------------------------


def expect(kind: type[EffectT], effect: Effect) -> EffectT:
    """Return the effect, which must be of this kind."""
    assert isinstance(effect, kind), effect
    return effect


def expect_call(effect: Effect) -> Call:
    """Return the effect, which must be a call."""
    return expect(Call, effect)


def answer_user_call(effect: Effect) -> Any:
    """Call the function of a `UserCall`; return its result."""
    asked = expect(UserCall, effect)
    return asked.function(*asked.args)


def finish(flow: Flow[ResultT], answer: object = None) -> ResultT:
    """Give the last answer; return the flow's result."""
    try:
        effect = flow.send(answer)
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    raise AssertionError(f"the flow goes on with {effect}")


def play(flow: Flow[ResultT], serve: Serve) -> ResultT:
    """Run a flow whose calls a function answers."""
    return Interpreter(serve, FakeClock()).run(flow)


def play_together(flows: Iterable[Flow[Any]], serve: Serve) -> list[Any]:
    """Run flows at the same time; return the result or the error of each."""
    return Interpreter(serve, FakeClock()).run_together(flows)


# ---- replies -------------------------------------------------------------------------------------


def stored(call: Call, *, code: int = 0, offset: int = 9, **facts: Any) -> Command:
    """Return a broker's reply that stored the message in the requested queue."""
    fields = call.command.fields
    number = int(fields.get("e") or fields["queueId"])
    header = SendReply(msg_id="OFFSET-ID", queue_id=number, queue_offset=offset, **facts)
    return Command(code, header.to_fields())


def refused(code: ResponseCode | int, remark: str = "no") -> Command:
    """Return a reply with an error code."""
    return Command(int(code), remark=remark)


def routed(found: RouteBody | None) -> Command:
    """Return a name server's reply with a route; None for a missing topic."""
    if found is None:
        return refused(ResponseCode.TOPIC_NOT_EXIST)
    return Command(0, body=found.encode())


def heartbeat_of(call: Call) -> Any:
    """Return the decoded body of a heartbeat."""
    return msgspec.json.decode(call.command.body)
