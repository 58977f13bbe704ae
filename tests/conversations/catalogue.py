"""All conversations, by name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from tests.conversations import (
    assignments,
    clients,
    operators,
    orderly_pops,
    pop_receipts,
    pops,
    reads,
    registrations,
    resets,
    sends,
    sql_filters,
    tolerance,
    topics,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tests.conversations.scene import Scene

    Conversation = Callable[[Scene], None]


def _conversations(*modules: ModuleType) -> dict[str, Conversation]:
    """Return the public functions of the modules whose only parameter is a scene."""
    found: dict[str, Conversation] = {}
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and list(inspect.signature(function).parameters) == ["scene"]:
                found[name] = function
    return found


#: The conversations that only a 5.x server holds.
_ONLY_5X = _conversations(pops, pop_receipts, orderly_pops)

#: All conversations.
CONVERSATIONS = (
    _conversations(topics, sends, reads, clients, assignments, registrations, tolerance)
    | _conversations(operators, resets, sql_filters)
    | _ONLY_5X
)


def conversations_of(version: str) -> list[str]:
    """Return the names of the conversations that a release holds."""
    return [name for name in CONVERSATIONS if version.startswith("5.") or name not in _ONLY_5X]
