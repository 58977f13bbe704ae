"""Message request modes: whether the members of a group pull or pop the messages of a topic.

An operator sets them (request 401, `mqadmin setConsumeMode`). The file has Java's name and form.
"""

from __future__ import annotations

from typing import Final

from downrange.wire.bodies import RequestModeBody, RequestModesBody, decode_body

PATH: Final = "config/messageRequestMode.json"

PULL: Final = "PULL"
POP: Final = "POP"

#: How many modes may be set in all; `RequestModes.put` refuses more.
MODES_MAX: Final = 100_000


class RequestModes:
    """The modes that were set, by topic and group.

    Attributes:
        version: The number of changes since the start.
    """

    def __init__(self) -> None:
        self.version = 0
        self._topics: dict[str, dict[str, RequestModeBody]] = {}
        self._count = 0

    def get(self, topic: str, group: str) -> RequestModeBody | None:
        """Return the mode of a group for a topic, or None if none was set."""
        return self._topics.get(topic, {}).get(group)

    def put(self, mode: RequestModeBody) -> bool:
        """Set a mode; return False if there are too many already."""
        is_new = self.get(mode.topic, mode.consumer_group) is None
        if is_new and self._count >= MODES_MAX:
            return False
        self._topics.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._count += is_new
        self.version += 1
        return True

    def delete_topic(self, topic: str) -> None:
        """Remove all modes for a topic."""
        removed = self._topics.pop(topic, None)
        if removed is not None:
            self._count -= len(removed)
            self.version += 1

    def delete_group(self, group: str) -> None:
        """Remove all modes of a group."""
        for topic in [topic for topic, groups in self._topics.items() if group in groups]:
            del self._topics[topic][group]
            if not self._topics[topic]:
                del self._topics[topic]
            self._count -= 1
            self.version += 1

    def dump(self) -> bytes:
        """Encode messageRequestMode.json, which is also the reply to request 402."""
        return RequestModesBody(message_request_mode_map=self._topics).encode()

    def load(self, data: bytes) -> None:
        """Decode messageRequestMode.json, written by this broker or by Java.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        self._topics = decode_body(RequestModesBody, data).message_request_mode_map
        self._count = sum(map(len, self._topics.values()))
