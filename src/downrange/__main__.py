"""The `downrange` command. Imports no extra before it has checked that the extra is installed."""

from __future__ import annotations

import sys

from downrange.errors import MissingExtra
from downrange.extras import check


def main() -> None:
    """Run the command line; if its extra is missing, print what to install and exit with 2."""
    try:
        check("the command line", "cli")
    except MissingExtra as error:
        sys.exit(_report(error))
    from downrange.cli import app  # after the check: it imports the extra
    from downrange.cli.standard_streams import run

    run(app)


def _report(error: MissingExtra) -> int:
    print(f"downrange: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
