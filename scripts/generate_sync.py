"""Write the sync classes of the client from the asyncio ones: `client/_async/` to `client/_sync/`.

    python scripts/generate_sync.py            writes the files
    python scripts/generate_sync.py --check    exits with 1 when a file is not up to date

A sync class differs from its asyncio twin in words only: no `async`, no `await`, other names.
Code and docstrings go through the same replacements, in this order:

1. Markers, for lines that differ in more than a word. They stand in comments of the asyncio file:

       code  # sync: other code      the line is `other code` in the sync file
       # sync: code                  a line that only the sync file has
       code  # no sync               a line that the sync file does not have

2. `TEXTS`, passages of docstrings that differ, by file. Each must occur in its file.
3. `WORDS`, regular expressions for all files.
4. Ruff: imports are sorted, unused ones removed, the file is formatted.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CLIENT: Final = ROOT / "src" / "downrange" / "client"
HEADER: Final = "# Generated from client/_async/{} by scripts/generate_sync.py; do not edit.\n"

#: File -> passages of its docstrings: in `_async`, in `_sync`.
TEXTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "__init__.py": (
        (
            "for asyncio, written by hand; `_sync/` is generated from them.",
            "for threads, generated from `_async/`.",
        ),
    ),
    "client.py": (
        ("on this event loop", "in this thread"),
        ("of this event loop", "of this thread"),
    ),
    "push_consumer.py": (
        ("    async def bill(message", "    def bill(message"),
        (
            "A coroutine\n            function runs on the event loop, a plain one in a thread.",
            "It runs in\n            one of `concurrency` threads.",
        ),
        (
            "asked for. A task that was created\n        there may make it, too, before it awaits "
            "anything else: later the message counts as done.",
            "asked for, and give it to the\n        thread that handles the message: if that "
            "thread makes it, the message may be done by then.",
        ),
        (
            ", unless a block of it was made.\n\n        Before that the loop takes a turn: a task "
            "that was created for the message runs to its\n        `processing()`. If the caller "
            "is cancelled in this turn, the message is not done: its task\n        may have been "
            "cancelled, too, before it began.\n        ",
            ", unless a block of it was made.",
        ),
        ("give the block to the task", "give the block to the thread"),
    ),
    "transaction_producer.py": (
        ("Coroutine functions run on the event loop, others in a pool.", "Called in a pool."),
        ("Ctrl-C or a cancelled task", "Ctrl-C"),
    ),
}
#: What a pattern matches in `_async` files, and what replaces it in `_sync` files.
WORDS: Final[tuple[tuple[str, str], ...]] = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b(Abstract)?Async(Iterator|Generator|ContextManager)\b", r"\1\2"),
    (r"\b_async\b", "_sync"),
    (r"\bCoroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"\bAwaitable\[[^\]]*\] \| ", ""),
    (r"\b([Aa])n (`?)Async(?=[A-Z])", r"\1 \2"),
    (r"\bAsync(?=[A-Z])", ""),
    # The driver.
    (r"\bdrivers\.aio\b", "drivers.threads"),
    (r"\bAioDriver\b", "ThreadDriver"),
    (r"\bAioWorkers\b", "ThreadWorkers"),
    (r"in tasks of their own", "in threads of their own"),
    (r"tasks of one event loop", "threads"),
    # Threads that wait limit themselves; see `ProducerCore.send`.
    (r"\basync_rules\b", "waiting_rules"),
    (r", is_limited=True", ""),
    # A thread cannot call coroutine functions.
    (r"\bany_function\b", "plain_function"),
    (r"\bany_handler\b", "plain_handler"),
    (r"\bhandle_run_async\b", "handle_run"),
)
_REPLACED: Final = re.compile(r"^( *)\S.*?  # sync: (.*)$", re.MULTILINE)
_DROPPED: Final = re.compile(r"^.*  # no sync\n", re.MULTILINE)
_ADDED: Final = re.compile(r"^( *)# sync:(?: (.*))?$", re.MULTILINE)


def sync_text(name: str, text: str) -> str:
    """Return the sync twin of an asyncio file, before Ruff has formatted it.

    Raises:
        ValueError: A passage of `TEXTS` does not occur in the file.
    """
    text = _DROPPED.sub("", text)
    text = _ADDED.sub(lambda found: f"{found[1]}{found[2] or ''}".rstrip(), text)
    text = _REPLACED.sub(r"\1\2", text)
    for passage, other in TEXTS.get(name, ()):
        if passage not in text:
            raise ValueError(f"TEXTS: {passage!r} does not occur in _async/{name}")
        text = text.replace(passage, other)
    for pattern, other in WORDS:
        text = re.sub(pattern, other, text)
    return HEADER.format(name) + text


def _formatted(name: str, text: str) -> str:
    path = str(CLIENT / "_sync" / name)
    for command in (
        ["check", "--select", "I,F401", "--fix", "--quiet", "--stdin-filename", path, "-"],
        ["format", "--quiet", "--stdin-filename", path, "-"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command]
        result = subprocess.run(
            ruff, input=text, capture_output=True, text=True, check=False, cwd=ROOT
        )
        if not result.stdout:
            raise SystemExit(f"{name}: ruff {command[0]} failed\n{result.stderr}")
        text = result.stdout
    return text


def generated() -> dict[str, str]:
    """Return file name -> content of all sync files."""
    return {
        path.name: _formatted(path.name, sync_text(path.name, path.read_text()))
        for path in sorted((CLIENT / "_async").glob("*.py"))
    }


def problems(wanted: dict[str, str], folder: Path) -> list[str]:
    """Return what is wrong with the files in a folder."""
    present = {path.name: path.read_text() for path in folder.glob("*.py")}
    return [
        *(f"{name} is missing" for name in sorted(wanted.keys() - present.keys())),
        *(f"{name} has no file in _async/" for name in sorted(present.keys() - wanted.keys())),
        *(
            f"{name} is not up to date"
            for name in sorted(wanted.keys() & present.keys())
            if wanted[name] != present[name]
        ),
    ]


def write(wanted: dict[str, str], folder: Path) -> list[str]:
    """Make a folder hold these files and no others; return the names of those that changed."""
    changed: list[str] = []
    for path in folder.glob("*.py"):
        if path.name not in wanted:
            path.unlink()
            changed.append(path.name)
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(name)
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description="Write client/_sync/ from client/_async/.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    is_check: bool = parser.parse_args(arguments).check
    wanted, folder = generated(), CLIENT / "_sync"
    if not is_check:
        for name in write(wanted, folder):
            print(f"client/_sync/{name} written")
        return 0
    found = problems(wanted, folder)
    for problem in found:
        print(f"client/_sync/{problem}")
    if found:
        print("run `make fix` (or python scripts/generate_sync.py), and commit the result")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
