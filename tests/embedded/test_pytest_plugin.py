"""The pytest plugin, loaded by its entry point: each test runs pytest on a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from tests.support.plugin_runs import SETTINGS, code_for, load_modules, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module", autouse=True)
def _modules() -> None:
    load_modules()


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Give a folder with code to test: `orders.py`, which uses fixed names."""
    monkeypatch.delenv("ROCKETMQ_TEST_SERVERS", raising=False)
    # No look at a cluster fails because the machine is busy.
    monkeypatch.setattr("downrange.testing.rocketmq._LOOK_TIMEOUT", 60.0)
    return prepare(pytester)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give a cluster that stands for a real one."""
    with Cluster() as cluster:
        yield cluster


def test_each_test_sees_only_its_own_messages(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import pytest
        from orders import bill_orders, place_order

        @pytest.mark.parametrize("text", ["first", "second", "third"])
        def test_orders(rocketmq, text):
            place_order(rocketmq.name_servers, text)
            [order] = rocketmq.wait_for("orders")
            assert (order.body, order.tags, order.keys) == (text.encode(), "new", ["o-1"])
            assert bill_orders(rocketmq.name_servers) == [order.body]
            rocketmq.wait_until_consumed("billing")

        def test_no_orders(rocketmq):
            assert rocketmq.messages("orders") == []
    """)
    inner.runpytest_inprocess().assert_outcomes(passed=4)


def test_report_of_a_failure_shows_the_topics(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import pytest
        from orders import place_order

        def test_too_few(rocketmq):
            place_order(rocketmq.name_servers, "one apple")
            rocketmq.send("pictures", b"\\xff\\x00")
            rocketmq.wait_for("orders", count=2, timeout=0.1)

        @pytest.fixture
        def broken(rocketmq):
            rocketmq.send("orders", "in a fixture")
            raise ValueError("broken")

        def test_setup_fails(broken):
            pass

        def test_succeeds(rocketmq):
            rocketmq.send("orders", "not shown")

        def test_without_messages(rocketmq):
            assert False
    """)
    result = inner.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "* ERROR at setup of test_setup_fails *",
            "*- RocketMQ topics on 127.0.0.1:* -*",
            "orders: 1 message",
            "  broker-a queue ? offset 0: 'in a fixture' (12 bytes)",
            "* test_too_few *",
            '>       rocketmq.wait_for("orders", count=2, timeout=0.1)',
            "E *WaitFailed: waited 0.1 s for 2 messages in 'orders', found 1:",
            "E *broker-a queue ? offset 0: 'one apple' (9 bytes), tags='new', keys=[[]'o-1']",
            "test_report_of_a_failure_shows_the_topics.py:7: WaitFailed",
            "*- RocketMQ topics on 127.0.0.1:* -*",
            "orders: 1 message",
            "  broker-a queue ? offset 0: 'one apple' (9 bytes), tags='new', keys=[[]'o-1']",
            "pictures: 1 message",
            "  broker-a queue ? offset 0: hex ff00 (2 bytes)",
            "* test_without_messages *",
            "*- RocketMQ topics on 127.0.0.1:* -*",
            "no messages since the test began",
        ]
    )
    result.stdout.no_fnmatch_line("*not shown*")


def test_faults_end_with_the_test(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import downrange as mq
        import pytest
        from downrange.embedded import refuse
        from downrange.wire.codes import RequestCode, ResponseCode
        from orders import place_order

        def test_refused(rocketmq):
            fault = refuse(ResponseCode.MESSAGE_ILLEGAL, "not today")
            rocketmq.intercept(RequestCode.SEND_MESSAGE_V2, fault)
            with pytest.raises(mq.SendFailed, match="not today"):
                place_order(rocketmq.name_servers, "1")

        def test_stored(rocketmq):
            place_order(rocketmq.name_servers, "2")
            assert len(rocketmq.messages("orders")) == 1
    """)
    inner.runpytest_inprocess().assert_outcomes(passed=2)


def test_cluster_of_a_test_can_be_killed_and_set_up_by_a_marker(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import pytest

        def test_failover(rocketmq_cluster):
            # A send may create a topic on one broker only, which might be the one that is killed.
            orders = rocketmq_cluster.topic("orders")
            rocketmq_cluster.send(orders, "1")
            rocketmq_cluster.kill_broker(0)
            rocketmq_cluster.send(orders, "2")
            rocketmq_cluster.restart_broker(0)
            assert len(rocketmq_cluster.wait_for(orders, 2, timeout=60.0)) == 2

        @pytest.mark.rocketmq_cluster(brokers=3)
        def test_marker(rocketmq, rocketmq_cluster):
            assert len(rocketmq_cluster.brokers) == 3
            assert rocketmq.name_servers != rocketmq_cluster.name_servers

        @pytest.mark.rocketmq_cluster(brokers=0)
        def test_wrong_marker(rocketmq_cluster):
            pass
    """)
    result = inner.runpytest_inprocess()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["E *OptionError: brokers=0 *"])


def test_code_for_pytest_asyncio_can_wait(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import asyncio
        import downrange as mq
        import pytest

        @pytest.mark.asyncio
        @pytest.mark.parametrize("number", [1, 2])
        async def test_waits(rocketmq, number):
            waiting = asyncio.create_task(rocketmq.aio.wait_for("orders", timeout=60.0))
            async with mq.AsyncProducer(rocketmq.name_servers, group="shop") as producer:
                await producer.send(mq.Message("orders", f"{number}"))
            assert [order.body for order in await waiting] == [f"{number}".encode()]

        @pytest.mark.asyncio
        async def test_blocks(rocketmq):
            rocketmq.wait_for("orders")
    """)
    result = inner.runpytest_inprocess()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *use `await rocketmq.aio.wait_for(...)`"])


def test_each_worker_of_pytest_xdist_has_its_own_cluster(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import pytest
        from pathlib import Path
        from orders import bill_orders, place_order

        @pytest.mark.parametrize("number", range(3))
        def test_orders(rocketmq, worker_id, number):
            place_order(rocketmq.name_servers, f"{number}")
            assert bill_orders(rocketmq.name_servers) == [f"{number}".encode()]
            assert len(rocketmq.messages("orders")) == 1
            with Path("used.txt").open("a") as file:
                file.write(f"{worker_id} {rocketmq.name_servers}\\n")

        def test_fails(rocketmq):
            place_order(rocketmq.name_servers, "shown by the main process")
            assert False
    """)
    result = inner.runpytest_subprocess("-n2", "--dist=each")
    result.assert_outcomes(passed=6, failed=2)
    result.stdout.fnmatch_lines(["  broker-a queue ? offset 0: 'shown by the main process' *"])
    used = {tuple(line.split()) for line in (inner.path / "used.txt").read_text().splitlines()}
    assert sorted(worker for worker, _ in used) == ["gw0", "gw1"]
    assert len({address for _, address in used}) == 2


# ---- a real cluster ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["option", "variable", "setting"])
def test_address_of_a_real_cluster_can_be_given(
    inner: pytest.Pytester, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    address, wrong = cluster.name_server, "127.0.0.1:1"
    inner.makepyfile(code_for(address))
    inner.makeini(f"{SETTINGS}\nrocketmq_servers = {address if way == 'setting' else wrong}")
    if way != "setting":
        monkeypatch.setenv("ROCKETMQ_TEST_SERVERS", address if way == "variable" else wrong)
    options = [f"--rocketmq-servers={address}"] if way == "option" else []
    result = inner.runpytest_inprocess(*options)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([f"rocketmq: {address}"])


def test_bad_address_is_a_usage_error(inner: pytest.Pytester) -> None:
    result = inner.runpytest_inprocess("--rocketmq-servers=127.0.0.1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --rocketmq-servers: *127.0.0.1*"])


# ---- in runs that do not use it ------------------------------------------------------------------


def test_plugin_imports_nothing_until_a_test_uses_it(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import sys

        def test_nothing_is_imported():
            assert "pytest_downrange" in sys.modules
            ours = {name for name in sys.modules if name.partition(".")[0] == "downrange"}
            assert ours == set()
    """)
    inner.runpytest_subprocess().assert_outcomes(passed=1)


def test_plugin_can_be_switched_off(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_fixture(rocketmq): pass")
    result = inner.runpytest_inprocess("-p", "no:downrange")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E *fixture 'rocketmq' not found"])


def test_fixtures_and_marker_are_described(inner: pytest.Pytester) -> None:
    shown = inner.runpytest_inprocess("--fixtures").stdout.str()
    assert "Give a RocketMQ cluster that is empty at the start of each test." in shown
    assert "Give an embedded RocketMQ cluster to this test alone" in shown
    assert (
        "@pytest.mark.rocketmq_cluster(brokers=2"
        in inner.runpytest_inprocess("--markers").stdout.str()
    )


def test_name_of_the_plugin_is_the_one_of_the_package() -> None:
    code = (
        "import importlib.metadata, json; "
        "points = importlib.metadata.entry_points(group='pytest11', name='downrange'); "
        "print(json.dumps([point.value for point in points]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(result.stdout) == ["pytest_downrange"]
