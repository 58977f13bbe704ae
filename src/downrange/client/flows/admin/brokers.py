"""Brokers: settings, figures, clean-up, and their permission to be written to.

A broker is named as the name server knows it. Without a name, a change goes to every master of the
cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from downrange.checks import check_name, check_one_of, check_optional_text, check_text, check_type
from downrange.client.flows.admin.clusters import ask_each, change_each, find_masters
from downrange.client.flows.admin.reports import NameServerFacts
from downrange.client.flows.effects import CALLS_AT_ONCE, Gather
from downrange.errors import OptionError, RocketMQError
from downrange.wire.bodies import KeyValueBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    AddWritePermissionReply,
    AddWritePermissionRequest,
    WipeWritePermissionReply,
    WipeWritePermissionRequest,
)

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow

#: What can be cleaned up: queues whose messages have expired, topics that clients no longer need,
#: or files of the commit log that have expired.
CleanUp: TypeAlias = Literal["queues", "topics", "log"]
_CLEAN_UPS: Final = {
    "queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "topics": RequestCode.CLEAN_UNUSED_TOPIC,
    "log": RequestCode.DELETE_EXPIRED_COMMITLOG,
}
#: What Java escapes in a properties file.
_ESCAPED: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _masters(
    core: ClientCore, broker: str | None, cluster: str | None, deadline: float
) -> Flow[dict[str, str]]:
    check_optional_text("broker", broker)
    check_optional_text("cluster", cluster)
    brokers = None if broker is None else [broker]
    return (
        yield from find_masters(
            core, cluster=cluster, brokers=brokers, topic=broker or "", deadline=deadline
        )
    )


# ---- settings and figures ------------------------------------------------------------------------


def broker_settings(
    core: ClientCore, broker: str | None = None, *, cluster: str | None = None, deadline: float
) -> Flow[dict[str, dict[str, str]]]:
    """Return the settings of a broker, or of all: broker -> name -> value, Java's names.

    Raises:
        OptionError: There is no such broker or cluster.
        RocketMQError: A broker did not answer.
    """
    masters = yield from _masters(core, broker, cluster, deadline)
    code = int(RequestCode.GET_BROKER_CONFIG)
    replies = yield from ask_each(core, masters, lambda: Command(code), deadline)
    return {
        name: read_properties(reply.body.decode(errors="replace"))
        for name, reply in replies.items()
    }


def change_broker_settings(
    core: ClientCore,
    changes: Mapping[str, str],
    broker: str | None = None,
    *,
    cluster: str | None = None,
    deadline: float,
) -> Flow[dict[str, dict[str, str]]]:
    """Change settings of a broker, or of all masters of a cluster; return the settings after it.

    Apache's brokers ignore a name that they do not know. So the settings are read again, and a
    value that did not arrive is an error.

    Raises:
        OptionError: There is no such broker or cluster, a value is not text, or a broker does not
            have the setting.
        PartlyDone: Some brokers made the change, others failed.
        RocketMQError: No broker made the change.
    """
    text = _write_properties(changes)
    masters = yield from _masters(core, broker, cluster, deadline)
    code = int(RequestCode.UPDATE_BROKER_CONFIG)
    what = f"change {', '.join(sorted(changes))}"
    yield from change_each(core, masters, lambda: Command(code, body=text.encode()), deadline, what)
    after = yield from broker_settings(core, broker, cluster=cluster, deadline=deadline)
    for name, settings in after.items():
        ignored = {key: value for key, value in changes.items() if settings.get(key) != value}
        for key, value in ignored.items():
            shown = "has no such setting" if key not in settings else f"has {settings[key]!r}"
            raise OptionError(
                f"broker {name} at {masters[name]} ignored {key}={value!r}: it {shown}"
            )
    return after


def _write_properties(changes: Any) -> str:
    check_type("changes", changes, Mapping, "a dict of str to str")
    if not changes:
        raise OptionError("changes={} names no setting")
    lines: list[str] = []
    for name, value in changes.items():
        check_name("each name of changes", name)
        check_text(f"changes[{name!r}]", value)
        if any(mark in name for mark in " =:\n") or "\n" in value:
            raise OptionError(f"setting {name!r}={value!r} does not fit one line name=value")
        escaped = value.replace("\\", "\\\\")
        lines.append(f"{name}={escaped}\n")
    return "".join(lines)


def read_properties(text: str) -> dict[str, str]:
    r"""Read a properties file of Java: `name=value` lines, `\` escapes, `#` comments."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, mark, value = line.strip().partition("=")
        if mark and not name.startswith("#"):
            found[name.strip()] = _unescaped(value.strip())
    return found


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)


def broker_figures(
    core: ClientCore, broker: str | None = None, *, cluster: str | None = None, deadline: float
) -> Flow[dict[str, dict[str, str]]]:
    """Return what a broker, or each one, says about itself: broker -> name -> value.

    Raises:
        OptionError: There is no such broker or cluster.
        RocketMQError: A broker did not answer.
    """
    masters = yield from _masters(core, broker, cluster, deadline)
    code = int(RequestCode.GET_BROKER_RUNTIME_INFO)
    replies = yield from ask_each(core, masters, lambda: Command(code), deadline)
    return {
        name: dict(sorted(decode_body(KeyValueBody, reply.body).table.items()))
        for name, reply in replies.items()
    }


def name_servers(core: ClientCore, *, deadline: float) -> Flow[list[NameServerFacts]]:
    """Return the settings of each of the client's name servers, or why it did not answer."""
    addresses = list(core.name_servers.addresses)
    code = int(RequestCode.GET_NAMESRV_CONFIG)
    asked = [core.ask(address, Command(code), deadline) for address in addresses]
    outcomes: list[Command | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    return [
        NameServerFacts(address=address, problem=outcome.brief)
        if isinstance(outcome, RocketMQError)
        else NameServerFacts(
            address=address, settings=read_properties(outcome.body.decode(errors="replace"))
        )
        for address, outcome in zip(addresses, outcomes, strict=True)
    ]


# ---- upkeep --------------------------------------------------------------------------------------


def clean_up(
    core: ClientCore,
    what: CleanUp,
    broker: str | None = None,
    *,
    cluster: str | None = None,
    deadline: float,
) -> Flow[list[str]]:
    """Have a broker, or each one, delete what has expired; return the brokers that did.

    Raises:
        OptionError: There is no such broker or cluster, or no such thing to clean up.
        PartlyDone: Some brokers did it, others failed.
        RocketMQError: No broker did it.
    """
    check_one_of("what", what, _CLEAN_UPS)
    masters = yield from _masters(core, broker, cluster, deadline)
    code = int(_CLEAN_UPS[what])
    replies = yield from change_each(
        core, masters, lambda: Command(code), deadline, f"clean up {what}"
    )
    return list(replies)


def set_writable(core: ClientCore, broker: str, is_writable: bool, *, deadline: float) -> Flow[int]:
    """Have all name servers announce a broker as read-only, or as writable again.

    Producers then stop to send to it, and consumers can empty it.

    Returns:
        How many topics it has changed, at the first name server.

    Raises:
        OptionError: There is no such broker.
        PartlyDone: Some name servers did it, others failed.
        RocketMQError: No name server did it.
    """
    check_name("broker", broker)
    yield from _masters(core, broker, None, deadline)
    servers = {address: address for address in core.name_servers.addresses}
    header: AddWritePermissionRequest | WipeWritePermissionRequest
    header = (AddWritePermissionRequest if is_writable else WipeWritePermissionRequest)(broker)
    what = f"make broker {broker} {'writable' if is_writable else 'read-only'}"
    replies = yield from change_each(core, servers, lambda: request_command(header), deadline, what)
    fields = next(iter(replies.values())).fields
    if is_writable:
        return AddWritePermissionReply.from_fields(fields).add_topic_count
    return WipeWritePermissionReply.from_fields(fields).wipe_topic_count
