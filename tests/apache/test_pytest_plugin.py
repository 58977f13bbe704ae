"""The pytest plugin on Apache's servers."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from downrange.testing import WaitFailed
from downrange.testing.servers import RealServers
from downrange.wire.codes import RequestCode
from downrange.wire.system_names import retry_topic
from tests.apache import probe
from tests.support.plugin_runs import code_for, load_modules, prepare
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster
    from tests.apache.fixtures import ApacheVersions

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module", autouse=True)
def _modules() -> None:
    load_modules()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call of a fixture fail because the machine is busy."""
    monkeypatch.setattr("downrange.testing.rocketmq._CALL_TIMEOUT", WAIT_TIMEOUT)
    monkeypatch.setattr("downrange.testing.rocketmq._LOOK_TIMEOUT", WAIT_TIMEOUT)
    monkeypatch.setattr("downrange.testing.servers._CALL_TIMEOUT", WAIT_TIMEOUT)
    monkeypatch.setattr("downrange.testing.topic_reader._ANSWER_TIMEOUT", WAIT_TIMEOUT)


def test_tests_run_on_the_servers_that_an_option_names(
    apache: ApacheCluster, pytester: pytest.Pytester
) -> None:
    # A broker of 4.9 that was just started does not tell its figures for some seconds.
    figures = int(RequestCode.GET_BROKER_RUNTIME_INFO)
    wait_until(lambda: probe.call(apache.brokers[0].address, figures, {}).code == 0)
    prepare(pytester).makepyfile(code_for(apache.name_server))
    for _ in range(2):  # the second run finds the messages of the first
        result = pytester.runpytest_inprocess(f"--rocketmq-servers={apache.name_server}")
        result.assert_outcomes(passed=4)


def test_group_of_java_is_waited_for_until_its_retries_are_done(
    apache_versions: ApacheVersions,
) -> None:
    """On 5.5.0 only: Java commits for the first time 10 seconds after its start."""
    apache, java_client = apache_versions.cluster("5.5.0"), apache_versions.java_client("5.5.0")
    with closing(RealServers(apache.name_server)) as servers, servers.lend() as lent:
        topic, group = lent.topic("work", queues=2), lent.group("billing")
        with pytest.raises(WaitFailed, match="no member has subscribed"):
            lent.wait_until_consumed(group, timeout=0.05)
        for number in range(3):
            lent.send(topic, f"{number}")
        consumer = java_client.start_consumer(
            apache.name_server, group, {topic: "*"}, failures=1, retryDelayLevel=1
        )
        try:
            lent.wait_until_consumed(group, timeout=WAIT_TIMEOUT)
            deliveries = java_client.received(consumer, 0)
            assert [one["accepted"] for one in deliveries].count(True) == 3
            assert len(lent.messages(retry_topic(group))) == 3
        finally:
            java_client.stop(consumer)
