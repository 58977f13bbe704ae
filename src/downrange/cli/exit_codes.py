"""How a command ends: the exit code of each kind of error, and its text on standard error.

  0  all went well
  1  a server refused or failed, or a part of the messages could not be sent
  2  a wrong option or argument; nothing was asked of any server
  3  no server could be reached, or none answered in time
  4  not permitted: access key, its rights, or the topic's permission
  5  no such topic, message or route
130  ended by Ctrl-C
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from downrange.errors import (
    NoNameServer,
    NotFound,
    OptionError,
    RocketMQError,
    RouteNotFound,
    TopicNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Generator

FAILED: Final = 1
WRONG_USE: Final = 2
UNREACHABLE: Final = 3
NOT_PERMITTED: Final = 4
NOT_FOUND: Final = 5
INTERRUPTED: Final = 130

#: What every command that talks to servers says at the end of its help.
EPILOG: Final = (
    "Exit codes: 0 fine, 1 refused or failed, 2 wrong use, 3 no server reached or none answered in "
    "time, 4 not permitted, 5 not found, 130 ended by Ctrl-C."
)


def exit_code_of(error: RocketMQError) -> int:
    """Return the exit code that says what kind of error it is."""
    if isinstance(error, OptionError):
        return WRONG_USE
    if isinstance(error, PermissionError):
        return NOT_PERMITTED
    if isinstance(error, RouteNotFound | TopicNotFound | NotFound):
        return NOT_FOUND
    if isinstance(error, NoNameServer | ConnectionError | TimeoutError):
        return UNREACHABLE
    return FAILED


#: What errors tell a programmer to write, and what one types here instead.
_TYPED: Final = {
    "TLS(ca=…)": "--ca",
    "TLS(certificate=…)": "--certificate",
    "TLS(check_host=False)": "--no-check-host",
    "leave tls out": "leave --tls out",
    "timeout=": "--timeout",
}


def in_options(text: str) -> str:
    """Return an error's text with the options of the command line in it."""
    for written, typed in _TYPED.items():
        text = text.replace(written, typed)
    return text


def complain(text: object) -> None:
    """Say on standard error what is wrong."""
    click.echo(f"downrange: {in_options(str(text))}", err=True)


@contextmanager
def telling_errors() -> Generator[None]:
    """Say on standard error what is wrong, without a traceback, and exit with the code for it."""
    try:
        yield
    except OptionError as error:
        raise click.BadParameter(in_options(str(error))) from error
    except RocketMQError as error:
        complain(error)
        raise click.exceptions.Exit(exit_code_of(error)) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
