"""How long a producer pauses when one of two brokers fails, in each style of fault tolerance.

Two brokers, each in its own process, and one thread that sends a message one millisecond after each
reply. Then broker-b is killed, which its clients notice at once, or stopped: it keeps its
connections and does not reply, which clients notice only by a timeout.

    python -m benchmarks.failover [--seconds 4] [--attempt-timeout 0.5]
"""

from __future__ import annotations

import argparse
import itertools
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table

from downrange.options import FaultTolerance, ProducerOptions
from tests.faults.fleet import running_fleet
from tests.faults.producers import KINDS, Kind, Load, producing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.fleet import Fleet

Style: TypeAlias = Literal["off", "4.x", "5.x"]
End: TypeAlias = Literal["killed", "silent"]
STYLES: Final[tuple[Style, ...]] = ("off", "4.x", "5.x")
ENDS: Final[tuple[End, ...]] = ("killed", "silent")
_WARM_UP: Final = 200


class Outcome(NamedTuple):
    """Results of the sending thread while a broker was down.

    Attributes:
        longest: The longest time between two acknowledgements, in seconds.
        slow: Sends that took more than a tenth of a second.
        per_second: Acknowledgements per second.
        retried: Attempts beyond the first.
        failed: Sends that failed.
    """

    longest: float
    slow: int
    per_second: float
    retried: int
    failed: int


def measure(
    fleet: Fleet, kind: Kind, style: Style, end: End, *, seconds: float, attempt_timeout: float
) -> Outcome:
    """Kill or stop broker-b for some seconds, then bring it back."""
    topic = f"{end}-{kind}-{style.replace('.', '')}"
    fleet.create_topic(topic)
    options = ProducerOptions(
        timeout=3.0,
        attempt_timeout=attempt_timeout,
        fault_tolerance=style if style == "off" else FaultTolerance(style=style),
    )
    broker = fleet.brokers[1]
    assert broker.process is not None
    with producing(kind, fleet.addresses, options=options) as producer:
        with Load(producer, topic, threads=1) as load:
            load.wait_for(_WARM_UP, "broker-b")
            since = len(load.sent)
            started = time.monotonic()
            if end == "killed":
                broker.kill()
            else:
                broker.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            elapsed = time.monotonic() - started
            during = load.sent[since:]
        retried = producer.client.stats().producers["faults"].retried
        # A stopped broker would delay the close of the producer.
        if end == "silent":
            broker.process.send_signal(signal.SIGCONT)
    if end == "killed":
        broker.start()
    ends = [started, *(one.ended for one in during), started + elapsed]
    pauses = [later - earlier for earlier, later in itertools.pairwise(ends)]
    return Outcome(
        longest=max(pauses),
        slow=sum(pause > 0.1 for pause in pauses),
        per_second=len(during) / elapsed,
        retried=retried,
        failed=len(load.failures),
    )


def rows(
    fleet: Fleet, seconds: float, attempt_timeout: float
) -> Iterator[tuple[End, Kind, Style, Outcome]]:
    """Measure all combinations."""
    for end in ENDS:
        for kind in KINDS:
            for style in STYLES:
                yield (
                    end,
                    kind,
                    style,
                    measure(
                        fleet, kind, style, end, seconds=seconds, attempt_timeout=attempt_timeout
                    ),
                )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.failover")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long broker-b is down")
    parser.add_argument("--attempt-timeout", type=float, default=0.5, help="timeout of one attempt")
    arguments = parser.parse_args()
    table = Table(title="One thread sends, one of two brokers fails")
    for name in ("broker-b", "producer", "fault tolerance"):
        table.add_column(name)
    for name in ("longest pause", "pauses > 0.1 s", "sends/s", "retried", "failed"):
        table.add_column(name, justify="right")
    with (
        tempfile.TemporaryDirectory(prefix="downrange-failover-") as folder,
        running_fleet(Path(folder)) as fleet,
    ):
        for end, kind, style, found in rows(fleet, arguments.seconds, arguments.attempt_timeout):
            table.add_row(
                end,
                kind,
                style,
                f"{found.longest * 1000:.0f} ms",
                str(found.slow),
                f"{found.per_second:.0f}",
                str(found.retried),
                str(found.failed),
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
