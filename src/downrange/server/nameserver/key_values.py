"""Key-value config: texts by namespace and key, for administrators and order topics.

Its file is Apache's `kvConfig.json`: `{"configTable":{namespace:{key:value}}}`. A namespace stays
after its last key was deleted, as in Apache's server: the reply is then an empty table instead of
"not found".
"""

from __future__ import annotations

from typing import Final

from msgspec import field

from downrange.wire.bodies import Body, decode_body

#: The namespace of topics that are ordered across brokers; values like "broker-a:4;broker-b:4".
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"


class _File(Body):
    """Java: KVConfigSerializeWrapper."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KeyValues:
    """All namespaces.

    Args:
        bytes_max: The largest size of all names and values together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._spaces: dict[str, dict[str, str]] = {}
        self._bytes = 0

    def load(self, data: bytes) -> None:
        """Replace everything by the contents of a file.

        Raises:
            MalformedBody: The file is not valid.
        """
        self._spaces = decode_body(_File, data).config_table
        self._bytes = sum(
            _size(space, key, value)
            for space, values in self._spaces.items()
            for key, value in values.items()
        )

    def dump(self) -> bytes:
        """Return the contents of the file."""
        return _File(config_table=self._spaces).encode()

    def put(self, space: str, key: str, value: str) -> bool:
        """Store a value; return False if that would exceed the limit."""
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
        """Return a value, or None."""
        return self._spaces.get(space, {}).get(key)

    def delete(self, space: str, key: str) -> bool:
        """Delete a value; return whether it existed."""
        value = self._spaces.get(space, {}).pop(key, None)
        if value is None:
            return False
        self._bytes -= _size(space, key, value)
        return True

    def namespace(self, space: str) -> dict[str, str] | None:
        """Return all values of a namespace; None if there never was one."""
        return self._spaces.get(space)


def _size(space: str, key: str, value: str) -> int:
    return len(space) + len(key) + len(value)
