"""The whole demo, as `make demo` runs it, but shorter."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from downrange.demo.spark_jobs import read_lake
from downrange.demo.workload import AUTO_CREATED, SERVICES

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE = 900.0


def test_demo_sends_lands_reports_and_agrees(java: None, tmp_path: Path) -> None:
    output = tmp_path / "demo"
    command = [sys.executable, "-m", "downrange", "demo", "--seconds", "3", "--output", str(output)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "The numbers agree" in ended.stdout
    assert (output / "report.html").as_uri() in ended.stdout
    assert ended.stderr == "", "Java and its workers must write to a log"

    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    assert summary["agrees"] is True
    assert summary["left_out"] is None
    topics: dict[str, dict[str, Any]] = {one["topic"]: one for one in summary["topics"]}
    assert topics.keys() == {service.topic for service in SERVICES}
    for topic in topics.values():
        assert topic["landed"] == topic["stored"] > 0
        assert topic["problems"] == []
    landed = read_lake(output / "lake", topics)
    assert {topic: len(found.ids) for topic, found in landed.items()} == {
        topic: about["landed"] for topic, about in topics.items()
    }
    assert len(topics[AUTO_CREATED]["brokers"]) == 1
    assert topics["payments"]["sent"]["withdrawn"] > 0
    assert sum(topic["sent"]["retried"] for topic in topics.values()) > 0
    _check_report(output, summary, topics)


def _check_report(output: Path, summary: dict[str, Any], topics: dict[str, dict[str, Any]]) -> None:
    stored = ("acknowledged", "withdrawn", "unknown")
    sent = sum(topic["sent"][name] for topic in topics.values() for name in stored)
    assert 0.9 * sent <= summary["traces"]["sends"] <= sent  # a few traces may be lost
    assert summary["traces"]["deliveries"] >= sum(one["handled"] for one in summary["groups"])
    assert summary["traces"]["unconsumed"] > 0
    page = (output / "report.html").read_text()
    for topic in topics:
        assert topic in page
    assert 'src="http' not in page
    assert (output / "trace" / "sends").is_dir()
