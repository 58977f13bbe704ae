"""Detection of a fork: whether this is still the process in which an object was made.

`os.getpid` costs a tenth of a send. So the check is an attribute, which a hook of `os.fork` sets in
the child for all guards that exist.
"""

from __future__ import annotations

import os
from typing import Final
from weakref import WeakSet


class ForkGuard:
    """Remembers the process in which it was made.

    Attributes:
        is_forked: Whether this is a child of that process.
    """

    __slots__ = ("__weakref__", "is_forked")

    def __init__(self) -> None:
        self.is_forked = False
        _GUARDS.add(self)


_GUARDS: Final[WeakSet[ForkGuard]] = WeakSet()


def _mark_all() -> None:
    for guard in _GUARDS:
        guard.is_forked = True


os.register_at_fork(after_in_child=_mark_all)
