"""A run with members that pop; see `pop_ledger` and `order_ledger` for the rules.

One run in eight has no faults: there every message is delivered exactly once. One in eight only has
cut connections, the others also kills, power losses and full disks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from downrange.wire.bodies import GroupConfig
from tests.simulation.admins import Administrator
from tests.simulation.clients import QUEUES
from tests.simulation.order_ledger import OrderLedger
from tests.simulation.pop_ledger import PopLedger
from tests.simulation.pop_members import OnceProducer, OrderedMember, PopMember
from tests.simulation.world import FAULT_SECONDS, World

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from downrange.server.broker.state import BrokerState
    from tests.simulation.clients import Client

_TOPIC, _ORDERED_TOPIC = "jobs", "steps"
#: Groups that pop, with the number of times that a message is delivered again. The first one is
#: created by its first pop.
_LIMITS = {"patient": 16, "strict": 2}
#: The same for the group that pops in order.
_ORDERED_LIMIT = 1
_MEMBERS = 3
#: For how long nothing may be delivered after the end.
_QUIET_SECONDS = 8.0


class PopWorld(World):
    """One run.

    Attributes:
        pops: The promises about pops.
        orders: The promises about pops in order.
        is_calm: Whether there are no faults, and members do everything right.
        dead_letters: How many messages were delivered too often.
        ordered_dead_letters: How many of these were popped in order.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._kind = self.random.choices(("faults", "cuts", "calm"), (6, 1, 1))[0]
        self.pops = PopLedger(_TOPIC)
        self.pops.limits.update(_LIMITS)
        self.orders = OrderLedger(_ORDERED_TOPIC, "ordered", QUEUES, _ORDERED_LIMIT)
        self.is_calm = self._kind == "calm"
        self.dead_letters = 0
        self.ordered_dead_letters = 0
        self.network.is_slow = not self.is_calm

    @property
    def log_end(self) -> int:
        """The end of the broker's log, or a position behind it."""
        return self.machine.log_end

    def note_retention(self) -> None:
        """Note which messages retention has removed."""
        state = self.machine.running_state
        if state is not None:
            self.on_end(state)

    async def create(self) -> None:
        """Create the topics, and one of the groups."""
        creator = Administrator(self, "creator")
        await creator.create(_TOPIC, QUEUES)
        await creator.create(_ORDERED_TOPIC, QUEUES)
        await creator.create_group(GroupConfig("strict", retry_max_times=_LIMITS["strict"]))
        await creator.create_group(GroupConfig("ordered", retry_max_times=_ORDERED_LIMIT))

    def clients(self) -> tuple[list[Client], list[Coroutine[Any, Any, None]]]:
        """Return producers, and the tasks of members."""
        topics = (_TOPIC, _TOPIC, _ORDERED_TOPIC)
        workers: list[Client] = [
            OnceProducer(self, f"producer{number}", topics) for number in range(2)
        ]
        members = [
            *(
                PopMember(self, f"{group}{number}", _TOPIC, group)
                for group in _LIMITS
                for number in range(_MEMBERS)
            ),
            *(
                OrderedMember(self, f"ordered{number}", _ORDERED_TOPIC, "ordered")
                for number in range(_MEMBERS)
            ),
        ]
        return workers, [*(member.run() for member in members), self._watch()]

    async def inject_faults(self) -> None:
        """Inject the faults of this kind of run."""
        if self._kind == "faults":
            await super().inject_faults()
            return
        self.network.cut_chance = 0.01 if self._kind == "cuts" else 0.0
        await asyncio.sleep(FAULT_SECONDS)
        self.network.cut_chance = 0.0
        self.note("no more faults")

    async def _watch(self) -> None:
        """Check the committed offsets all the time."""
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            state = self.machine.running_state
            if state is not None:
                self.pops.check(state)
                self.orders.check(state)

    # ---- rules ----

    def on_end(self, state: BrokerState) -> None:
        """Note what retention has removed."""
        self.pops.note_first(state)
        self.orders.note_begin(state)

    def drop_from(self, log_offset: int) -> None:
        """Drop promises beyond a position."""
        super().drop_from(log_offset)
        self.pops.drop_from(log_offset)

    def check(self, state: BrokerState) -> None:
        """Compare all promises with the state."""
        super().check(state)
        self.pops.on_start()
        self.orders.on_start(state)
        self.orders.check(state)
        self.pops.check(state)

    def missing(self, state: BrokerState) -> list[str]:
        """Return what is still to be delivered or acknowledged."""
        return [*self.pops.unfinished(state), *self.orders.unfinished(state)]

    async def finish(self) -> None:
        """Check that nothing is delivered after everything was acknowledged."""
        end_ms = self.loop.wall_clock_ms()
        await asyncio.sleep(_QUIET_SECONDS)
        # The reply to an earlier pop may still come: the network is slow.
        assert not self.pops.popped_after(end_ms)
        self.dead_letters = self.pops.check_dead_letters(self.machine.state)
        self.ordered_dead_letters = len(self.orders.dead_letters(self.machine.state))
        if self.is_calm:
            assert not self.pops.repeated()
            assert not self.dead_letters
            # In order, a pop may be refused because its table is not saved in time, and counts.
