"""A producer on `FakeServers`, for tests of requests, transactions and recalls."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from downrange.client.flows.hooks import Hooks
from downrange.client.flows.notices import UserCodeFailed, WorkFailed
from downrange.client.flows.producing.producer_core import ProducerCore
from downrange.options import ProducerOptions
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import SendReply
from tests.unit.client.flows.fake_servers import FakeServers, reply

if TYPE_CHECKING:
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.notices import Notice
    from downrange.wire.command import Command

ResultT = TypeVar("ResultT")
#: The offset id of a broker at 10.0.0.2:10911, position 1234 of its commit log.
OFFSET_ID = "0A00000200002A9F00000000000004D2"
LOG_OFFSET = 0x4D2
HALF_OFFSET = 77


class ProducerWorld:
    """A producer of group "pay", and servers with broker "a"."""

    def __init__(
        self,
        *,
        namespace: str | None = None,
        options: ProducerOptions | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.servers = FakeServers(namespace=namespace)
        self.client = self.servers.core
        self.clock = self.servers.clock
        #: Exceptions of the user's code that were published: where, and the error.
        self.reports: list[tuple[str, BaseException]] = []
        #: What the client could not do, without an error for a caller.
        self.problems: list[tuple[str, BaseException]] = []
        self.client.observe = self._observe
        self.producer = ProducerCore(
            self.client, "pay", options or ProducerOptions(), hooks or Hooks()
        )
        self.client.add_producer(self.producer.group, self.producer)
        self.servers.answer("a:1", RequestCode.HEART_BEAT, reply())
        self.servers.answer("a:1", RequestCode.END_TRANSACTION, reply())
        self.answer_sends(ResponseCode.SUCCESS)

    def _observe(self, notice: Notice) -> None:
        if isinstance(notice, UserCodeFailed):
            self.reports.append((notice.where, notice.error))
        elif isinstance(notice, WorkFailed):
            self.problems.append((notice.what, notice.error))

    def answer_sends(self, *codes: ResponseCode) -> None:
        """Make broker "a" store messages and reply with these codes."""
        answers = [reply(SendReply(OFFSET_ID, 1, HALF_OFFSET)) for _ in codes]
        for answer, code in zip(answers, codes, strict=True):
            answer.code = int(code)
        self.servers.answer("a:1", RequestCode.SEND_MESSAGE_V2, *answers)
        self.servers.answer("a:1", RequestCode.SEND_REPLY_MESSAGE_V2, *answers)

    def run(self, flow: Flow[ResultT]) -> ResultT:
        """Run a flow to its end."""
        return self.servers.run(flow)

    def codes(self) -> list[int]:
        """Return the codes of all requests, in order."""
        return [command.code for _, command in self.servers.calls]

    def sent(self, code: RequestCode) -> list[Command]:
        """Return the requests with a code, in order."""
        return [command for _, command in self.servers.calls if command.code == code]
