"""Pytest fixtures over the test bed; a plugin module.

Load it with `pytest_plugins = ["tests.apache.fixtures"]`. A plain cluster and a Java client are
started at most once per release and test run, when the first test asks, and shared by all tests
after it: such tests use names from `unique_name` and leave the servers running. Tests that stop
servers or need other options start an `ApacheCluster` of their own.
"""

from __future__ import annotations

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
    """The shared clusters and Java clients of a test run, started when first asked for."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._clusters: dict[str, ApacheCluster] = {}
        self._java_clients: dict[str, JavaClient] = {}
        # A failed download is not tried again for every test.
        self._unavailable: dict[str, ApacheUnavailable] = {}

    def cluster(self, version: str) -> ApacheCluster:
        """Return the shared cluster of a release; skip the test when it cannot be had."""
        if version not in self._clusters:
            if known := self._unavailable.get(version):
                give_up(known)
            try:
                cluster = ApacheCluster(version)
            except ApacheUnavailable as error:
                self._unavailable[version] = error
                give_up(error)
            cluster.start()
            self._clusters[version] = cluster
        return self._clusters[version]

    def java_client(self, version: str) -> JavaClient:
        """Return the shared Java client of a release; skip the test when it cannot be had."""
        if version not in self._java_clients:
            try:
                client = JavaClient(version)
                client.start()
            except ApacheUnavailable as error:
                give_up(error)
            self._java_clients[version] = client
        return self._java_clients[version]

    def clusters(self) -> list[ApacheCluster]:
        """Return the clusters that were started."""
        return list(self._clusters.values())

    def close(self) -> None:
        """End everything."""
        for client in self._java_clients.values():
            client.close()
        for cluster in self._clusters.values():
            cluster.close()


def give_up(error: ApacheUnavailable) -> NoReturn:
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
    yield from _own(lambda: ApacheCluster(request.param, acl=ACCOUNTS))


@pytest.fixture(scope="module", params=VERSIONS, ids=_IDS)
def apache_tls(request: pytest.FixtureRequest) -> Iterator[ApacheCluster]:
    """Give a cluster that insists on TLS; its `tls` names the certificate files."""
    yield from _own(lambda: ApacheCluster(request.param, tls="test"))


@pytest.fixture(scope="module", params=VERSIONS, ids=_IDS)
def apache_two_brokers(request: pytest.FixtureRequest) -> Iterator[ApacheCluster]:
    """Give a cluster of broker-a and broker-b."""
    yield from _own(lambda: ApacheCluster(request.param, brokers=2))


@pytest.fixture
def unique_name() -> UniqueName:
    """Give a function from a prefix to a name that no other test uses."""
    return lambda prefix: f"{prefix}_{secrets.token_hex(5)}"


def _own(make: Callable[[], ApacheCluster]) -> Iterator[ApacheCluster]:
    try:
        cluster = make()
    except ApacheUnavailable as error:
        give_up(error)
    with cluster:
        yield cluster


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "apache: needs the real Apache RocketMQ servers (Java)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the servers, before `-m` is looked at."""
    for item in items:
        if isinstance(item, pytest.Function) and not FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker("apache")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the server logs to the report of a failed test."""
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
