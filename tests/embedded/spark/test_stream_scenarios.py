"""Random runs of a stream on the embedded cluster; see `stream_scenario`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.embedded.spark.stream_scenario import run_scenario

if TYPE_CHECKING:
    from downrange.embedded import Cluster
    from tests.embedded.spark.stage import Stage


@pytest.mark.parametrize("seed", range(12))
def test_each_message_arrives_once(stage: Stage, cluster: Cluster, seed: int) -> None:
    run_scenario(stage, cluster, seed)
