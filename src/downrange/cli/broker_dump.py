"""The state of a cluster for a bug report: settings, figures, topics, groups, members, findings.

It has no messages: neither bodies nor keys nor properties of any are asked for. Settings whose name
or value may hold a secret are replaced. A part that cannot be asked for has the error in its place.
"""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from downrange.client.flows.admin.doctor import check_network
from downrange.client.flows.admin.health_checks import check_cluster
from downrange.client.flows.admin.secret_settings import without_secret
from downrange.errors import RocketMQError
from downrange.native import VERSION, path_in_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange import Admin, Client

#: What stands in the place of a secret.
REMOVED: Final = "(removed)"
#: How many topics and groups are described; the others are counted.
DESCRIBED_MAX: Final = 500
#: The version of the form of a dump.
_FORM: Final = 1


def dump_of(client: Client, admin: Admin, broker: str | None) -> dict[str, Any]:
    """Return the state as values that JSON has.

    Args:
        client: A started client.
        admin: An admin on it.
        broker: Only this broker's settings and figures; those of all masters otherwise.
    """
    return {
        "form": _FORM,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "downrange": f"{VERSION}, {path_in_use()}",
        "python": platform.python_version(),
        "system": platform.platform(),
        "name_servers": list(client.core.name_servers.addresses),
        "findings": _part(lambda: _findings(client)),
        "cluster": _part(lambda: admin.cluster_facts(with_versions=True)),
        "settings": _part(lambda: _settings(admin.broker_settings(broker))),
        "figures": _part(lambda: admin.broker_figures(broker)),
        "topics": _part(lambda: _topics(admin)),
        "groups": _part(lambda: _groups(admin)),
        "producers": _part(admin.list_producers),
    }


def _part(ask: Callable[..., Any], *arguments: str) -> Any:
    try:
        return msgspec.to_builtins(ask(*arguments), str_keys=True)
    except RocketMQError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _findings(client: Client) -> list[Any]:
    found = client.run(check_network(client.core))
    notify = partial(click.echo, err=True)
    return [*found, *client.run(check_cluster(client.core, pause=1.0, notify=notify))]


def _settings(settings: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {
        broker: {name: without_secret(name, value, REMOVED) for name, value in values.items()}
        for broker, values in settings.items()
    }


def _topics(admin: Admin) -> dict[str, Any]:
    names = [each.name for each in admin.list_topics()]
    described = {
        name: {
            "settings": _part(admin.topic_settings, name),
            "queues": _part(admin.topic_stats, name),
        }
        for name in names[:DESCRIBED_MAX]
    }
    return {"count": len(names), "described": described}


def _groups(admin: Admin) -> dict[str, Any]:
    groups = admin.list_groups(with_progress=True)
    described = {
        each.group: {
            "summary": each,
            "lag": _part(admin.group_lag, each.group),
            "members": _part(admin.group_members, each.group),
        }
        for each in [group for group in groups if group.kind == "normal"][:DESCRIBED_MAX]
    }
    return {"count": len(groups), "described": described}
