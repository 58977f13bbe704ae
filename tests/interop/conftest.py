"""Fixtures of the interop tests: our cluster and one JVM per release, shared by all tests."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from tests.apache.artifacts import VERSIONS
from tests.interop.scene import Scene
from tests.support.options import SHORT_TIMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import JavaClient


@pytest.fixture(scope="session")
def ours() -> Iterator[Cluster]:
    """Give our shared cluster; do not stop it, and use unique names."""
    # A message is not set aside while a slow machine starts the producer that is asked about it.
    options = dataclasses.replace(SHORT_TIMES, transaction_checks_max=1000)
    with Cluster(broker=options) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=VERSIONS, ids=[f"java-{version}" for version in VERSIONS])
def java(request: pytest.FixtureRequest, apache_versions: ApacheVersions) -> JavaClient:
    """Give the shared Java client, once per release."""
    return apache_versions.java_client(request.param)


@pytest.fixture(scope="session")
def stopper(ours: Cluster, apache_versions: ApacheVersions) -> Iterator[ThreadPoolExecutor]:
    """Give the threads that stop clients; they finish before the servers and the JVMs end."""
    with ThreadPoolExecutor(4, thread_name_prefix="stopper") as pool:
        yield pool


@pytest.fixture
def scene(
    java: JavaClient, ours: Cluster, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> Iterator[Scene]:
    """Give Java clients on the shared cluster."""
    scene = Scene(java, ours, unique_name, stopper)
    yield scene
    scene.close()
