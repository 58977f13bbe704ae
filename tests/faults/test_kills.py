"""A process that is killed under load loses no acknowledged message."""

from __future__ import annotations

import subprocess
import time
from random import Random
from typing import TYPE_CHECKING

from tests.faults.load import Acknowledged, Sender, check_found, check_kept
from tests.faults.processes import COMMAND, DEADLINE, FREE_PORTS, ServerProcess, served

if TYPE_CHECKING:
    from pathlib import Path

CYCLES = 20
#: A sync on a busy disk may take longer than the default, after which a send is refused.
PATIENT = "[broker]\nflush_timeout = 90.0\n"


def test_a_server_that_is_killed_repeatedly_keeps_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    """In both flush modes: the kernel keeps what a killed process wrote."""
    config = tmp_path / "config.toml"
    config.write_text(PATIENT)
    random = Random(4)
    promised: list[Acknowledged] = []
    seconds_to_ready: list[float] = []
    for cycle in range(CYCLES):
        options = ("--flush", ("sync", "async")[cycle % 2], "--config", str(config))
        with served(tmp_path / "store", *options) as server:
            seconds_to_ready.append(server.seconds_to_ready)
            check_kept(server.broker, promised)
            if promised:
                check_found(server.broker, random.sample(promised, 3))
            promised += _kill_under_load(server, cycle, random)
        if cycle % 4 == 0:
            _kill_while_it_starts(tmp_path / "store", random)
    with served(tmp_path / "store") as server:
        check_kept(server.broker, promised)
        assert server.stop() == 0
        assert server.log().count("was not closed") == CYCLES
    print(
        f"\n{len(promised)} messages acknowledged in {CYCLES} lives; "
        f"ready after {max(seconds_to_ready):.2f} s at most"
    )


def _kill_while_it_starts(store: Path, random: Random) -> None:
    command = [*COMMAND, "--store", str(store), *FREE_PORTS, "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        time.sleep(random.uniform(0.2, 0.7))
        process.kill()


def _kill_under_load(server: ServerProcess, cycle: int, random: Random) -> list[Acknowledged]:
    """Run senders until enough is acknowledged, then kill the server."""
    senders = [
        Sender(server.broker, "shared", f"{cycle}-a", Random(cycle), window=1),
        Sender(server.broker, "shared", f"{cycle}-b", Random(cycle + 100), window=64),
        Sender(server.broker, f"own-{cycle % 5}", f"{cycle}-c", Random(cycle + 200), window=16),
        Sender(server.broker, "batches", f"{cycle}-d", Random(cycle), window=8, batch=7),
    ]
    for sender in senders:
        sender.start()
    target = random.randrange(50, 500)
    deadline = time.monotonic() + DEADLINE
    while sum(len(sender.acknowledged) for sender in senders) < target:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    server.kill()
    for sender in senders:
        sender.join(DEADLINE)
        assert sender.refusal is None, sender.refusal
    return [message for sender in senders for message in sender.acknowledged]
