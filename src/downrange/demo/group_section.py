"""The section of the report about the consumer groups: what traces do not contain.

Traces have each delivery, so the report counts retries itself. Dead letters and the division of
queues are known to the groups only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.pipelines.trace import formats
from downrange.pipelines.trace.report import write_page

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from downrange.demo.consumers import ConsumerProgress

#: The section, and its link, stand before these parts of the page.
NEXT_SECTION: Final = '<section id="unconsumed"'
NEXT_LINK: Final = '<a href="#unconsumed"'
_NOTE: Final = (
    "Counted by the groups themselves. A message that failed was delivered again by the broker; a "
    "dead letter is in the topic %DLQ%group. A rebalance is a change of the queues of a member."
)
_HEADS: Final = (
    *("Group", "Topic", "Members", "Handled", "By a retry", "Dead letters", "Handled again"),
    "Rebalances",
)


def add_groups(page: Path, groups: Iterable[ConsumerProgress]) -> None:
    """Add the section to a report.

    Args:
        page: The report.
        groups: What each group did.
    """
    text = page.read_text(encoding="utf-8")
    assert NEXT_SECTION in text
    assert NEXT_LINK in text
    text = text.replace(NEXT_LINK, f'<a href="#groups">Groups</a>\n  {NEXT_LINK}', 1)
    write_page(text.replace(NEXT_SECTION, f"{_section(groups)}\n{NEXT_SECTION}", 1), page)


def _section(groups: Iterable[ConsumerProgress]) -> str:
    heads = "".join(
        f'<th scope="col"{_kind(index)}>{formats.safe(head)}</th>'
        for index, head in enumerate(_HEADS)
    )
    rows = "".join(f"<tr>{_row(one)}</tr>" for one in groups)
    return (
        '<section id="groups" aria-labelledby="h-groups"><h2 id="h-groups">Consumer groups</h2>'
        f"<p>{formats.safe(_NOTE)}</p>"
        f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _row(one: ConsumerProgress) -> str:
    numbers = (
        *(one.plan.members, len(one.handled), one.retried, len(one.dead)),
        *(one.repeated, one.rebalances),
    )
    cells = "".join(f"<td>{formats.count(number)}</td>" for number in numbers)
    return (
        f'<th scope="row" class="text">{formats.safe(one.plan.group)}</th>'
        f'<td class="text">{formats.safe(one.plan.topic)}</td>{cells}'
    )


def _kind(index: int) -> str:
    return ' class="text"' if index < 2 else ""
