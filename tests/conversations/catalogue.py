"""All conversations, by name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from tests.conversations import (
    assignments,
    clients,
    operators,
    reads,
    registrations,
    resets,
    sends,
    tolerance,
    topics,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conversations.scene import Scene

    Conversation = Callable[[Scene], None]


def _conversations() -> dict[str, Conversation]:
    found: dict[str, Conversation] = {}
    for module in (
        *(topics, sends, reads, clients, assignments, registrations, tolerance),
        *(operators, resets),
    ):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and list(inspect.signature(function).parameters) == ["scene"]:
                found[name] = function
    return found


#: Every public function of these modules whose only parameter is a scene.
CONVERSATIONS = _conversations()
