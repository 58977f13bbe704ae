"""Completion of topic and group names in a shell; click completes commands, options and files.

One rule: completion prints names or nothing. A cluster that does not answer is not an error there.
"""

from __future__ import annotations

import logging
import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    import click

    from downrange import Admin

#: Seconds that the shell waits for a cluster that does not answer.
_TIMEOUT: Final = 2.0
#: Prefix of the connection options of a pipeline.
_PIPELINE_PREFIX: Final = "cluster__"


def complete_topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the cluster's topics that begin with a text.

    The connection is that of the options on the command line and of the environment.
    """
    return _complete(ctx, incomplete, _topics_of)


def complete_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the cluster's consumer groups that begin with a text."""
    return _complete(ctx, incomplete, _groups_of)


def _topics_of(admin: Admin) -> list[str]:
    return [each.name for each in admin.list_topics() if each.kind == "normal"]


def _groups_of(admin: Admin) -> list[str]:
    return [each.group for each in admin.list_groups() if each.kind == "normal"]


def _complete(
    ctx: click.Context, incomplete: str, names_of: Callable[[Admin], list[str]]
) -> list[str]:
    from downrange.cli.connection import Connection
    from downrange.errors import RocketMQError
    from downrange.options.cluster import VARIABLES

    logging.disable()
    given = {name.removeprefix(_PIPELINE_PREFIX): value for name, value in ctx.params.items()}
    names = {each.name for each in fields(Connection)}
    values: dict[str, Any] = {
        name: value for name, value in given.items() if name in names and value is not None
    }
    for name, variable in VARIABLES.items():
        if name in names and (value := os.environ.get(variable)):
            values.setdefault(name, value)
    try:
        connection = replace(Connection(**values), timeout=_TIMEOUT)
        with connection.admin() as admin:
            found = names_of(admin)
    except RocketMQError:
        return []
    return [name for name in found if name.startswith(incomplete)]
