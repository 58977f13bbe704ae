"""Exit codes of the commands, and errors on standard error.

  0  success
  1  a server refused a request or failed, or some messages could not be sent
  2  wrong option or argument, or an extra is missing; no request was sent
  3  no server could be reached, or none replied in time
  4  not permitted: access key, its rights, or the topic's permission
  5  no such topic, group, message or route
130  ended by Ctrl-C
141  the reader of standard output is gone, as after `| head` (see `standard_streams`)
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from downrange import errors
from downrange.errors import (
    GroupNotFound,
    MissingExtra,
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

#: The end of the help of every command that connects to servers.
EPILOG: Final = (
    "Exit codes: 0 success, 1 refused or failed, 2 wrong use, 3 no server reached or no reply in "
    "time, 4 not permitted, 5 not found, 130 ended by Ctrl-C."
)


def exit_code_of(error: RocketMQError) -> int:
    """Return the exit code for an error; that of a pipeline's is that of the error in Spark."""
    inner = getattr(errors, getattr(error, "error_name", ""), None)
    kind = inner if isinstance(inner, type) else type(error)
    if issubclass(kind, OptionError | MissingExtra):
        return WRONG_USE
    if issubclass(kind, PermissionError):
        return NOT_PERMITTED
    if issubclass(kind, RouteNotFound | TopicNotFound | GroupNotFound | NotFound):
        return NOT_FOUND
    if issubclass(kind, NoNameServer | ConnectionError | TimeoutError):
        return UNREACHABLE
    return FAILED


#: Names in the API that error texts mention -> the options of the command line.
_OPTION_NAMES: Final = {
    "TLS(ca=…)": "--ca",
    "TLS(certificate=…)": "--certificate",
    "TLS(check_host=False)": "--no-check-host",
    "leave tls out": "leave --tls out",
    "timeout=": "--timeout",
}


def use_option_names(text: str) -> str:
    """Replace the API names in an error text with the options of the command line."""
    for api_name, option in _OPTION_NAMES.items():
        text = text.replace(api_name, option)
    return text


def print_error(text: object) -> None:
    """Print an error to standard error."""
    click.echo(f"downrange: {use_option_names(str(text))}", err=True)


@contextmanager
def exit_on_error() -> Generator[None]:
    """Print an error without a traceback, and exit with its code."""
    try:
        yield
    except OptionError as error:
        raise click.BadParameter(use_option_names(str(error))) from error
    except RocketMQError as error:
        print_error(error)
        raise click.exceptions.Exit(exit_code_of(error)) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
