"""Packages rocketmq and rocketmq-client-python: Apache's C++ client behind ctypes.

`send_async` of these packages keeps two callbacks per message and searches them for each answer,
and the second package has none. So many in flight are many threads; ctypes lets them run together.

With several threads, some sends in a thousand fail before anything is sent, as a thread does not
wait long enough for the lock of the connections. Such a send is made again.
"""

# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from rocketmq.client import Message, Producer, SendStatus

from benchmarks.peers.clients import IN_FLIGHT

#: A client that fails more often in a row does not work.
FAILURES_MAX = 100


class Client:
    """A producer."""

    def __init__(self, addresses: dict[str, str], topic: str, body: bytes) -> None:
        """Connect."""
        self._producer = Producer("peers")
        set_address = getattr(self._producer, "set_namesrv_addr", None)
        set_address = set_address or self._producer.set_name_server_address
        set_address(addresses["name_server"])
        self._producer.start()
        self._topic, self._body = topic, body

    def one(self, until: float) -> int:
        """Send one message at a time."""
        count = failures = 0
        while time.perf_counter() < until:
            message = Message(self._topic)
            message.set_body(self._body)
            try:
                status = self._producer.send_sync(message).status
            except Exception:
                failures += 1
                if failures > FAILURES_MAX:
                    raise
                continue
            if status != SendStatus.OK:
                raise RuntimeError("not stored")
            count, failures = count + 1, 0
        return count

    def many(self, until: float) -> int:
        """Send from many threads."""
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return sum(pool.map(self.one, [until] * IN_FLIGHT))
