"""Completion in a shell: commands, options and the topics of the cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from downrange import Admin, Client
from downrange.embedded import Cluster
from tests.support.options import PATIENT_CLIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE = 60.0
#: Whoever types waits two seconds for a completion; on a busy machine the cluster may take longer.
RUN = f"""
import sys
from downrange.__main__ import main
from downrange.cli import completion
completion._TIMEOUT = {DEADLINE}
sys.argv = ['downrange']
main()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        with (
            Client(running.name_server, options=PATIENT_CLIENT) as client,
            Admin(client) as admin,
        ):
            for name in ("orders", "orders-eu", "payments"):
                admin.create_topic(name, queues=1)
            for name in ("billing", "billing-eu", "audit"):
                admin.create_group(name)
        yield running


def _complete(line: str, **variables: str) -> tuple[list[str], str]:
    """Return what bash would offer at the end of a line, and the errors."""
    environment = {
        **os.environ,
        "_DOWNRANGE_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        **variables,
    }
    ended = subprocess.run(
        [sys.executable, "-c", RUN],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        env=environment,
    )
    return [each.removeprefix("plain,") for each in ended.stdout.split()], ended.stderr


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("downrange tail ord", ["orders", "orders-eu"]),
        ("downrange send pay", ["payments"]),
        ("downrange pull orders-", ["orders-eu"]),
        ("downrange topic show ord", ["orders", "orders-eu"]),
        ("downrange message query p", ["payments"]),
        ("downrange doctor --topic p", ["payments"]),
        ("downrange pipeline lake orders p", ["payments"]),
        ("downrange pipeline load x.csv --topic p", ["payments"]),
        ("downrange group lag bill", ["billing", "billing-eu"]),
        ("downrange group reset audit pay", ["payments"]),
        ("downrange dlq resend a", ["audit"]),
        ("downrange broker wi", ["wipe-writes"]),
        ("downrange ta", ["tail"]),
        ("downrange tail orders --no-f", ["--no-follow"]),
    ],
)
def test_topics_commands_and_options_are_completed(
    cluster: Cluster, line: str, names: list[str]
) -> None:
    assert _complete(line, NAMESRV_ADDR=cluster.name_server) == (names, "")


def test_topics_are_those_of_the_name_server_on_the_line(cluster: Cluster) -> None:
    line = f"downrange tail -n {cluster.name_server} pay"
    assert _complete(line, NAMESRV_ADDR="127.0.0.1:1") == (["payments"], "")
    line = f"downrange pipeline lake -n {cluster.name_server} pay"
    assert _complete(line, NAMESRV_ADDR="127.0.0.1:1") == (["payments"], "")


def test_without_a_cluster_nothing_is_offered_and_nothing_printed() -> None:
    assert _complete("downrange tail ord", NAMESRV_ADDR="127.0.0.1:1") == ([], "")
    assert _complete("downrange tail ord", DOWNRANGE_ACCESS_KEY="half an account") == ([], "")
