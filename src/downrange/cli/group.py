"""`group …`: consumer groups, their settings, members, lag and offsets."""

from __future__ import annotations

import click

from downrange.cli import group_members, group_offsets, group_settings
from downrange.cli.command_groups import Group


@click.group(cls=Group)
def group() -> None:
    """Consumer groups: settings, members, lag, resets of offsets."""


for _command in (
    group_settings.list_,
    group_settings.show,
    group_settings.lag,
    group_members.members,
    group_settings.create,
    group_settings.update,
    group_settings.delete,
    group_offsets.reset,
    group_offsets.skip,
    group_offsets.clone,
    group_offsets.export,
    group_members.runinfo,
    group_members.consume_one,
    group_members.retry,
    group_members.producers,
):
    group.add_command(_command)
