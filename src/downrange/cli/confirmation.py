"""`--yes`, and the question that commands ask without it."""

from __future__ import annotations

import sys
from typing import Final

import click

YES: Final = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str) -> None:
    """Ask a question; return if the answer is yes.

    Raises:
        click.Abort: The answer is no, or Ctrl-C.
        click.UsageError: Standard input is not a terminal and has no answer.
    """
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as abort:
        # click raises it for the end of the input, too.
        if not isinstance(abort.__context__, EOFError) or sys.stdin.isatty():
            raise
        click.echo(err=True)  # ends the line of the question
        raise click.UsageError(
            "the question has no answer: standard input is empty and not a terminal; give --yes"
        ) from None
