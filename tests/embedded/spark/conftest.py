"""One cluster of two brokers for the tests of a module; faults end with the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.embedded.spark.stage import Stage, staged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.embedded import Cluster


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Stage, Cluster]]:
    """Yield a cluster and its stage."""
    with staged(brokers=2) as found:
        yield found


@pytest.fixture
def stage(both: tuple[Stage, Cluster]) -> Stage:
    """Yield the stage of the cluster."""
    return both[0]


@pytest.fixture
def cluster(both: tuple[Stage, Cluster]) -> Iterator[Cluster]:
    """Yield the cluster itself, to inject faults."""
    yield both[1]
    for code in range(400):
        both[1].intercept(code, None)
