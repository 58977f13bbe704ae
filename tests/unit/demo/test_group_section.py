"""The section about consumer groups in the report of the demo."""

from __future__ import annotations

import re
from pathlib import Path

import downrange.pipelines.trace
from downrange.demo.consumers import ConsumerPlan, ConsumerProgress
from downrange.demo.group_section import add_groups


def test_section_stands_in_the_page_of_reports(tmp_path: Path) -> None:
    template = Path(downrange.pipelines.trace.__file__).with_name("page.html")
    page = tmp_path / "report.html"
    page.write_text(template.read_text())
    group = ConsumerProgress(
        ConsumerPlan("packing", "orders", absences=((0.0, 0.1),)),
        handled={"a", "b", "c"},
        dead={"d"},
        retried=2,
        rebalances=5,
    )
    add_groups(page, [group])
    text = page.read_text()
    [section] = re.findall(r'<section id="groups".*?</section>', text)
    assert re.findall(r"<td>([^<]+)</td>", section) == ["2", "3", "2", "1", "0", "5"]
    assert "packing" in section
    assert text.count('href="#groups"') == 1
    assert text.index('id="consumptions"') < text.index('id="groups"')
    assert text.index('id="groups"') < text.index('id="unconsumed"')
