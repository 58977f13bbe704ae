"""The Grafana dashboard and the alert rules use metrics that exist, and Prometheus accepts them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downrange.server.metrics import broker_metrics, name_server_metrics
from tests.support.promtool import find_promtool, promtool_hint

if TYPE_CHECKING:
    from downrange.server.metrics.exposition import Family

FOLDER = Path(__file__).parents[4] / "docs" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "downrange.json").read_text(encoding="utf-8"))
yaml: Any = import_module("yaml")  # it has no types
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
FAMILIES: list[Family[Any]] = [*broker_metrics.FAMILIES, *name_server_metrics.FAMILIES]
#: Metrics of the page that no family has, and one of Prometheus itself.
OTHERS = {
    *("process_cpu_seconds_total", "process_resident_memory_bytes", "up"),
    "downrange_metrics_dropped_series",
}


def _known() -> set[str]:
    names = set(OTHERS)
    for family in FAMILIES:
        if family.kind == "histogram":
            names |= {f"{family.name}{suffix}" for suffix in ("_bucket", "_count", "_sum")}
        else:
            names.add(family.name)
    return names


def _expressions() -> list[str]:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    found += [each["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    found += [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    return found


@pytest.mark.parametrize("expression", _expressions())
def test_expressions_use_metrics_that_exist(expression: str) -> None:
    used = set(
        re.findall(r"\b(?:rocketmq|downrange|process)_[a-z_0-9]+(?=[{\[)\s,]|$)", expression)
    )
    assert used or "up{" in expression
    assert used <= _known()


def test_panels_have_places_of_their_own_and_a_data_source() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


def test_every_rule_has_a_summary_a_next_step_and_a_severity() -> None:
    names = set()
    for rule in RULES["groups"][0]["rules"]:
        names.add(rule["alert"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}
    assert len(names) == len(RULES["groups"][0]["rules"])


def test_names_and_texts_of_families_are_those_of_prometheus() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"(rocketmq|downrange)_[a-z0-9_]+", family.name)
        assert family.text.endswith(".")
        assert "\n" not in family.text
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name


@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")],
    ids=["check", "test"],
)
def test_promtool_accepts_the_rules(arguments: tuple[str, ...]) -> None:
    promtool = find_promtool()
    if promtool is None:
        if os.environ.get("DOWNRANGE_REQUIRE_PROMTOOL") == "1":
            pytest.fail(f"promtool is required here: {promtool_hint()}", pytrace=False)
        pytest.skip(promtool_hint())
    ended = subprocess.run(
        [promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
