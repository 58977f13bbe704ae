"""Commands of which some are made only when somebody asks for them.

The pipelines have so many flags that making them takes as long as starting a broker. Every command
would pay for it, `serve` among them.
"""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup
from typer.main import get_command

NAME: Final = "pipeline"
#: The heading in the help under which they stand, with all that uses a cluster.
PANEL: Final = "Use a cluster"


class LazyPipelines(TyperGroup):
    """The group of all commands, with that of the pipelines as its last one."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands[NAME] = TyperGroup(name=NAME)  # only the name: for lists, and for hints

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; the pipelines' are made now."""
        if cmd_name != NAME:
            return super().get_command(ctx, cmd_name)
        from downrange.cli import pipelines

        command: Any = get_command(pipelines.app)
        command.name = NAME
        command.rich_help_panel = PANEL
        return command
