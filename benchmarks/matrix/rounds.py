"""Measures the cells of a plan, round by round.

In each round every cell is measured once, and cells that are compared are adjacent: all clients and
both servers do one work before the next work. So other load on the machine affects all compared
cells, or only one round of many. The order of servers and clients changes from round to round.
Processes that are not measured are paused.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from benchmarks import server_pair
from benchmarks.load import own_bytes
from benchmarks.matrix.cells import PUSHES, READS, SERVERS, USUAL_BODY
from benchmarks.matrix.children import ClientFailed
from benchmarks.matrix.generator import Generator
from benchmarks.matrix.java import JavaClients
from benchmarks.matrix.ours import OurClients
from benchmarks.matrix.results import Probe, Sample, Series
from benchmarks.matrix.topic_filler import PUSHED_MESSAGES, STORED_MESSAGES, fill
from tests.apache.java_client import JavaError

if TYPE_CHECKING:
    from collections.abc import Generator as Yields
    from collections.abc import Mapping, Sequence

    from benchmarks.matrix.cells import Cell, ClientName, FlushName, ServerName
    from benchmarks.matrix.plan import Plan
    from benchmarks.matrix.tasks import Measured
    from benchmarks.server_pair import Pair, Peer

#: Time of a step besides its load, such as starting a process; for the progress bar. A push
#: consumer makes whole passes, and starts and closes for each.
_OVERHEAD: Final = 0.3
_PUSH_OVERHEAD: Final = 2.0
_START_SECONDS: Final = 8.0
#: Share of a warm-up that is enough for a JVM that has done other work before.
_LATER_WARM_UP: Final = 1 / 3
_FAILURES: Final = (ClientFailed, JavaError, TimeoutError, RuntimeError)


class ProgressDisplay(Protocol):
    """Shows the progress of a run."""

    def show(self, text: str) -> None:
        """Show the next step."""

    def advance(self, seconds: float) -> None:
        """Advance by the estimated time of a step that has ended."""


class Client(Protocol):
    """A client that sends or reads."""

    def measure(self, peer: Peer, cell: Cell, *, seconds: float, lead_in: float) -> Measured:
        """Run one round of a cell after the lead-in, and return the results."""
        ...


class Phase(NamedTuple):
    """Cells whose rounds run together, with the same servers.

    Attributes:
        flush: How the servers flush.
        cells: Cells to measure.
        new: Servers whose JVMs have not run any load yet.
    """

    flush: FlushName
    cells: tuple[Cell, ...]
    new: Sequence[ServerName]

    def warm_up_parts(self) -> dict[ServerName, float]:
        """Return the servers that get a warm-up, and the share of a whole warm-up for each."""
        here = {cell.server for cell in self.cells if warm_up_cells(self.cells, cell.server)}
        return {
            server: 1.0 if server in self.new else _LATER_WARM_UP
            for server in SERVERS
            if server in here
        }


def phases(cells: Sequence[Cell]) -> list[Phase]:
    """Return the phases in order.

    Transactions come last: after its first transaction, an Apache broker keeps a core busy, because
    the thread that records finished transactions spins.
    """
    kinds: dict[tuple[FlushName, bool], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.flush, cell.work == "transactions")):
        kinds.setdefault((cell.flush, cell.work == "transactions"), []).append(cell)
    found: list[Phase] = []
    for (flush, _), chosen in kinds.items():
        new: Sequence[ServerName] = SERVERS
        if found:  # the JVMs of clients stay; our server has none
            new = () if found[-1].flush == flush else ("apache",)
        found.append(Phase(flush, tuple(chosen), new))
    return found


def round_order(cells: Sequence[Cell], number: int) -> list[Cell]:
    """Return the cells of a phase in the order of a round: work by work, server by server.

    In every second round servers and clients are in reverse order, so that none is always first.
    """
    servers = SERVERS if number % 2 else SERVERS[::-1]
    works = list(dict.fromkeys((cell.body_bytes, cell.work) for cell in cells))
    return sorted(
        cells if number % 2 else reversed(cells),
        key=lambda cell: (works.index((cell.body_bytes, cell.work)), servers.index(cell.server)),
    )


class Matrix:
    """A run: measures all cells of a plan; the results stay if it is interrupted."""

    def __init__(
        self,
        plan: Plan,
        progress: ProgressDisplay,
        clients: Mapping[ClientName, Client] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            plan: What to measure.
            progress: Shows the progress.
            clients: Clients to use instead of the real ones.
        """
        self.series = {cell: Series(cell=cell, samples=[], failures=[]) for cell in plan.cells}
        self.probes: list[Probe] = []
        self._plan = plan
        self._progress = progress
        self._starts: list[tuple[float, float]] = []
        self._java = JavaClients()
        ours = OurClients()
        self._clients: Mapping[ClientName, Client] = clients or {
            "java": self._java,
            "threads": ours,
            "awake": ours,
            "asyncio": ours,
            "generator": Generator(),
        }

    @property
    def estimated_seconds(self) -> float:
        """The estimated duration."""
        return self._loads_estimate() + self._probes_estimate()

    def run(self) -> None:
        """Measure everything; errors are stored in the series."""
        with self._java:
            for flush in self._flushes():
                self._run_with(flush)
        if "start" in self._plan.probes:
            self._time_starts()

    def _flushes(self) -> list[FlushName]:
        """Return the flush modes of the pairs of servers, in order."""
        every: tuple[FlushName, ...] = ("async", "sync")
        used = {cell.flush for cell in self._plan.cells}
        return [each for each in every if each in used or (each == "async" and self._asks_idle)]

    # ---- cells -------------------------------------------------------------------------------

    def _run_with(self, flush: FlushName) -> None:
        """Run all phases with servers of this flush mode."""
        with self._started(flush) as pair:
            if flush == "async":
                self._watch_idle(pair)
            todo = [phase for phase in phases(self._plan.cells) if phase.flush == flush]
            cells = [cell for phase in todo for cell in phase.cells]
            self._prepare(pair, cells)
            for phase in todo:
                self._warm_up(pair, phase)
                for number in range(1, self._plan.rounds + 1):
                    self._round(pair, phase.cells, number)
            for peer in pair:
                with pair.turn(peer):
                    self._count(peer, cells)
                    self._java.disconnect(peer)

    def _prepare(self, pair: Pair, cells: Sequence[Cell]) -> None:
        """Create topics, fill those that are read, connect the Java clients."""
        self._progress.show("topics")
        for peer in pair:
            with pair.turn(peer):
                here = [cell for cell in cells if cell.server == peer.name]
                topics = {cell.topic: cell for cell in here}
                for topic, cell in topics.items():
                    peer.make_topic(topic)
                    if cell.work in READS:
                        count = STORED_MESSAGES[cell.body_bytes]
                        if cell.work == "push":
                            count = PUSHED_MESSAGES
                        fill(peer, topic, count, cell.body_bytes)
                if any(cell.client == "java" for cell in here):
                    self._java.connect(peer)

    def _warm_up(self, pair: Pair, phase: Phase) -> None:
        for server, part in phase.warm_up_parts().items():
            peer, todo = _peer(pair, server), warm_up_cells(phase.cells, server)
            seconds = part * self._plan.warm_up / len(todo)
            with pair.turn(peer):
                for cell in todo:
                    self._progress.show(f"warm-up: {cell.name}")
                    self._load(peer, cell, seconds, 0.0)
                    self._progress.advance(seconds)

    def _round(self, pair: Pair, cells: Sequence[Cell], number: int) -> None:
        for cell in round_order(cells, number):
            self._progress.show(f"round {number}: {cell.name}")
            peer = _peer(pair, cell.server)
            seconds = self._plan.seconds_of(cell)
            with pair.turn(peer):
                found = self._load(peer, cell, seconds, self._plan.lead_in)
                memory = own_bytes(peer.pids)
            if found is not None:
                self.series[cell].samples.append(_sample(found, number, memory))
            self._progress.advance(self._step_seconds(cell))

    def _load(self, peer: Peer, cell: Cell, seconds: float, lead_in: float) -> Measured | None:
        """Run a client and count the stored messages; return None if that fails."""
        client = self._clients[cell.client]
        try:
            found = client.measure(peer, cell, seconds=seconds, lead_in=lead_in)
            if not found.messages:
                raise ClientFailed("no message was sent or read in this round")
            if cell.work not in READS:
                peer.acknowledged[cell.topic] += found.messages + found.messages_before
                peer.check_count(cell.topic)
        except _FAILURES as error:
            self.series[cell].failures.append(_reason(error))
            # Start the count again from what is stored: a failure must not be reported twice.
            peer.acknowledged[cell.topic] = peer.settled(cell.topic)
            return None
        return found

    def _count(self, peer: Peer, cells: Sequence[Cell]) -> None:
        """Check that all acknowledged messages are stored."""
        for cell in {cell.topic: cell for cell in cells if cell.server == peer.name}.values():
            try:
                peer.check_count(cell.topic)
            except RuntimeError as error:
                self.series[cell].failures.append(_reason(error))

    # ---- probes ------------------------------------------------------------------------------

    @property
    def _asks_idle(self) -> bool:
        return "idle-memory" in self._plan.probes or "idle-cpu" in self._plan.probes

    @contextlib.contextmanager
    def _started(self, flush: FlushName) -> Yields[Pair]:
        self._progress.show(f"starting both servers, {flush} flush")
        with server_pair.start_both(flush) as pair:
            self._starts.append((pair.ours.started_in, pair.apache.started_in))
            self._progress.advance(_START_SECONDS)
            yield pair

    def _time_starts(self) -> None:
        for _ in range(self._plan.more_starts if self._starts else 1):
            with self._started("async"):
                pass
        ours, apache = zip(*self._starts, strict=True)
        self.probes.append(
            Probe(
                name="start",
                title="start to first send",
                unit="s",
                downrange=list(ours),
                apache=list(apache),
            )
        )

    def _watch_idle(self, pair: Pair) -> None:
        """Measure both servers while they are idle, before any load."""
        if not self._asks_idle:
            return
        memory = Probe(
            name="idle-memory", title="memory when idle", unit="MB", downrange=[], apache=[]
        )
        cpu = Probe(
            name="idle-cpu", title="CPU when idle", unit="% of a core", downrange=[], apache=[]
        )
        for peer in pair:
            self._progress.show(f"idle: {peer.name}")
            with pair.turn(peer):
                time.sleep(self._plan.settling)
                taken = peer.cpu_percent(self._plan.idle_seconds)
                held = peer.memory_bytes() / 1e6
            (cpu.downrange if peer is pair.ours else cpu.apache).append(taken)
            (memory.downrange if peer is pair.ours else memory.apache).append(held)
            self._progress.advance(self._plan.settling + self._plan.idle_seconds)
        self.probes += [probe for probe in (memory, cpu) if probe.name in self._plan.probes]

    # ---- estimates ---------------------------------------------------------------------------

    def _loads_estimate(self) -> float:
        plan, total = self._plan, 0.0
        for phase in phases(plan.cells):
            total += plan.warm_up * sum(phase.warm_up_parts().values())
            total += plan.rounds * sum(map(self._step_seconds, phase.cells))
        return total

    def _step_seconds(self, cell: Cell) -> float:
        overhead = _PUSH_OVERHEAD if cell.work in PUSHES else _OVERHEAD
        return self._plan.seconds_of(cell) + self._plan.lead_in + overhead

    def _probes_estimate(self) -> float:
        plan = self._plan
        starts = len(self._flushes())
        if "start" in plan.probes:
            starts += plan.more_starts if starts else 1
        idle = 2 * (plan.settling + plan.idle_seconds) if self._asks_idle else 0.0
        return starts * _START_SECONDS + idle


def warm_up_cells(cells: Sequence[Cell], server: ServerName) -> list[Cell]:
    """Return the cells of the warm-up of a server.

    A JVM must compile all code that it will run: these are the cells of the Java client, one per
    work. A server in Java also needs a warm-up for works that the Java client does not do.
    """
    here = [cell for cell in cells if cell.server == server]
    javas = [cell for cell in here if cell.client == "java"]
    if server == "apache":
        works = {cell.work for cell in javas}
        javas += [cell for cell in here if cell.work not in works]
    usual_last = sorted(javas, key=lambda cell: cell.body_bytes == USUAL_BODY)
    return list({cell.work: cell for cell in usual_last}.values())


def _peer(pair: Pair, server: ServerName) -> Peer:
    return pair.ours if server == "downrange" else pair.apache


def _reason(error: Exception) -> str:
    """Return the last line of an error; the lines before it are the traceback."""
    return (str(error).splitlines() or ["no reason given"])[-1].strip()


def _sample(found: Measured, number: int, server_bytes: int) -> Sample:
    p50, p99 = found.latencies_us or (None, None)
    return Sample(
        round=number,
        messages=found.messages,
        seconds=found.seconds,
        client_us=found.client_cpu / found.messages * 1e6,
        server_us=found.server_cpu / found.messages * 1e6,
        client_bytes=found.client_bytes,
        server_bytes=server_bytes,
        p50_us=p50,
        p99_us=p99,
    )
