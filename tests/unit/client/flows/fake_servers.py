"""Servers that a flow can call in a test: a table of answers, and a clock that pauses move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from downrange.client.flows.client_core import ClientCore
from downrange.client.flows.hooks import Hooks
from downrange.errors import ConnectFailed, RocketMQError
from downrange.options import ClientOptions
from downrange.wire.bodies import Body, BrokerQueues, BrokerReplicas, QueueMapping, RouteBody
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.ids import UniqueIdMaker
from downrange.wire.records import Record, encode_record
from downrange.wire.send_commands import SendCommand
from tests.support.clock import FakeClock
from tests.unit.client.flows.interpreter import Interpreter
from tests.unit.client.flows.randomness import FakeRandomness

if TYPE_CHECKING:
    from downrange.client.flows.effects import Call, Effect, Flow
    from downrange.wire.fields import Header

ResultT = TypeVar("ResultT")
Answer: TypeAlias = Command | RocketMQError | Callable[[Command], Command]

NAME_SERVER = "ns:9876"


class FakeServers:
    """A client core, and servers that answer its calls from a table.

    Attributes:
        calls: What was called, in order: the address and the command.
        interpreter: Runs flows.
    """

    def __init__(self, *, namespace: str | None = None) -> None:
        self.clock = FakeClock()
        self.interpreter = Interpreter(self._call, self.clock)
        self.core = ClientCore(
            ClientOptions(namespace=namespace),
            client_id="10.0.0.1@7",
            name_servers=[NAME_SERVER],
            credentials=None,
            hooks=Hooks(),
            clock=self.clock,
            randomness=FakeRandomness(),
            unique_ids=UniqueIdMaker(b"\x0a\x00\x00\x01", 7, 1, lambda _: (0, 1 << 60)),
        )
        self.calls: list[tuple[str, Command]] = []
        self._answers: dict[tuple[str, int], list[Answer]] = {}
        self._routes: dict[str, RouteBody | None] = {}

    def answer(self, address: str, code: RequestCode, *answers: Answer) -> None:
        """Set the answers to calls, given in turn; the last one is repeated."""
        self._answers[address, int(code)] = list(answers)

    def answer_route(self, topic: str, body: RouteBody | None) -> None:
        """Set the route that the name server returns for a topic; None for a missing topic."""
        self._routes[topic] = body
        self.answer(NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC, self._answer_route)

    def _answer_route(self, command: Command) -> Command:
        body = self._routes.get(command.fields["topic"])
        return refusal(ResponseCode.TOPIC_NOT_EXIST) if body is None else reply(body=body)

    def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end."""
        return self.interpreter.run(flow)

    def perform(self, effect: Effect) -> Any:
        """Perform one effect of a flow that a test steps by hand."""
        return self.interpreter.perform(effect)

    def _call(self, call: Call) -> Command | RocketMQError:
        command = call.command.plain() if isinstance(call.command, SendCommand) else call.command
        self.calls.append((call.address, command))
        answers = self._answers.get((call.address, command.code))
        if answers is None:
            return ConnectFailed(call.address, f"no answer is set for code {command.code}")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer(command) if callable(answer) else answer

    def asked(self, code: RequestCode) -> list[str]:
        """Return the addresses that got requests of this kind, in order."""
        return [address for address, command in self.calls if command.code == code]

    def fields(self, code: RequestCode) -> dict[str, str]:
        """Return the fields of the last request of this kind."""
        return [command.fields for _, command in self.calls if command.code == code][-1]


def reply(header: Header | None = None, *, body: Body | bytes = b"") -> Command:
    """Return a successful reply."""
    fields = {} if header is None else header.to_fields()
    return Command(0, fields, body if isinstance(body, bytes) else body.encode())


def refusal(code: ResponseCode, remark: str = "no") -> Command:
    """Return a reply with an error code."""
    return Command(int(code), remark=remark)


def route(
    brokers: Iterable[str] = ("a",), *, queues: int = 2, perm: int = 6, without_master: str = ""
) -> RouteBody:
    """Return a route to brokers at "a:1", "b:1", …; a slave of each is at "a:2", "b:2", …."""
    names = list(brokers)
    return RouteBody(
        queue_datas=[
            BrokerQueues(
                broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
            )
            for name in names
        ],
        broker_datas=[
            BrokerReplicas(
                broker_name=name,
                broker_addrs={1: f"{name}:2"} if name in without_master else {0: f"{name}:1"},
            )
            for name in names
        ],
    )


def static_route(
    served: Mapping[str, Iterable[int]], *, total: int = 4, epoch: int = 1, perm: int = 6
) -> RouteBody:
    """Return the route of a static topic whose brokers serve these logical queues."""
    body = route(served, perm=perm)
    body.topic_queue_mapping_by_broker = {
        broker: QueueMapping(
            bname=broker,
            total_queues=total,
            epoch=epoch,
            curr_id_map={number: index for index, number in enumerate(numbers)},
        )
        for broker, numbers in served.items()
    }
    return body


def record(
    topic: str,
    offset: int,
    *,
    queue: int = 0,
    properties: str = "",
    stored_ms: int = 0,
    body: bytes = b"x",
    sys_flag: int = 0,
) -> bytes:
    """Return one encoded record."""
    return encode_record(
        Record(
            queue_id=queue,
            queue_offset=offset,
            log_offset=offset * 1000,
            store_ms=stored_ms,
            store_ip=b"\x0a\x00\x00\x02",
            store_port=10911,
            body=body,
            sys_flag=sys_flag,
            topic_bytes=topic.encode(),
            property_bytes=properties.encode(),
        )
    )
