"""The command `opentelemetry-instrument` of the package `opentelemetry-distro`, as in the guide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from downrange.embedded import Cluster
from tests.support.waiting import WAIT_SCALE, WAIT_TIMEOUT

#: A program that does not know of OpenTelemetry.
PROGRAM = """
import sys
import downrange as mq

with mq.Producer(sys.argv[1], group="shop") as producer:
    producer.send(mq.Message("spans", b"1"))
"""
SETTINGS = {
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}


def test_a_program_that_is_not_changed_has_spans(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = Path(sys.executable).parent / "opentelemetry-instrument"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("OTEL_")
    }
    with Cluster() as cluster:
        ended = subprocess.run(
            [command, sys.executable, str(program), cluster.name_server],
            env=environment | SETTINGS,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_TIMEOUT * WAIT_SCALE,
        )
    assert ended.returncode == 0, ended.stderr
    span = json.loads(ended.stdout)
    assert (span["name"], span["kind"]) == ("send spans", "SpanKind.PRODUCER")
    assert span["attributes"]["messaging.system"] == "rocketmq"
