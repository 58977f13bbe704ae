"""Members of groups: real push consumers, whose handlers take simulated time, and fail at times."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Protocol

from downrange.client._async.push_consumer import AsyncPushConsumer
from downrange.client.flows.notices import (
    AssignmentChanged,
    CommitFailed,
    HandlerFailed,
    HandoverEnded,
    LockLost,
    QueueFailed,
    UserCodeFailed,
)
from downrange.client.offset_stores import MemoryOffsets
from downrange.errors import DeadLetter, Retry, RetrySome
from downrange.options.consumers import ConsumerOptions
from downrange.wire.properties import PropertyKey
from tests.simulation.group_clients import SimulatedClient, SimulatedDialer
from tests.simulation.group_ledger import RETRIES, GroupLedger, Handling

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from downrange.client.flows.consuming.group_member import GroupMember
    from downrange.client.flows.notices import Notice
    from downrange.model import QueueId, ReceivedMessage
    from tests.simulation.clock import Threads, VirtualLoop
    from tests.simulation.machine import Machine

#: Seconds of the longest handler; less than `handover_timeout`.
_LONGEST = 4.0
#: Longer than any request of a window that was stopped is held.
_FLOWS_END = 45.0
#: The flows that a client has without consumers: routes, and heartbeats.
_CLIENT_FLOWS = 2


class GroupScenario(Protocol):
    """What members use of their world."""

    loop: VirtualLoop
    random: Random
    machine: Machine
    is_calm: bool
    is_over: bool

    @property
    def dialer(self) -> SimulatedDialer:
        """Opens connections of clients."""
        ...

    @property
    def threads(self) -> Threads:
        """Runs functions of clients that may block."""
        ...

    def note(self, text: str) -> None:
        """Add a line to the log of the run."""
        ...

    def add_error(self, error: BaseException) -> None:
        """Record an error that must not happen."""
        ...


class Group:
    """One consumer group, whose members come and go.

    Attributes:
        name: Its name.
        topic: What it reads.
        members: Those that run.
        ledger: What they did.
        left: How many members left in order.
        is_joined: Whether no member is about to join.
    """

    def __init__(
        self,
        world: GroupScenario,
        name: str,
        topic: str,
        *,
        mode: Literal["concurrent", "orderly"] = "concurrent",
        is_broadcast: bool = False,
    ) -> None:
        random = world.random
        self.name = name
        self.topic = topic
        self.is_orderly = mode == "orderly"
        self.is_broadcast = is_broadcast
        batch = 1 if self.is_orderly or is_broadcast else random.choice((1, 1, 4))
        self.members: dict[str, Member] = {}
        self.left = 0
        self.is_joined = True
        self.ledger = GroupLedger(
            random, is_calm=world.is_calm, is_batched=batch > 1, is_orderly=self.is_orderly
        )
        self._world = world
        self._made = 0
        self._settings: dict[str, Any] = {
            "mode": mode,
            "model": "broadcast" if is_broadcast else "clustering",
            "batch": batch,
            "concurrency": random.choice((1, 3, 20)),
            "retries": RETRIES,
            "broadcast_retries": RETRIES,
            "start": "earliest",
            "buffer_messages": random.choice((10, 200, 10_000)),
            "buffer_bytes": random.choice((6_000, 64 * 1024 * 1024)),
            "span": random.choice((5, 2000)),
            "suspend_queue": 0.3,
            "pull_batch": random.choice((4, 32)),
        }
        world.note(f"group {name}: {self._settings}")

    @property
    def settings(self) -> dict[str, Any]:
        """The options of all members."""
        return self._settings

    async def join(self) -> None:
        """Start another member."""
        self._made += 1
        member = Member(self._world, self, f"{self.name}-{self._made}")
        self.is_joined = False
        await member.start()
        self.members[member.name] = member
        self.is_joined = True

    def any_member(self) -> Member:
        """Return one of the members."""
        return self._world.random.choice(list(self.members.values()))

    def is_lock_doubted(self, name: str, queue: QueueId) -> bool:
        """Return whether a member knows that another one may have the lock of a queue."""
        member = self.members.get(name)
        window = None if member is None else member.member.windows.get(queue)
        return window is None or window.is_stopped or not window.is_sure

    async def leave(self, member: Member) -> None:
        """Let a member leave in order."""
        del self.members[member.name]
        self.left += 1
        await member.close()

    async def kill(self, member: Member) -> None:
        """End a member without notice."""
        del self.members[member.name]
        await member.kill()


class Member:
    """One member: a client of its own, and a push consumer."""

    def __init__(self, world: GroupScenario, group: Group, name: str) -> None:
        self.name = name
        self._world = world
        self._group = group
        self._is_killed = False
        settings = dict(group.settings)
        if group.is_broadcast:
            settings["offset_store"] = MemoryOffsets()
        self.options = ConsumerOptions(**settings)
        self.client = SimulatedClient(
            world.loop,
            world.random,
            world.dialer,
            world.threads,
            name=name,
            observe=self._observe,
        )
        handler: Callable[[Any], Coroutine[Any, Any, None]] = (
            self._handle_batch if self.options.batch > 1 else self._handle
        )
        self.consumer = AsyncPushConsumer(
            self.client,
            group=group.name,
            subscribe=[group.topic],
            handler=handler,
            options=self.options,
        )

    @property
    def member(self) -> GroupMember:
        """The engine behind the consumer."""
        core = self.consumer._core
        assert core is not None
        return core.member

    async def start(self) -> None:
        """Join the group."""
        self._world.note(f"{self.name} joins")
        await self.consumer.start()

    async def close(self) -> None:
        """Leave in order, and check that nothing is left running."""
        self._world.note(f"{self.name} leaves")
        engine = self.member
        await self.consumer.close()
        self._world.note(f"{self.name} has left")
        assert not engine.windows
        assert not engine.buffer.count
        assert not engine.buffer.bytes
        await asyncio.sleep(_FLOWS_END)
        count = self.client.flow_count
        assert count <= _CLIENT_FLOWS, f"{self.name}: {count} flows run after its end"
        await self.client.close()

    async def kill(self) -> None:
        """End without notice."""
        self._world.note(f"{self.name} is killed")
        self._is_killed = True
        self.consumer._state = "closed"
        workers = self.consumer._workers
        for task in workers._tasks if workers is not None else ():
            task.cancel()
        await self.client.kill()

    # ---- handlers ----

    async def _handle(self, message: ReceivedMessage) -> None:
        handling = await self._checked([message])
        outcome = handling[0].end()
        self._world.note(f"{self.name} ends {_name(message)}: {outcome}")
        match outcome:
            case "error":
                raise RuntimeError("as planned")
            case "retry":
                raise Retry(1.0)
            case "dead":
                raise DeadLetter("as planned")
            case "ok":
                return

    async def _handle_batch(self, messages: list[ReceivedMessage]) -> None:
        handlings = await self._checked(messages)
        outcomes = [each.end() for each in handlings]
        self._world.note(f"{self.name} ends {[_name(each) for each in messages]}: {outcomes}")
        failed = [
            message for message, outcome in zip(messages, outcomes, strict=True) if outcome != "ok"
        ]
        if failed:
            raise RetrySome(failed)

    async def _checked(self, messages: list[ReceivedMessage]) -> list[Handling]:
        """Handle messages; a rule that is broken fails the run, not the message."""
        try:
            return await self._process(messages)
        except Exception as error:
            self._world.add_error(error)
            raise

    async def _process(self, messages: list[ReceivedMessage]) -> list[Handling]:
        """Check that the handler may begin, and let time pass."""
        world, group = self._world, self._group
        assert not self._is_killed
        self._check_buffer()
        scope = self.name if group.is_broadcast else ""
        world.note(f"{self.name} begins {[_name(each) for each in messages]}")
        first = messages[0]
        assert first.topic == group.topic
        is_queue = group.is_orderly and PropertyKey.RETRY_TOPIC not in first.properties
        if is_queue:
            window = self.member.windows[first.queue]
            group.ledger.enter_queue(
                self.name,
                first.queue,
                window.created_at,
                first.offset,
                has_lock=self._has_lock(first.queue),
                is_noticed=lambda name: group.is_lock_doubted(name, first.queue),
            )
        handlings = [group.ledger.begin(scope, each.body) for each in messages]
        try:
            await asyncio.sleep(self._seconds())
        finally:
            if is_queue:
                group.ledger.leave_queue(self.name, first.queue)
        return handlings

    def _seconds(self) -> float:
        random = self._world.random
        chance = random.random()
        if chance < 0.3:
            return 0.0
        if chance < 0.97:
            return random.uniform(0.001, 0.1)
        return random.uniform(0.5, _LONGEST)

    def _has_lock(self, queue: QueueId) -> bool:
        state = self._world.machine.running_state
        if state is None:
            return False
        holder = state.locks._groups.get(self._group.name, {}).get(queue)
        return holder is not None and holder[0] == self.client.core.client_id

    def _check_buffer(self) -> None:
        member, options = self.member, self.options
        buffer, window_count = member.buffer, max(1, len(member.windows))
        assert buffer.bytes <= options.buffer_bytes or buffer.count <= options.pull_batch
        assert buffer.count <= options.buffer_messages + window_count * options.pull_batch

    # ---- notices ----

    def _observe(self, notice: Notice) -> None:
        match notice:
            case AssignmentChanged():
                taken = {f"{q.topic}/{q.number}": str(at) for q, (at, _) in notice.taken.items()}
                lost = [f"{queue.topic}/{queue.number}" for queue in notice.lost]
                self._world.note(f"{self.name} takes {taken}, loses {lost}")
            case HandoverEnded() | LockLost() | CommitFailed() | QueueFailed():
                self._world.note(f"{self.name}: {notice}")
                if self._world.is_calm:
                    self._world.add_error(AssertionError(notice))
            case HandlerFailed():
                self._world.note(f"{self.name}: {_name(notice.message)}, {notice.plan}")
            case UserCodeFailed():
                self._world.add_error(notice.error)
            case _:
                return


def _name(message: ReceivedMessage) -> str:
    name = message.body.decode().rstrip(".")
    return f"{name}@{message.queue.number}/{message.offset}"
