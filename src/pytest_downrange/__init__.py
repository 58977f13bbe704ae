"""The pytest plugin: fixtures `rocketmq` and `rocketmq_cluster`, and a section in failure reports.

pytest loads this module in every run in which Downrange is installed. So it imports nothing of
Downrange before a test uses a fixture. docs/guides/testing.md describes the fixtures.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pluggy import Result

    from downrange.testing import RocketMQ, RocketMQCluster
    from downrange.testing.servers import Servers

_OPTION: Final = "--rocketmq-servers"
_SETTING: Final = "rocketmq_servers"
_VARIABLE: Final = "ROCKETMQ_TEST_SERVERS"
#: What the fixtures of a test gave to it.
_USED: Final = pytest.StashKey["list[RocketMQ]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting that name a real cluster."""
    text = (
        "run the tests of the fixture `rocketmq` on this RocketMQ cluster, not on an embedded one"
    )
    group = parser.getgroup("rocketmq", "RocketMQ")
    group.addoption(_OPTION, metavar="HOST:PORT", help=f"{text}; several are separated by ';'")
    parser.addini(_SETTING, f"{text}; {_OPTION} and ${_VARIABLE} come first", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and check the address of a real cluster."""
    config.addinivalue_line(
        "markers",
        "rocketmq_cluster(brokers=2, flush=..., ...): settings of the cluster of the fixture "
        "rocketmq_cluster; all arguments of downrange.Cluster",
    )
    name_servers = _name_servers(config)
    if name_servers is not None:
        from downrange.client.client_base import addresses_of
        from downrange.errors import OptionError

        try:
            addresses_of(name_servers)
        except OptionError as error:
            raise pytest.UsageError(f"{_OPTION}: {error}") from error


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say that a real cluster is used."""
    name_servers = _name_servers(config)
    return None if name_servers is None else f"rocketmq: {name_servers}"


@pytest.hookimpl(hookwrapper=True)  # pytest 7 does not know the new style
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, Result[pytest.TestReport], None]:
    """Add to the report of a failed test what is in its topics."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and report.when != "teardown":
        for used in item.stash.get(_USED, []):
            report.sections.append((f"RocketMQ topics on {used.name_servers}", used.describe()))


@pytest.fixture(scope="session")
def _rocketmq_servers(pytestconfig: pytest.Config) -> Iterator[Servers]:
    """Start the embedded cluster of this process, or connect to a real one."""
    from downrange.testing.servers import open_servers

    servers = open_servers(_name_servers(pytestconfig))
    yield servers
    servers.close()


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest, _rocketmq_servers: Servers) -> Iterator[RocketMQ]:
    """Give a RocketMQ cluster that is empty at the start of each test."""
    with _rocketmq_servers.lend() as lent:
        _used(request.node).append(lent)
        yield lent
        _used(request.node).remove(lent)


@pytest.fixture
def rocketmq_cluster(request: pytest.FixtureRequest) -> Iterator[RocketMQCluster]:
    """Give an embedded RocketMQ cluster to this test alone; its two brokers can be killed."""
    from downrange.testing.servers import own_cluster

    marker = request.node.get_closest_marker("rocketmq_cluster")
    with own_cluster({} if marker is None else marker.kwargs) as own:
        _used(request.node).append(own)
        yield own
        _used(request.node).remove(own)


def _used(item: pytest.Item) -> list[RocketMQ]:
    return item.stash.setdefault(_USED, [])


def _name_servers(config: pytest.Config) -> str | None:
    """Return the addresses of a real cluster; None for an embedded one."""
    given = config.getoption(_OPTION) or os.environ.get(_VARIABLE) or config.getini(_SETTING)
    return str(given).strip() or None
