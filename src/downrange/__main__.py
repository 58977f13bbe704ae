"""The `downrange` command: a door that needs no extra itself, to say which one is missing."""

from __future__ import annotations

import sys

from downrange.errors import MissingExtra
from downrange.extras import check


def main() -> None:
    """Run the command line, or say what to install for it and exit with 2."""
    try:
        check("the command line", "cli")
    except MissingExtra as error:
        sys.exit(_complain(error))
    from downrange.cli import app  # after the check: it imports the extra

    app()


def _complain(error: MissingExtra) -> int:
    print(f"downrange: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
