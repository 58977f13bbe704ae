"""Runs the Python blocks of a documentation page, one after the other.

    python -m tests.examples.pages docs/guides/sending.md

All blocks of a page share their names, and a cluster that replaces 127.0.0.1:9876; clients that a
block leaves open are closed. A block after a line `<!-- fragment -->` is not run. A block after
`<!-- spark -->` is run by tests/spark/test_guides.py, which has a Spark session.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

from downrange import Admin, Client, Cluster, Producer, PullConsumer

ADDRESS = "127.0.0.1:9876"
_BLOCK = re.compile(
    r"(?:<!-- (fragment|spark) -->\n+)?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE
)


def blocks_of(page: Path, kind: str | None = None) -> list[tuple[int, str]]:
    """Return the blocks of a kind, each with the number of lines before it.

    Args:
        page: The page.
        kind: The word in the comment before a block; None for blocks without a comment.
    """
    text = page.read_text()
    return [
        (text.count("\n", 0, match.start(2)), match[2])
        for match in _BLOCK.finditer(text)
        if match[1] == kind
    ]


def run(page: Path) -> None:
    """Run the blocks of a page."""
    module = sys.modules["page"] = ModuleType("page")
    names = vars(module)
    with Cluster() as cluster:
        for line, text in blocks_of(page):
            padded = "\n" * line + text.replace(ADDRESS, cluster.name_server)
            code = compile(padded, str(page), "exec", dont_inherit=True)
            exec(code, names)  # padded, so that a traceback names the line of the page
        for value in list(names.values()):
            if isinstance(value, Producer | PullConsumer | Admin | Client):
                value.close()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
