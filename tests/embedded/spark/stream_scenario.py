"""Random runs of a stream: each message arrives once, in the order of its queue.

A run keeps what Spark keeps: the ends of batches, and which of them are committed. Everything else
is lost whenever the simulated Spark driver dies: after a batch is planned, or before its commit.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.embedded.spark.stage import read

if TYPE_CHECKING:
    from downrange.embedded import Cluster
    from downrange.spark.read.stream_reader import RocketMQStreamReader
    from tests.embedded.spark.stage import Stage


class StreamScenario:
    """A topic, a stream of it, and a checkpoint; with a `cluster`, brokers are restarted too."""

    def __init__(self, stage: Stage, cluster: Cluster | None, seed: int) -> None:
        self._stage = stage
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._topic = stage.topic(1)
        self._brokers = stage.server.route_brokers(self._topic)
        self._queues = 1
        self._sent: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self._received: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self._skipped: dict[tuple[str, int], int] = {}
        self._start = self._chance.choice(("earliest", "latest"))
        self._ends: list[dict[str, Any]] = []  # Spark's log of offsets
        self._committed = 0
        self._is_finishing = False
        self._reader = self._started()

    def _started(self) -> RocketMQStreamReader:
        chance = self._chance
        options = {
            "maxOffsetsPerTrigger": chance.choice((7, 50, 1000)),
            "maxRecordsPerPartition": chance.choice((3, 1000)),
            "pullBatchSize": chance.choice((2, 2000)),
            "batchRows": chance.choice((1, 2000)),
            "metadataIntervalMs": chance.choice((0, 60_000)),
        }
        reader = self._stage.stream(
            subscribe=self._topic,
            startingOffsets=self._start,
            fetchOffset__numRetries=50,
            **options,
        )
        if chance.random() < 0.3:
            reader.prepareForTriggerAvailableNow()
        return reader

    # ---- steps ----------------------------------------------------------------------------------

    def send(self) -> None:
        """Store some messages in a queue."""
        place = (self._chance.choice(self._brokers), self._chance.randrange(self._queues))
        stored = self._sent[place]
        first = len(stored)
        bodies = [b"%d" % number for number in range(first, first + self._chance.randint(1, 20))]
        self._stage.send(self._topic, bodies, broker=place[0], queue=place[1])
        stored += bodies

    def widen(self) -> None:
        """Give the topic another queue on each broker."""
        if self._queues < 4:
            self._queues += 1
            self._stage.admin.update_topic(
                self._topic, read_queues=self._queues, write_queues=self._queues
            )

    def restart_broker(self) -> None:
        """Restart a broker, with or without an orderly stop."""
        number = self._chance.randrange(len(self._brokers))
        if self._cluster is None:
            return
        if self._chance.random() < 0.5:
            self._cluster.stop_broker(number)
        self._cluster.restart_broker(number)

    def die(self) -> None:
        """Drop everything but the checkpoint, and continue from it."""
        if self._chance.random() < 0.5:
            self.send()
        self._reader = self._started()
        if len(self._ends) > self._committed:
            self._run()

    def trigger(self) -> None:
        """Plan a batch, and run it unless the driver dies in between."""
        start = self._ends[-1] if self._ends else self._reader.initialOffset()
        self._note_start(start)
        if not self._is_finishing and self._chance.random() < 0.3:
            self.send()  # after "latest" was looked up, before the end of the batch is
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if self._ends and json.dumps(end) == json.dumps(start):
            return
        self._ends.append(json.loads(json.dumps(end)))
        if not self._is_finishing and self._chance.random() < 0.3:
            self.die()
        else:
            self._run()

    def _note_start(self, start: dict[str, Any]) -> None:
        """Record the start of the stream; it is fixed once the end of a batch is logged."""
        if not self._ends:
            found = start["q"][self._topic]
            self._skipped = {
                (broker, int(number)): offset
                for broker, queues in found.items()
                for number, offset in queues.items()
            }

    def _run(self) -> None:
        """Run the last batch, maybe more than once; only the last attempt counts."""
        before = self._ends[-2] if len(self._ends) > 1 else self._reader.initialOffset()
        partitions = self._reader.partitions(before, self._ends[-1])
        if self._chance.random() < 0.2:
            read(self._reader, partitions[:1])
        for row in read(self._reader, partitions).to_pylist():
            self._received[row["broker_name"], row["queue_id"]].append(row["body"])
        self._committed = len(self._ends)

    # ---- the end -------------------------------------------------------------------------------

    def check(self) -> None:
        """Read the rest, and compare it with what was sent."""
        self._is_finishing = True
        self._reader = self._stage.stream(subscribe=self._topic, startingOffsets=self._start)
        while True:
            count = len(self._ends)
            self.trigger()
            if len(self._ends) == count and count:
                break
        for place, bodies in self._sent.items():
            assert self._received[place] == bodies[self._skipped.get(place, 0) :], place
        assert self._received.keys() <= self._sent.keys()


def run_scenario(stage: Stage, cluster: Cluster | None, seed: int) -> None:
    """Run 40 random steps, then check that each message arrived once."""
    scenario = StreamScenario(stage, cluster, seed)
    chance = random.Random(seed)
    for _ in range(40):
        chance.choices(
            (
                scenario.send,
                scenario.trigger,
                scenario.die,
                scenario.widen,
                scenario.restart_broker,
            ),
            weights=(40, 40, 10, 6, 1),
        )[0]()
    scenario.check()
