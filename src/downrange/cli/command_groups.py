"""Groups of commands: listed in the order of definition, with a hint for a misspelt name.

A lazy group imports a command only when it is used. Otherwise every command would import the
modules of all others, also `serve`, which should start fast and use little memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from downrange.cli.parameters import Command
from downrange.options.hints import similar_names

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Longer than any short help, so that it is wrapped and not cut.
_SHORT_HELP_MAX = 1000


class Group(click.Group):
    """A group of commands; without a command it shows its help."""

    command_class = Command

    def __init__(self, name: str | None = None, **attributes: Any) -> None:
        super().__init__(name, no_args_is_help=True, **attributes)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which the commands were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown name ends with a hint at similar ones."""
        name = args[0]
        is_known = name in self.list_commands(ctx) or name.startswith("-")
        if not is_known and not ctx.resilient_parsing:
            similar = ", ".join(map(repr, similar_names(name, self.list_commands(ctx), count=3)))
            hint = f" Did you mean {similar}?" if similar else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names with their short help."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(_SHORT_HELP_MAX))
                    for name, command in self.commands.items()
                ]
            )


class LazyGroup(Group):
    """A group that imports a command only when it is used.

    Args:
        panels: Heading -> name of the command -> its location as "module:variable", and its short
            help, so that the list of commands imports none of them.
        attributes: Arguments of `click.Group`.
    """

    def __init__(
        self, panels: Mapping[str, Mapping[str, tuple[str, str]]], **attributes: Any
    ) -> None:
        super().__init__(**attributes)
        self._panels = panels
        self._locations = {
            name: location
            for commands in panels.values()
            for name, (location, _) in commands.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, by heading."""
        return list(self._locations)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None for an unknown name."""
        if cmd_name not in self._locations:
            return None
        module, _, variable = self._locations[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), variable)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names with their short help under their headings, in aligned columns."""
        width = max(map(len, self._locations))
        for panel, commands in self._panels.items():
            with formatter.section(panel):
                formatter.write_dl(
                    [(f"{name:{width}}", text) for name, (_, text) in commands.items()]
                )
