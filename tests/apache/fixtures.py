"""Pytest fixtures of the test bed; a plugin module.

Load it with `pytest_plugins = ["tests.apache.fixtures"]`. A plain cluster and a Java client are
started at most once per release and test run, when the first test needs them, and then shared. A
test on shared servers takes its names from `unique_name` and does not stop the servers. A test that
stops servers or needs other options uses `apache_alone` or starts an `ApacheCluster` itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Generator, Iterator
from typing import NoReturn

import pytest

from tests.apache.artifacts import VERSIONS, ApacheUnavailable
from tests.apache.cluster import ApacheCluster
from tests.apache.java_client import JavaClient
from tests.apache.security import Account, Accounts

FIXTURES = frozenset(
    {
        "apache",
        "apache_alone",
        "apache_versions",
        "apache_acl",
        "apache_tls",
        "apache_two_brokers",
        "java_client",
    }
)
"""A test that uses one of these gets the marker `apache`."""

ACCOUNTS = Accounts(
    admin=Account("downrange-admin", "admin-secret", is_admin=True),
    others=(
        Account(
            "downrange-user",
            "user-secret",
            topics={"OpenTopic": "PUB|SUB", "WriteOnlyTopic": "PUB"},
            groups={"OpenGroup": "SUB"},
        ),
    ),
)
"""The accounts of `apache_acl`."""

UniqueName = Callable[[str], str]

_IDS = [f"apache-{version}" for version in VERSIONS]


class ApacheVersions:
    """The shared clusters and Java clients of a test run, started on first use."""

    def __init__(self) -> None:
        self._clusters: dict[str, ApacheCluster] = {}
        self._java_clients: dict[str, JavaClient] = {}
        # A failed download is not repeated for every test.
        self._unavailable: dict[str, ApacheUnavailable] = {}

    def cluster(self, version: str) -> ApacheCluster:
        """Return the shared cluster of a release; skip the test if it cannot run here."""
        if version not in self._clusters:
            if known := self._unavailable.get(version):
                skip_or_fail(known)
            try:
                cluster = ApacheCluster(version)
            except ApacheUnavailable as error:
                self._unavailable[version] = error
                skip_or_fail(error)
            cluster.start()
            self._clusters[version] = cluster
        return self._clusters[version]

    def java_client(self, version: str) -> JavaClient:
        """Return the shared Java client of a release; skip the test if it cannot run here."""
        if version not in self._java_clients:
            try:
                client = JavaClient(version)
                client.start()
            except ApacheUnavailable as error:
                skip_or_fail(error)
            self._java_clients[version] = client
        return self._java_clients[version]

    def clusters(self) -> list[ApacheCluster]:
        """Return the clusters that were started."""
        return list(self._clusters.values())

    def close(self) -> None:
        """Stop all Java clients and clusters."""
        for client in self._java_clients.values():
            client.close()
        for cluster in self._clusters.values():
            cluster.close()


@contextlib.contextmanager
def cluster_or_skip(make: Callable[[], ApacheCluster]) -> Generator[ApacheCluster]:
    """Start the cluster that `make` returns; skip the test when it cannot run here."""
    try:
        cluster = make()
    except ApacheUnavailable as error:
        skip_or_fail(error)
    with cluster:
        yield cluster


def skip_or_fail(error: ApacheUnavailable) -> NoReturn:
    """Skip the test, or fail it where the Apache servers are required."""
    if os.environ.get("DOWNRANGE_REQUIRE_APACHE") == "1":
        pytest.fail(f"Apache RocketMQ is required here: {error.reason}", pytrace=False)
    pytest.skip(f"Apache RocketMQ is not available: {error.reason}")


@pytest.fixture(scope="session")
def apache_versions() -> Iterator[ApacheVersions]:
    """Give access to the shared cluster and Java client of any release."""
    versions = ApacheVersions()
    try:
        yield versions
    finally:
        versions.close()


@pytest.fixture(scope="session", params=VERSIONS, ids=_IDS)
def apache(request: pytest.FixtureRequest, apache_versions: ApacheVersions) -> ApacheCluster:
    """Give the shared cluster, once per release."""
    return apache_versions.cluster(request.param)


@pytest.fixture(scope="session")
def java_client(apache: ApacheCluster, apache_versions: ApacheVersions) -> JavaClient:
    """Give the shared Java client of the release of `apache`."""
    return apache_versions.java_client(apache.version)


@pytest.fixture(scope="module", params=VERSIONS, ids=_IDS)
def apache_acl(request: pytest.FixtureRequest) -> Iterator[ApacheCluster]:
    """Give a cluster with access control and the accounts of `ACCOUNTS`."""
    with cluster_or_skip(lambda: ApacheCluster(request.param, acl=ACCOUNTS)) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=VERSIONS, ids=_IDS)
def apache_tls(request: pytest.FixtureRequest) -> Iterator[ApacheCluster]:
    """Give a cluster that requires TLS; its `tls` names the certificate files."""
    with cluster_or_skip(lambda: ApacheCluster(request.param, tls="test")) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=VERSIONS, ids=_IDS)
def apache_two_brokers(request: pytest.FixtureRequest) -> Iterator[ApacheCluster]:
    """Give a cluster of broker-a and broker-b."""
    with cluster_or_skip(lambda: ApacheCluster(request.param, brokers=2)) as cluster:
        yield cluster


@pytest.fixture(params=VERSIONS, ids=_IDS)
def apache_alone(request: pytest.FixtureRequest) -> Iterator[ApacheCluster]:
    """Give a cluster for one test, which may stop its broker."""
    with cluster_or_skip(lambda: ApacheCluster(request.param)) as cluster:
        yield cluster


@pytest.fixture
def unique_name() -> UniqueName:
    """Give a function that adds a random suffix to a prefix."""
    return lambda prefix: f"{prefix}_{secrets.token_hex(5)}"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "apache: needs the real Apache RocketMQ servers (Java)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the servers, before pytest applies `-m`."""
    for item in items:
        if isinstance(item, pytest.Function) and not FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker("apache")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last part of the server logs to the report of a failed test."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        clusters: list[ApacheCluster] = []
        for value in item.funcargs.values():
            if isinstance(value, ApacheCluster):
                clusters.append(value)
            elif isinstance(value, ApacheVersions) and "apache" not in item.funcargs:
                clusters += value.clusters()
            elif isinstance(value, JavaClient):
                report.sections.append((f"Java client {value.version}", value.log()))
        for cluster in clusters:
            report.sections.append((f"Apache {cluster.version} servers", cluster.logs()))
    return report
