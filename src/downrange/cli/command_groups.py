"""Groups of commands: in the order in which they are written, with a hint for one misspelt.

A lazy group imports a command when somebody asks for it. Else every command would pay for the
modules of all others, `serve` among them, which should be up soon and stay small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from downrange.cli.parameters import Command
from downrange.options.hints import similar_names

if TYPE_CHECKING:
    from collections.abc import Mapping

#: More than any sentence has: a short help is wrapped, not cut.
_SHORT_HELP_MAX = 1000


class Group(click.Group):
    """A group of commands; without one it shows its help."""

    command_class = Command

    def __init__(self, name: str | None = None, **attributes: Any) -> None:
        super().__init__(name, no_args_is_help=True, **attributes)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which the commands were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; say which ones are alike where there is none."""
        name = args[0]
        is_known = name in self.list_commands(ctx) or name.startswith("-")
        if not is_known and not ctx.resilient_parsing:
            likely = ", ".join(map(repr, similar_names(name, self.list_commands(ctx), count=3)))
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {likely}?" if likely else ""))
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
    """A group that imports a command when it is asked for.

    Args:
        panels: Heading -> name of the command -> where it is, as "module:variable", and its short
            help, so that the list of all commands needs none of them.
        attributes: What click's group takes.
    """

    def __init__(
        self, panels: Mapping[str, Mapping[str, tuple[str, str]]], **attributes: Any
    ) -> None:
        super().__init__(**attributes)
        self._panels = panels
        self._places = {
            name: place for commands in panels.values() for name, (place, _) in commands.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, by heading."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None where there is none of that name."""
        if cmd_name not in self._places:
            return None
        module, _, variable = self._places[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), variable)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names with their short help under their headings, in columns that agree."""
        width = max(map(len, self._places))
        for panel, commands in self._panels.items():
            with formatter.section(panel):
                formatter.write_dl(
                    [(f"{name:{width}}", text) for name, (_, text) in commands.items()]
                )
