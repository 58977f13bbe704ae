"""Names and properties of messages, derived from their bodies."""

from __future__ import annotations


def name_of(body: bytes) -> str:
    """Return a message's name, which is its unique key: its body without the padding."""
    return body.decode().rstrip(".").replace(" ", "-")


def properties_of(body: bytes) -> dict[str, str]:
    """Return the properties that every message has: its name twice, and its tag."""
    name = name_of(body)
    return {"UNIQ_KEY": name, "KEYS": f"key-{name}", "TAGS": name[0]}
