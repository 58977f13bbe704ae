"""The `downrange` command: a door that needs no extra itself, to say which one is missing."""

from __future__ import annotations

import sys

from downrange.errors import MissingExtra
from downrange.extras import require


def main() -> int:
    """Run the command line, or say what to install for it."""
    try:
        require("the command line", "cli")
    except MissingExtra as error:
        print(f"downrange: {error}", file=sys.stderr)
        return 2
    from downrange.cli import app  # after the check: it imports the extra

    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
