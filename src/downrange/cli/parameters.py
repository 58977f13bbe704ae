"""Arguments and options with more to tell than click's own, and commands that show it.

An argument has a help text; an option may stand under a heading of its own. Options that several
commands share are the fields of a dataclass, so each is written once; `collecting` gives them to a
command as one object.
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

    KindT = TypeVar("KindT", bound=DataclassInstance)
    P = ParamSpec("P")

_ARGUMENTS: Final = "Arguments"
_OPTIONS: Final = "Options"
#: A file or folder, which need not be there yet.
PATH: Final = click.Path(path_type=Path)
#: A file that can be read.
READABLE_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class Argument(click.Argument):
    """An argument with a help text.

    Args:
        names: As click takes them.
        help: What it is.
        attributes: What else click takes.
    """

    def __init__(self, names: list[str], *, help: str, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.text = f"{help}  [required]" if self.required else help


class Option(click.Option):
    """An option under a heading.

    Args:
        names: As click takes them.
        panel: The heading.
        attributes: What else click takes.
    """

    def __init__(self, names: list[str], *, panel: str = _OPTIONS, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.panel = panel


class Command(click.Command):
    """A command whose help has a list for each heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, and the options by their headings."""
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
    """Make a function a command; its first line is the short help."""
    return click.command(name, cls=Command, epilog=epilog)


def argument(name: str, **attributes: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an argument; it takes a `help`, and what click takes."""
    return click.argument(name, cls=Argument, **attributes)


# ---- options that commands share -----------------------------------------------------------------


def shared(*names: str, **attributes: Any) -> dict[str, Any]:
    """Return the metadata of a dataclass field that is an option.

    Args:
        names: Those of the option.
        attributes: What click takes besides; the default is that of the field.
    """
    return {"names": names, "attributes": attributes}


def collecting(
    kind: type[KindT], panel: str = _OPTIONS
) -> Callable[[Callable[Concatenate[KindT, P], None]], Callable[..., None]]:
    """Give a command the options that are the fields of a class, as one object of it.

    The command takes the object first. Stands right above the function, so that the options of its
    own come before the shared ones.

    Args:
        kind: A dataclass with fields that are `shared` options.
        panel: The heading of these options.
    """

    def decorate(function: Callable[Concatenate[KindT, P], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            collected = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
            function(collected, **given)  # type: ignore[call-arg]

        added: Callable[..., None] = run
        for each in reversed(fields(kind)):  # click takes the last one first
            names, attributes = each.metadata["names"], each.metadata["attributes"]
            add = click.option(
                *names, each.name, cls=Option, panel=panel, default=each.default, **attributes
            )
            added = add(added)
        return added

    return decorate
