"""A server that is killed soon after each start: recovery does not take longer each time.

The test compares numbers of records. `make campaign` kills 100 times and compares times, too:

    python -m tests.faults.test_repeated_kills [--kills 100] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from pathlib import Path
from random import Random, randrange
from statistics import median
from typing import NamedTuple

from downrange.wire.fields import request_command
from downrange.wire.headers import MaxOffsetRequest
from tests.embedded.brokers import connection, send
from tests.faults.load import Acknowledged, Sender, check_kept
from tests.faults.processes import DEADLINE, ServerProcess, served
from tests.support.waiting import wait_until

#: Starts that are compared with each other.
BLOCK = 10
#: All exist from the first life on, so that the number of queues does not change.
TOPICS = [f"topic-{number}" for number in range(5)]
#: The last ten recoveries may take this many times as long as the first ten.
GROWTH_MAX = 1.3
PER_SECOND = 5000


class Start(NamedTuple):
    """One start after a kill.

    Attributes:
        scanned: Records that recovery read.
        stored: Records that the process before it stored.
        recovery: How long recovery took, in seconds.
        cpu: The CPU time of the process until it was ready, in seconds.
    """

    scanned: int
    stored: int
    recovery: float
    cpu: float


class RepeatedKills:
    """One store, and the processes that served it.

    Attributes:
        starts: All starts after a kill.
        promised: The acknowledged messages, by topic.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._end = 0  # of all queues together, at the last start
        self._lives = 0
        self.starts: list[Start] = []
        self.promised: dict[str, list[Acknowledged]] = {topic: [] for topic in TOPICS}

    def live(self, seconds: float, least: int = 0) -> None:
        """Start a server, send to it for some time, and kill it.

        Args:
            seconds: How long it lives.
            least: It lives longer if it has not acknowledged this many messages by then.
        """
        topic = TOPICS[self._lives % len(TOPICS)]
        with served(self._folder, "--flush", "async") as server:
            self._note_start(server)
            if not self._lives:
                for each in TOPICS:
                    assert send(server.broker, b"first", each) == 0
            sender = Sender(
                server.broker,
                topic,
                f"life-{self._lives}",
                Random(self._lives),
                window=64,
                per_second=PER_SECOND,
                sizes=(100,),
            )
            sender.start()
            time.sleep(seconds)
            if least:
                wait_until(lambda: len(sender.acknowledged) >= least)
            server.kill()
        sender.join(DEADLINE)
        assert sender.refusal is None, sender.refusal
        self.promised[topic] += sender.acknowledged
        self._lives += 1

    def check(self) -> None:
        """Start once more: everything that was acknowledged is stored."""
        with served(self._folder) as server:
            self._note_start(server)
            for promised in self.promised.values():  # one topic at a time, to limit the memory
                check_kept(server.broker, promised)
            assert server.stop() == 0

    def _note_start(self, server: ServerProcess) -> None:
        cpu = _cpu_seconds(server)
        if self._lives:
            end = sum(_queue_end(server.broker, topic) for topic in TOPICS)
            stored, self._end = end - self._end, end
            found = re.findall(r"was not closed: read (\d+) records .* in ([\d.]+) s", server.log())
            assert len(found) == self._lives
            scanned, seconds = found[-1]
            self.starts.append(Start(int(scanned), stored, float(seconds), cpu))


def _cpu_seconds(server: ServerProcess) -> float:
    """Return the CPU time of a process so far, from Linux's accounting."""
    words = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _queue_end(address: str, topic: str) -> int:
    with connection(address) as peer:
        answer = peer.ask(request_command(MaxOffsetRequest(topic=topic, queue_id=0)))
        return int(answer.fields["offset"])


def test_recovery_after_each_of_many_kills_reads_only_what_the_last_process_stored(
    tmp_path: Path,
) -> None:
    random = Random(14)
    kills = RepeatedKills(tmp_path / "store")
    for _ in range(8):
        kills.live(random.uniform(0.05, 0.6), least=150)
    kills.check()
    assert all(start.scanned <= start.stored for start in kills.starts)
    assert sum(start.stored for start in kills.starts) > 1000


def main() -> None:
    """Kill a server many times, and compare the last recoveries with the first ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="an empty folder; temporary if not given")
    asked = parser.parse_args()
    seed = randrange(1 << 40)
    print(f"{asked.kills} kills, seed {seed}")
    with tempfile.TemporaryDirectory() as temporary:
        kills = RepeatedKills((asked.folder or Path(temporary)) / "store")
        random = Random(seed)
        # Each block has the same times in another order, so that blocks can be compared.
        times = [random.uniform(0.0, 2.0) for _ in range(BLOCK)]
        for life in range(asked.kills):
            if life % BLOCK == 0:
                random.shuffle(times)
            kills.live(times[life % BLOCK])
        kills.check()
    first, last = kills.starts[:BLOCK], kills.starts[-BLOCK:]
    for name, starts in (("first", first), ("last", last)):
        print(
            f"{name} {BLOCK} starts, medians: {median(start.scanned for start in starts):.0f} "
            f"records read in {median(start.recovery for start in starts):.2f} s; "
            f"{median(start.cpu for start in starts):.2f} s of CPU until ready"
        )
    assert all(start.scanned <= start.stored for start in kills.starts)
    recovery = median(start.recovery for start in last) / median(start.recovery for start in first)
    cpu = median(start.cpu for start in last) / median(start.cpu for start in first)
    count = sum(map(len, kills.promised.values()))
    print(f"{count} messages acknowledged, none lost")
    print(f"last to first: recovery {recovery:.2f} times, CPU until ready {cpu:.2f} times")
    assert recovery <= GROWTH_MAX, f"recovery: {recovery:.2f} is more than {GROWTH_MAX}"
    assert cpu <= GROWTH_MAX, f"CPU until ready: {cpu:.2f} is more than {GROWTH_MAX}"


if __name__ == "__main__":
    main()
