"""A run with whole consumer groups; see `group_ledger` for the rules.

The groups read concurrently, in order, and as a broadcast. Members join and leave all the time. One
run in three has no faults: there no message is handled twice. In the others members are killed,
connections are cut, and the broker is killed or restarted. Power is not lost: a consumer may have
read a message that was not on the disk yet, and its offset then goes to another one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendReply
from downrange.wire.ids import parse_offset_id
from downrange.wire.system_names import DEAD_LETTER_PREFIX, retry_topic
from tests.simulation.admins import Administrator
from tests.simulation.clients import Client
from tests.simulation.clock import Threads
from tests.simulation.group_clients import NameServer, SimulatedDialer
from tests.simulation.group_members import Group
from tests.simulation.ledger import Place
from tests.simulation.machine import Machine
from tests.simulation.names import properties_of
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from downrange.options import FlushMode
    from downrange.server.broker.state import BrokerState

_TOPICS = ("jobs", "steps")
_QUEUES = 4
_MEMBERS_MAX = 5
_FAULT_SECONDS = 25.0
#: Longer than the longest delay of a retry, and a handler.
_RETRIES_END = 25.0


class OnceSender(Client):
    """Sends every body once, so that it is stored once or not at all."""

    async def work(self) -> None:
        """Send one message."""
        body, random = self.body(), self.scenario.random
        topic = random.choice(_TOPICS)
        header = self.send_header(topic, random.randrange(_QUEUES), properties_of(body))
        reply = await self.call(request_command(header, body, code=RequestCode.SEND_MESSAGE_V2))
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        sent = SendReply.from_fields(reply.fields)
        log_offset = parse_offset_id(sent.msg_id).log_offset
        place = Place(
            body=body,
            topic=topic,
            queue_id=sent.queue_id,
            offset=sent.queue_offset,
            log_offset=log_offset,
        )
        self.scenario.ledger.places.append(place)


class GroupWorld(World):
    """One run.

    Attributes:
        kind: Which faults there are.
        groups: The consumer groups.
    """

    loses_power = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.kind = self.random.choices(("calm", "kills", "cuts", "faults"), (3, 1, 2, 3))[0]
        self.is_calm = self.kind == "calm"
        self.flush: FlushMode = "sync"
        self.machine = Machine(self.loop, self.random, self.flush)
        self.machine.threads.is_slow = self.network.is_slow = self.kind in ("cuts", "faults")
        self.threads = Threads(self.loop, self.random)
        self.threads.is_slow = False
        self.dialer = SimulatedDialer(self.machine, NameServer(self.machine), self.random)
        self.groups = [
            Group(self, "billing", "jobs"),
            Group(self, "ledger", "steps", mode="orderly"),
            Group(self, "audit", "jobs", is_broadcast=True),
        ]
        self._departures: set[asyncio.Task[None]] = set()

    @property
    def figures(self) -> dict[str, int]:
        """Counts for a summary of many runs."""
        ledgers = [group.ledger for group in self.groups]
        return {
            "messages handled": sum(len(ledger.handlings) for ledger in ledgers),
            "calls of handlers": sum(h.started for x in ledgers for h in x.handlings.values()),
            f"duplicates ({'calm' if self.is_calm else 'faults'})": sum(
                ledger.duplicates for ledger in ledgers
            ),
            "overlaps after a lost lock": sum(ledger.overlaps for ledger in ledgers),
            "members that left": sum(group.left for group in self.groups),
            f"runs: {self.kind}": 1,
        }

    async def create(self) -> None:
        """Create the topics."""
        creator = Administrator(self, "creator")
        for topic in _TOPICS:
            await creator.create(topic, _QUEUES)

    def clients(self) -> tuple[list[Client], list[Coroutine[Any, Any, None]]]:
        """Return the producers, and the task that lets members join and leave."""
        senders: list[Client] = [OnceSender(self, f"producer{number}") for number in range(3)]
        return senders, [self._storm(group) for group in self.groups]

    async def _storm(self, group: Group) -> None:
        """Let members join and leave."""
        random = self.random
        for _ in range(random.randrange(1, 4)):
            await group.join()
        while not self.is_over:
            await asyncio.sleep(random.uniform(0.1, 6.0))
            if self.is_over:
                break
            chance = random.random()
            if chance < 0.5 and len(group.members) < _MEMBERS_MAX:
                await group.join()
            elif len(group.members) > 1:
                member = group.any_member()
                if self.kind in ("kills", "faults") and random.random() < 0.5:
                    await group.kill(member)
                else:
                    self._depart(group.leave(member))

    def _depart(self, leaving: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(leaving)
        self._departures.add(task)

    async def inject_faults(self) -> None:
        """Inject the faults of this kind of run."""
        until = self.loop.time() + _FAULT_SECONDS
        if self.kind in ("cuts", "faults"):
            self.network.cut_chance = self.random.choice((0.0, 0.001, 0.01))
        while self.loop.time() < until:
            await asyncio.sleep(self.random.uniform(0.5, 8.0))
            if self.kind != "faults":
                continue
            if self.random.random() < 0.3:
                await self._stop()
            else:
                await self._restart(is_power_lost=False)
        self.network.cut_chance = 0.0
        self.note("no more faults")

    # ---- rules ----

    def missing(self, state: BrokerState) -> list[str]:
        """Return what is still to be handled or committed."""
        missing: list[str] = []
        for group in self.groups:
            if not group.is_joined:
                missing.append(f"{group.name}: a member joins")
            dead = self._dead_letters(state, group)
            scopes = list(group.members) if group.is_broadcast else [""]
            missing += [
                f"{group.name} {scope}: {place.body.decode().rstrip('.')}"
                for place in self.ledger.places
                for scope in scopes
                if place.topic == group.topic and not self._is_done(group, scope, place, dead)
            ]
            if not group.is_broadcast:
                missing += self._uncommitted(state, group)
            for member in group.members.values():
                missing += [
                    f"{member.name}: {window.queue} has {window.count}"
                    for window in member.member.windows.values()
                    if window.count
                ]
        return missing

    def _is_done(self, group: Group, scope: str, place: Place, dead: set[bytes]) -> bool:
        if group.is_broadcast:  # it is given up where there would be a dead letter
            handling = group.ledger.handlings.get((scope, place.body))
            return handling is not None and (
                handling.is_done or (handling.becomes_dead and handling.ended >= handling.expected)
            )
        return group.ledger.is_done(scope, place.body, dead)

    def _dead_letters(self, state: BrokerState, group: Group) -> set[bytes]:
        return set(self._dead_bodies(state, group))

    def _dead_bodies(self, state: BrokerState, group: Group) -> list[bytes]:
        topic = DEAD_LETTER_PREFIX + group.name
        log = state.store.log
        return [record.body for record in log.walk(log.first) if record.topic == topic]

    def _uncommitted(self, state: BrokerState, group: Group) -> list[str]:
        uncommitted: list[str] = []
        for topic in (group.topic, retry_topic(group.name)):
            config = state.topics.get(topic)
            for number in range(0 if config is None else config.read_queue_nums):
                end = state.store.queue(topic, number).max_offset
                committed = state.offsets.get(group.name, topic, number)
                if committed != end:
                    uncommitted.append(f"{group.name}: {topic}/{number} {committed} of {end}")
        return uncommitted

    async def finish(self) -> None:
        """Close all members; check that all of it stays as it was."""
        if not self.is_calm:
            # A message that was handled twice may have failed the second time, and come again.
            await asyncio.sleep(_RETRIES_END)
            await self.wait_for_delivery()
        for group in self.groups:
            for member in list(group.members.values()):
                self._depart(group.leave(member))
        await asyncio.gather(*self._departures)
        state = self.machine.state
        for group in self.groups:
            if not group.is_broadcast:
                uncommitted = self._uncommitted(state, group)
                assert not uncommitted, uncommitted
            if self.is_calm:
                self._check_calm(state, group)

    def _check_calm(self, state: BrokerState, group: Group) -> None:
        """Check that every message was handled exactly as often as it was asked for."""
        dead = self._dead_bodies(state, group)
        assert len(dead) == len(set(dead)), "a dead letter is there twice"
        expected: set[bytes] = set()
        for (scope, body), handling in group.ledger.handlings.items():
            if not group.is_broadcast:
                assert group.ledger.is_exact(handling), f"{scope} {body!r}: {handling}"
            if handling.becomes_dead and not group.is_broadcast:
                expected.add(body)
        assert set(dead) == expected
