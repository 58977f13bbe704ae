"""Runs the Python blocks of a documentation page, one after the other.

    python -m tests.examples.pages docs/guides/sending.md

All blocks of a page share their names, and a cluster that replaces 127.0.0.1:9876; clients that a
block leaves open are closed. A block after a line `<!-- fragment -->` is not run. A block after
`<!-- spark -->` is run by tests/spark/test_guides.py, which has a Spark session; those after
`<!-- pytest -->` are run by tests/examples/test_guides.py, with pytest, after all others.

    python -m tests.examples.pages docs/guides/spark.md spark 127.0.0.1:19876

This types the blocks of a kind into an interactive Python, line by line, with the given cluster.
"""

from __future__ import annotations

import code
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from downrange import Admin, Client, Cluster, Producer, PullConsumer, SimpleConsumer

ADDRESS = "127.0.0.1:9876"
_BLOCK = re.compile(
    r"(?:<!-- (fragment|spark|pytest) -->\n+)?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE
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
            if isinstance(value, Producer | PullConsumer | SimpleConsumer | Admin | Client):
                value.close()


class Typist(code.InteractiveConsole):
    """An interactive Python that ends at the first error."""

    def showtraceback(self) -> None:
        """Print the error and end."""
        super().showtraceback()
        raise SystemExit(1)

    def showsyntaxerror(self, *given: Any, **more: Any) -> None:
        """Print the error and end."""
        super().showsyntaxerror(*given, **more)
        raise SystemExit(1)


def type_blocks(page: Path, kind: str, address: str) -> None:
    """Type the blocks of a page, with nothing prepared but the cluster."""
    typist = Typist({"__name__": "__main__"})
    for _, text in blocks_of(page, kind):
        is_open = False
        for line in [*text.replace(ADDRESS, address).splitlines(), ""]:
            is_open = typist.push(line)
        if is_open:
            raise SyntaxError(f"a block of {page} is not complete:\n{text}")


#: Where code names a topic, in Python, Java, TOML and commands.
_TOPICS = re.compile(
    r"""(?:Message|assign|create_topic|query_messages|view_message|topic_stats|convert_and_\w+)
        \(\s*"(?P<call>[^":]+)
    | "(?:subscribe|topic)",\ *"(?P<option>[^"]+)
    | \btopics?\ *=\ *[(\[{]?\ *(?P<listed>"[^)\]}]+|\w+\ =[^}]+)
    | downrange\ (?:send|tail|pull|topic\ (?!list)\w+|message\ \w+)\ (?P<command>[\w%-]+)
    | pipeline\ (?:lake|mirror|replay)\ (?P<piped>[\w -]+?)(?=\ --)
    | --(?:target-)?topic\ (?P<flag>[\w-]+)
    """,
    re.VERBOSE,
)
_FENCED = re.compile(r"^ *```\w+\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def topics_of(page: Path) -> set[str]:
    """Return the topics in the code of a page, without those of the system."""
    found: set[str] = set()
    for block in _FENCED.findall(page.read_text()):
        for match in _TOPICS.finditer(block):
            kind, text = match.lastgroup, match[match.lastgroup or 0]
            if kind == "listed":
                found |= set(re.findall(r'"([^"|]+)"', text) if "=" not in text else ())
                found |= set(re.findall(r"([\w-]+) =", text))
            else:
                found |= set(text.split())
    return {topic for topic in found if not topic.startswith("RMQ_SYS")}


if __name__ == "__main__":
    if len(sys.argv) == 2:
        run(Path(sys.argv[1]))
    else:
        type_blocks(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
