"""A message as Python source that sends the same message again: "copy as Python". Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.validation import RESERVED_PROPERTIES
from downrange.console.cluster import limits
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from downrange import ReceivedMessage

_LINE: Final = 88
#: Properties that an argument sets, or a client or a broker.
_OWN: Final = RESERVED_PROPERTIES | {key.value for key in PropertyKey}


def source_of(message: ReceivedMessage, name_servers: str, namespace: str | None = None) -> str:
    """Return source that sends a message with the same body, tags, keys and properties."""
    properties = {name: value for name, value in message.properties.items() if name not in _OWN}
    sharding_key = message.properties.get(PropertyKey.SHARDING_KEY)
    arguments = [repr(message.topic), *_body(message.body)]
    if message.tags:
        arguments.append(f"tags={message.tags!r}")
    if message.keys:
        arguments.append(f"keys={message.keys!r}")
    if sharding_key:
        arguments.append(f"sharding_key={sharding_key!r}")
    if properties:
        arguments.append(f"properties={properties!r}")
    if message.flag:
        arguments.append(f"flag={message.flag}")
    is_long = len(message.body) > limits.BODY_SHOWN_BYTES
    lines = [f"    {argument}," for argument in arguments]
    return "\n".join(
        [
            *(["from pathlib import Path", ""] if is_long else []),
            "import downrange as mq",
            "",
            *(["# The body is long: download it as body.bin."] if is_long else []),
            "message = mq.Message(",
            *lines,
            ")",
            f"{_producer(name_servers, namespace)} as producer:",
            "    print(producer.send(message))",
            "",
        ]
    )


def _producer(name_servers: str, namespace: str | None) -> str:
    if namespace is None:
        return f"with mq.Producer({name_servers!r}, group='console')"
    lines = (
        f"{name_servers!r},",
        "group='console',",
        f"client_options=mq.ClientOptions(namespace={namespace!r}),",
    )
    return "\n    ".join(("with mq.Producer(", *lines)) + "\n)"


def _body(body: bytes) -> list[str]:
    """Return the body as a literal, over several lines; a long one is read from a file."""
    if len(body) > limits.BODY_SHOWN_BYTES:
        return ['Path("body.bin").read_bytes()']
    parts: list[bytes] | list[str]
    try:
        text = body.decode()
        parts = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
    except UnicodeDecodeError:
        step = _LINE // 4  # a byte may take four letters
        parts = [body[at : at + step] for at in range(0, len(body), step)]
    if len(parts) <= 1:
        return [repr(parts[0]) if parts else "b''"]
    joined = "\n        ".join(map(repr, parts))
    return [f"(\n        {joined}\n    )"]
