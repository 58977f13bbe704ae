"""Fixtures of the interop tests: one cluster of ours and one JVM per release for the whole run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from downrange.options import BrokerOptions
from tests.apache.artifacts import VERSIONS
from tests.interop.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import JavaClient

OPTIONS = BrokerOptions(
    delay_levels="1s 2s 3s 4s 5s",
    transaction_timeout=0.5,
    transaction_check_interval=0.5,
    is_trace_topic_created=True,
)
"""Short times, so that nobody waits long."""


@pytest.fixture(scope="session")
def ours() -> Iterator[Cluster]:
    """Give the shared cluster; leave it running, and use names of your own."""
    with Cluster(broker=OPTIONS) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=VERSIONS, ids=[f"java-{version}" for version in VERSIONS])
def java(request: pytest.FixtureRequest, apache_versions: ApacheVersions) -> JavaClient:
    """Give the shared Java client, once per release."""
    return apache_versions.java_client(request.param)


@pytest.fixture(scope="session")
def stopper(ours: Cluster, apache_versions: ApacheVersions) -> Iterator[ThreadPoolExecutor]:
    """Give the threads that stop clients; done before the servers and the JVMs end."""
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
