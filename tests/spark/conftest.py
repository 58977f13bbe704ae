"""One Spark session for all tests of this folder.

    def test_a_read(spark: SparkSession, server: Server) -> None: ...

Without Java the tests are skipped with a reason, or fail with DOWNRANGE_REQUIRE_APACHE=1.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from downrange.pipelines.session import make_session
from tests.apache.artifacts import VERSIONS
from tests.contract.servers import Server
from tests.embedded.spark.stage import unique_name
from tests.spark.java import skip_without_java

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.apache.fixtures import ApacheVersions


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore pyspark's own warnings, such as those about sockets that are not closed."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(scope="session")
def java() -> None:
    """Skip or fail if Spark cannot run."""
    skip_without_java()


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the session that all tests share: two cores, small shuffles, no web UI."""
    scratch: Path = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.streaming.stopTimeout": "30s",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = make_session("downrange-tests", master="local[2]", settings=settings)
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture(
    scope="session",
    params=["embedded", pytest.param(VERSIONS[0], marks=pytest.mark.apache)],
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield the embedded and the Apache cluster in turn; shared, so use unique names."""
    if request.param == "embedded":
        with Cluster() as cluster:
            own = Server(cluster.name_server, cluster.brokers, None, unique_name)
            yield own
            own.close()
        return
    versions: ApacheVersions = request.getfixturevalue("apache_versions")
    apache = versions.cluster(request.param)
    addresses = [broker.address for broker in apache.brokers]
    own = Server(apache.name_server, addresses, apache.version, unique_name)
    yield own
    own.close()
