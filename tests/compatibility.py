"""Generates the list of request codes in `docs/compatibility.md` from the handler tables.

`python -m tests.compatibility` writes it; a unit test fails when the page is out of date. Every
code of the Java classes is in exactly one list: served, sent by our broker, skipped, or not yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from downrange.server.broker.broker import HANDLERS as BROKER_HANDLERS
from downrange.server.nameserver.handlers import HANDLERS as NAME_SERVER_HANDLERS
from downrange.wire.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE: Final = Path(__file__).parents[1] / "docs" / "compatibility.md"
BEGIN: Final = "<!-- request codes: made by `python -m tests.compatibility` -->"
END: Final = "<!-- end of request codes -->"

#: Requests that servers send to clients; a server that receives one replies "not supported".
TO_CLIENTS: Final = (39, 40, 220, 221, 326)

#: Reason for skipping -> codes. Brokers of both releases were asked which codes they serve.
SKIPPED: Final[dict[str, tuple[int, ...]]] = {
    "not served by the brokers of either release": (
        *(13, 22, 23, 27, 47, 209, 210, 211, 212, 213, 214, 302),
        *(902, 903, 200072, 200073),
    ),
    "no longer served by 5.x; accounts are in a file that the operator writes": (
        50,
        51,
        52,
        53,
        54,
    ),
    "filter servers do not exist in 5.x": (301,),
    "served by the controller, which is a separate process": (
        *(1001, 1002, 1003, 1004, 1005, 1006, 1009, 1010, 1011, 1012, 1013),
    ),
    "queues of our broker cannot move; the reply says so and what to do (static topics)": (513,),
    "our broker has no replicas": (60, 905, 906, 907, 908, 1007, 1008),
    "our store has no RocksDB, no cold data and no second timer": (
        *(354, 355, 2001, 2002, 2003, 2004, 5001),
    ),
}

#: Missing feature -> codes.
NOT_YET: Final[dict[str, tuple[int, ...]]] = {
    "lite topics": (200070, 200071, *range(200074, 200080)),
    "users and rules of the 5.x access control (ACL 2.0)": tuple(range(3001, 3011)),
}


def section() -> str:
    """Return the generated part of the page, with its two marks."""
    lines = [BEGIN, ""]
    lines += _table("Served by our name server", NAME_SERVER_HANDLERS)
    lines += _table("Served by our broker", BROKER_HANDLERS)
    lines += _table("Sent to clients by our broker", TO_CLIENTS)
    lines += _reasons("Skipped on purpose: the reply is code 3", SKIPPED)
    lines += _reasons("Not supported yet: the reply is code 3", NOT_YET)
    return "\n".join([*lines, END])


def unplaced() -> set[int]:
    """Return the codes that are in no list, or in more than one."""
    listed = [
        *(set(NAME_SERVER_HANDLERS) | set(BROKER_HANDLERS)),
        *TO_CLIENTS,
        *(code for codes in (*SKIPPED.values(), *NOT_YET.values()) for code in codes),
    ]
    known = {int(code) for code in RequestCode}
    return {code for code in known | set(listed) if listed.count(code) != 1 or code not in known}


def page_with_section() -> str:
    """Return the whole page with a current list."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + section() + rest.partition(END)[2]


def _table(title: str, codes: Iterable[int]) -> list[str]:
    rows = [f"| {int(code)} | `{RequestCode(code).name}` |" for code in sorted(map(int, codes))]
    return [f"### {title}", "", "| Code | Java's name |", "|---|---|", *rows, ""]


def _reasons(title: str, reasons: dict[str, tuple[int, ...]]) -> list[str]:
    rows = [
        f"| {code} | `{RequestCode(code).name}` | {reason} |"
        for reason, codes in reasons.items()
        for code in codes
    ]
    return [f"### {title}", "", "| Code | Java's name | Why |", "|---|---|---|", *rows, ""]


if __name__ == "__main__":
    PAGE.write_text(page_with_section(), encoding="utf-8")
