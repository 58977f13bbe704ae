"""A member of a consumer group in a process of its own, which writes what it handles to a file.

python -m tests.faults.group_worker SERVERS GROUP TOPIC MODE FILE
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tests.faults.group_load import join, options
from tests.faults.processes import DEADLINE

if TYPE_CHECKING:
    from downrange import ReceivedMessage
    from downrange.options.consumers import ConsumeMode


class Worker:
    """The process, as its test sees it; it is ready at the end of `__init__`.

    Args:
        servers: The name servers.
        group: The group.
        topic: The topic.
        mode: How it consumes.
        file: What it handles; its log is beside it.
    """

    def __init__(self, servers: str, group: str, topic: str, mode: ConsumeMode, file: Path) -> None:
        self.log = file.with_suffix(".log")
        command = [sys.executable, "-m", "tests.faults.group_worker"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, servers, group, topic, mode, str(file)],
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def wait(self) -> None:
        """Wait until it is a member."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", self.log.read_text()

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """Let it leave its group; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self.process.stdout is not None
        code = self.process.wait(DEADLINE)
        self.process.stdout.close()
        return code


def _main(servers: str, group: str, topic: str, mode: str, path: str) -> None:
    file = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    numbers = itertools.count()

    def handle(message: ReceivedMessage) -> None:
        queue, number = message.queue, next(numbers)
        rest = f"{queue.topic} {queue.broker} {queue.number} {message.offset}"
        rest += f" {message.body.decode()}\n"
        os.write(file, f"begin {number} {time.monotonic()} {rest}".encode())
        time.sleep(0.001)
        os.write(file, f"end {number} {time.monotonic()} {rest}".encode())

    member = join(servers, group, topic, handle, options(cast("ConsumeMode", mode)))
    signal.signal(signal.SIGTERM, lambda *_: member.stop())
    print("ready", flush=True)
    member.wait()
    member.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
