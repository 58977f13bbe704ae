"""What pipelines check before Spark starts: the server, the topics, and the extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from downrange import Admin, Client, extras
from downrange.cli import app
from downrange.embedded import Cluster
from downrange.errors import RouteNotFound
from downrange.pipelines import session, stream_run
from downrange.pipelines.cluster_check import check_sources, check_target
from downrange.pipelines.options import ClusterOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

LAKE = "lake {topic} --output out --once"
MIRROR = "mirror {topic} --target-topic there --checkpoint cp --once"
REPLAY = "replay {topic} --target-topic there --from 1 --dry-run"
TRACE = "trace --trace-topic {topic} --output out"
LOAD = "load in.csv --topic {topic} --body text --checkpoint cp"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        with Client(running.name_server) as client, Admin(client) as admin:
            for name in ("here", "there"):
                admin.create_topic(name, queues=1)
            admin.create_topic("closed", queues=1, permission=2)
            admin.create_topic("finished", queues=1, permission=4)
        yield running


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fail where Spark would start, and work in an empty folder."""

    def start(*_: object, **__: object) -> None:
        raise session.JavaMissing("Spark was started")

    monkeypatch.setattr(stream_run, "make_session", start)
    monkeypatch.setitem(extras.EXTRAS, "spark", ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("text\nx\n")


def _run(command: str, topic: str, name_server: str) -> Result:
    words = command.format(topic=topic).split()
    return CliRunner().invoke(app, ["pipeline", *words, "-n", name_server])


@pytest.mark.parametrize("command", [LAKE, MIRROR, REPLAY, TRACE, LOAD])
def test_no_server_is_3_before_spark_starts(command: str) -> None:
    result = _run(command, "here", "127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no name server answered: 127.0.0.1:1 (connection refused)" in result.stderr
    assert "Spark" not in result.stderr


@pytest.mark.parametrize("command", [LAKE, MIRROR, REPLAY, TRACE])
@pytest.mark.parametrize("topic", ["missing", "closed"])
def test_a_topic_that_cannot_be_read_is_5_before_spark_starts(
    cluster: Cluster, command: str, topic: str
) -> None:
    result = _run(command, topic, cluster.name_server)
    assert (result.exit_code, result.stdout) == (5, "")
    assert f"topic {topic!r} has no route" in result.stderr


def test_a_topic_that_cannot_be_sent_to_is_5_before_spark_starts(cluster: Cluster) -> None:
    result = _run(LOAD, "finished", cluster.name_server)
    assert (result.exit_code, result.stdout) == (5, "")
    assert "Check its permission" in result.stderr


@pytest.mark.parametrize("command", [LAKE, MIRROR, REPLAY, TRACE, LOAD])
def test_then_spark_starts_and_without_java_the_code_is_2(cluster: Cluster, command: str) -> None:
    result = _run(command, "here", cluster.name_server)
    assert (result.exit_code, result.stderr) == (2, "downrange: Spark was started\n")


def test_without_the_extra_a_pipeline_is_one_sentence_and_2(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras.EXTRAS, "spark", ("no_such_package",))
    result = _run(LAKE, "here", cluster.name_server)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "downrange: a pipeline needs the extra 'spark': run pip install '.[spark]' in the "
        "checkout\n"
    )


def test_a_stream_that_continues_may_have_lost_a_topic(cluster: Cluster, tmp_path: Path) -> None:
    options = ClusterOptions(name_server=cluster.name_server)
    with pytest.raises(RouteNotFound):
        check_sources(options, ["missing"], checkpoint=str(tmp_path / "new"))
    check_sources(options, ["missing"], checkpoint=str(tmp_path))
    check_sources(options, ["missing"], checkpoint="s3://bucket/checkpoint")


def test_a_topic_that_a_send_creates_need_not_exist(cluster: Cluster) -> None:
    check_target(ClusterOptions(name_server=cluster.name_server), "created-by-a-send")
