"""The list of name servers, and which of them to ask.

All name servers hold the same routes. The list is shuffled, so that the clients of a cluster spread
over them. The server that answered last is asked again; after a failure the next one is asked. One
call tries all of them, as the Java client of 4.9 does. The client of 5.x fails the call first and
changes the server afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.effects import Randomness


class NameServers:
    """The name servers of one cluster.

    Args:
        addresses: "host:port" each; may be empty until they are discovered.
        randomness: For shuffling.
    """

    def __init__(self, addresses: Iterable[str], randomness: Randomness) -> None:
        self._randomness = randomness
        self._addresses: list[str] = []
        self._current = 0
        self.replace(addresses)

    @property
    def addresses(self) -> list[str]:
        """All of them, the one in use first."""
        return self._addresses[self._current :] + self._addresses[: self._current]

    def replace(self, addresses: Iterable[str]) -> bool:
        """Take a new list; return whether it differs. The server in use is kept if it is in it."""
        fresh = list(dict.fromkeys(addresses))
        if set(fresh) == set(self._addresses):
            return False
        in_use = self._addresses[self._current] if self._addresses else None
        for index in range(len(fresh) - 1, 0, -1):
            other = self._randomness.below(index + 1)
            fresh[index], fresh[other] = fresh[other], fresh[index]
        self._addresses = fresh
        self._current = fresh.index(in_use) if in_use in fresh else 0
        return True

    def pass_over(self, address: str) -> None:
        """Change to the next server if this one, which did not answer, is in use."""
        if self._addresses and self._addresses[self._current] == address:
            self._current = (self._current + 1) % len(self._addresses)
