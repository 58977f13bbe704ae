"""Key-value config: texts by namespace and key, kept for administrators and order topics.

The file that holds it is Apache's `kvConfig.json`: `{"configTable":{namespace:{key:value}}}`.
A namespace stays when its last key goes, as in Apache's server, which then answers with an empty
table instead of "not found".
"""

from __future__ import annotations

from typing import Final

from msgspec import field

from downrange.wire.bodies import Body, decode_body

#: Namespace of the topics whose messages are in order over all brokers: "broker-a:4;broker-b:4".
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"


class _File(Body):
    """Java: KVConfigSerializeWrapper."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KeyValues:
    """All namespaces.

    Args:
        bytes_max: Size of all names and values together that is not passed.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._spaces: dict[str, dict[str, str]] = {}
        self._bytes = 0

    def load(self, data: bytes) -> None:
        """Take the place of everything by what a file holds.

        Raises:
            MalformedBody: It is no such file.
        """
        self._spaces = decode_body(_File, data).config_table
        self._bytes = sum(
            _size(space, key, value)
            for space, values in self._spaces.items()
            for key, value in values.items()
        )

    def dump(self) -> bytes:
        """Return what the file shall hold."""
        return _File(config_table=self._spaces).encode()

    def put(self, space: str, key: str, value: str) -> bool:
        """Store a value; return False, and store nothing, when the limit is reached."""
        grown = self._bytes + _size(space, key, value)
        values = self._spaces.get(space, {})
        if key in values:
            grown -= _size(space, key, values[key])
        if grown > self._bytes_max:
            return False
        self._spaces.setdefault(space, {})[key] = value
        self._bytes = grown
        return True

    def get(self, space: str, key: str) -> str | None:
        """Return a value."""
        return self._spaces.get(space, {}).get(key)

    def delete(self, space: str, key: str) -> bool:
        """Delete a value; tell whether there was one."""
        value = self._spaces.get(space, {}).pop(key, None)
        if value is None:
            return False
        self._bytes -= _size(space, key, value)
        return True

    def namespace(self, space: str) -> dict[str, str] | None:
        """Return all values of a namespace; None when there never was one."""
        return self._spaces.get(space)


def _size(space: str, key: str, value: str) -> int:
    return len(space) + len(key) + len(value)
