"""Arguments with a help text, options with a heading, and the commands that show both.

Options that several commands share are the fields of a dataclass, so each is defined once;
`with_options_of` adds them to a command and passes them as one object.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    OptionsT = TypeVar("OptionsT", bound=DataclassInstance)
    P = ParamSpec("P")

_ARGUMENTS: Final = "Arguments"
_OPTIONS: Final = "Options"
#: A file or folder, which need not exist.
PATH: Final = click.Path(path_type=Path)
#: A file that exists.
READABLE_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class Argument(click.Argument):
    """An argument with a help text.

    Args:
        names: As for `click.Argument`.
        help: Help text.
        attributes: Other arguments of `click.Argument`.
    """

    def __init__(self, names: list[str], *, help: str, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.text = f"{help}  [required]" if self.required else help


class Option(click.Option):
    """An option that the help shows under a heading.

    Args:
        names: As for `click.Option`.
        panel: The heading.
        attributes: Other arguments of `click.Option`.
    """

    def __init__(self, names: list[str], *, panel: str = _OPTIONS, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.panel = panel


class Command(click.Command):
    """A command whose help lists its parameters by heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, and the options by heading."""
        panels: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: [], _OPTIONS: []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, Argument):
                panels[_ARGUMENTS].append((parameter.human_readable_name, parameter.text))
            elif (record := parameter.get_help_record(ctx)) is not None:
                panel = parameter.panel if isinstance(parameter, Option) else _OPTIONS
                panels.setdefault(panel, []).append(record)
        for panel, records in panels.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)


def command(
    name: str | None = None, *, epilog: str | None = None
) -> Callable[[Callable[..., None]], Command]:
    """Make a function a command; the first line of its docstring is the short help."""
    return click.command(name, cls=Command, epilog=epilog)


def argument(name: str, **attributes: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an argument to a command; takes `help` and the arguments of `click.argument`."""
    return click.argument(name, cls=Argument, **attributes)


# ---- options that commands share -----------------------------------------------------------------


def shared_option(*names: str, **attributes: Any) -> dict[str, Any]:
    """Return the metadata of a dataclass field that is an option.

    Args:
        names: Names of the option.
        attributes: Arguments of `click.Option`; the default is that of the field.
    """
    return {"names": names, "attributes": attributes}


def with_options_of(
    kind: type[OptionsT], panel: str = _OPTIONS
) -> Callable[[Callable[Concatenate[OptionsT, P], None]], Callable[..., None]]:
    """Add an option for each field of a dataclass to a command, and pass them as one object.

    The command takes the object as its first argument. Use it as the innermost decorator, so that
    the command's own options come before the shared ones.

    Args:
        kind: A dataclass whose fields have the metadata of `shared_option`.
        panel: The heading of these options.
    """

    def decorate(function: Callable[Concatenate[OptionsT, P], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            values = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
            function(values, **given)  # type: ignore[call-arg]

        added: Callable[..., None] = run
        for each in reversed(fields(kind)):  # click adds options in reverse order
            names, attributes = each.metadata["names"], each.metadata["attributes"]
            add = click.option(
                *names, each.name, cls=Option, panel=panel, default=each.default, **attributes
            )
            added = add(added)
        return added

    return decorate
