"""The services and consumers of the demo, on real brokers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from downrange import Admin, PullConsumer
from downrange.cli.app import app
from downrange.client.flows.producing.trace_records import (
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    decode_trace,
)
from downrange.demo import consumers, workload
from downrange.demo.audit import StoreReader, check_topic
from downrange.demo.consumers import ConsumerPlan, ConsumerProgress, run_consumer
from downrange.demo.schedule import SendSchedule
from downrange.demo.send_log import SendLog
from downrange.demo.servers import BROKERS, ServerFailed, ServerProcess, Servers
from downrange.demo.shop_day import ShopDay
from downrange.demo.shop_events import Shop
from downrange.demo.workload import AUTO_CREATED, SERVICES, Service, ServiceContext
from downrange.embedded import Cluster
from downrange.options import BrokerOptions
from downrange.wire.system_names import TRACE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from downrange.client.flows.producing.trace_records import TraceRecord
    from downrange.demo.audit import FoundMessages, TopicCheck
    from downrange.demo.progress import Stage
    from downrange.model import SendReceipt

DEADLINE = 60.0
SECONDS = 0.5
BROKER = BrokerOptions(
    is_trace_topic_created=True, transaction_timeout=0.2, transaction_check_interval=0.2
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, broker=BROKER) as cluster:
        yield cluster


@contextmanager
def running(cluster: Cluster, service: Service, *, seconds: float = SECONDS) -> Generator[SendLog]:
    """Run a service until it has sent everything; it ends with the block."""
    send_log, settled = SendLog(service.topic, service.mode), threading.Event()
    if service.topic == AUTO_CREATED:
        workload.create_topics(cluster.name_server, send_log, Shop(5, "trial"))
    else:
        with Admin(cluster.name_server) as admin:
            admin.create_topic(service.topic, queues=2)
    schedule = SendSchedule(seconds, service.per_second, threading.Event(), overrun_factor=DEADLINE)
    context = ServiceContext(
        cluster.name_server, schedule, Shop(5, service.name), send_log, settled
    )
    thread = threading.Thread(target=service.run, args=(context,))
    thread.start()
    try:
        deadline = time.monotonic() + DEADLINE
        while thread.is_alive() and not context.has_sent.is_set():
            assert time.monotonic() < deadline
            thread.join(0.05)
        yield send_log
    finally:
        settled.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def check(cluster: Cluster, send_log: SendLog) -> TopicCheck:
    with StoreReader(cluster.name_server, [send_log.topic]) as reader:
        assert reader.wait_for([send_log], time.monotonic() + DEADLINE)
        found = reader.found[send_log.topic]
    return check_topic(send_log, found, None, found)


def traces(cluster: Cluster) -> list[TraceRecord]:
    """Return what is in the trace topic now."""
    found: list[TraceRecord] = []
    with (
        Admin(cluster.name_server) as admin,
        PullConsumer(cluster.name_server, group="audit") as consumer,
    ):
        count = sum(state.max_offset for state in admin.topic_stats(TRACE_TOPIC))
        consumer.assign(TRACE_TOPIC, start="earliest")
        for message in islice(consumer.messages(idle_timeout=DEADLINE), count):
            found += decode_trace(message.body)
    return found


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_service_sends_what_it_planned_and_records_the_outcomes(
    cluster: Cluster, service: Service
) -> None:
    with running(cluster, service) as send_log:
        outcome = check(cluster, send_log)
    assert outcome.problems == ()
    trial = service.topic == AUTO_CREATED
    assert outcome.sent.attempted == round(SECONDS * service.per_second) + trial
    assert outcome.sent.failed == 0
    if service.mode == "one-way":
        assert outcome.sent.acknowledged == 0
    else:
        traced = [record for record in traces(cluster) if isinstance(record, PubTrace)]
        ids = {one for record in traced for one in (record.message_id or "").split(",")}
        assert send_log.acknowledged <= ids
        assert {record.group for record in traced} >= {service.name}


def test_declined_payments_are_never_delivered_and_open_ones_are_checked(cluster: Cluster) -> None:
    with running(cluster, _service("bank"), seconds=2.0) as send_log:
        outcome = check(cluster, send_log)
    assert outcome.problems == ()
    assert outcome.sent.withdrawn > 0
    assert outcome.stored == outcome.sent.acknowledged


def test_reminders_come_later_and_recalled_ones_not_at_all(cluster: Cluster) -> None:
    with running(cluster, _service("mailer"), seconds=1.0) as send_log:
        outcome = check(cluster, send_log)
    assert outcome.problems == ()
    assert outcome.sent.withdrawn > 0


def test_auto_created_topic_is_on_one_broker_and_the_others_on_both(
    cluster: Cluster,
) -> None:
    with running(cluster, _service("marketing")) as coupons:
        assert len(check(cluster, coupons).brokers) == 1
    with running(cluster, _service("web")) as clicks:
        assert len(check(cluster, clicks).brokers) == 2


def test_retries_bring_messages_past_a_broker_that_crashes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_receipt, is_killed = SendLog.add_receipt, threading.Event()

    def kill_after_some(send_log: SendLog, receipt: SendReceipt) -> None:
        """Kill the broker between two sends, so that there are sends before and after."""
        add_receipt(send_log, receipt)
        if len(send_log.acknowledged) >= 20 and not is_killed.is_set():
            is_killed.set()
            cluster.kill_broker(0)

    monkeypatch.setattr(SendLog, "add_receipt", kill_after_some)
    with running(cluster, _service("checkout")) as send_log:
        cluster.restart_broker(0)
        outcome = check(cluster, send_log)
    assert outcome.problems == ()
    assert outcome.sent.failed == 0
    assert outcome.sent.retried > 0


def _service(name: str) -> Service:
    return next(service for service in SERVICES if service.name == name)


# ---- consumers -----------------------------------------------------------------------------------


def _read(cluster: Cluster, plan: ConsumerPlan) -> ConsumerProgress:
    progress, settled = ConsumerProgress(plan), threading.Event()
    settled.set()
    run_consumer(cluster.name_server, progress, seconds=SECONDS, settled=settled)
    assert progress.problem is None
    return progress


def test_consumer_handles_its_tags_and_leaves_a_pair_of_traces_for_each(cluster: Cluster) -> None:
    with running(cluster, _service("checkout"), seconds=1.5) as send_log:
        check(cluster, send_log)
    progress = _read(cluster, ConsumerPlan("packing", "orders", tags="standard || express"))
    assert 0 < len(progress.handled) < len(send_log.acknowledged)
    assert progress.retried > 0
    assert progress.repeated == 0
    records = traces(cluster)
    before = {one.request_id: one for one in records if isinstance(one, SubBeforeTrace)}
    after = {one.request_id: one for one in records if isinstance(one, SubAfterTrace)}
    assert before.keys() == after.keys()
    failed = progress.retried + 2 * len(progress.dead)
    assert len(after) == len(progress.handled) + failed
    assert sum(one.is_success for one in after.values()) == len(progress.handled)
    assert {one.retry_count for one in before.values()} == {0, 1}
    done = {one.message_id for one in after.values() if one.is_success}
    assert done == progress.handled
    assert done < send_log.acknowledged
    assert {one.group for one in after.values()} == {"packing"}


def test_consumer_goes_on_where_its_group_was(cluster: Cluster) -> None:
    with running(cluster, _service("web")) as send_log:
        check(cluster, send_log)
    analysts = ConsumerPlan("analysts", "clicks")
    assert _read(cluster, analysts).handled == send_log.acknowledged
    with PullConsumer(cluster.name_server, group="analysts") as consumer:
        consumer.assign("clicks", start="committed")
        assert consumer.poll(0.5) == []


def test_consumer_that_stops_early_leaves_the_rest(cluster: Cluster) -> None:
    with running(cluster, _service("web")) as send_log:
        check(cluster, send_log)
    progress = ConsumerProgress(ConsumerPlan("analysts", "clicks", share=0.0))
    run_consumer(cluster.name_server, progress, seconds=SECONDS, settled=threading.Event())
    assert progress.handled < send_log.acknowledged


class ClockOfChanges:
    """A clock that waits until the queues of members have changed, however long that takes."""

    def __init__(self, progress: ConsumerProgress, settled: threading.Event) -> None:
        self._progress = progress
        self._settled = settled
        self._started: float | None = None
        self.sleep = time.sleep

    def monotonic(self) -> float:
        if self._started is None:
            self._started = time.monotonic()
            return 0.0
        if self._progress.rebalances >= 5 or time.monotonic() > self._started + DEADLINE:
            self._settled.set()
        # One member alone; two, after a change of both; one again; two.
        steps = ((1, 0.1), (3, 0.4), (4, 0.7))
        return next((at for count, at in steps if self._progress.rebalances < count), 0.9)


def test_second_member_comes_and_goes_and_nothing_is_missed_or_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(cluster, _service("web"), seconds=1.0) as send_log:
        check(cluster, send_log)
    # The member is away until the first one has its queues, and in the middle.
    plan = ConsumerPlan("analysts", "clicks", absences=((0.0, 0.2), (0.6, 0.8)))
    progress, settled = ConsumerProgress(plan), threading.Event()
    monkeypatch.setattr(consumers, "time", ClockOfChanges(progress, settled))
    run_consumer(cluster.name_server, progress, seconds=1.0, settled=settled)
    assert progress.problem is None
    assert progress.handled == send_log.acknowledged
    assert progress.repeated == 0
    assert progress.rebalances >= 5


# ---- servers -------------------------------------------------------------------------------------


def test_killed_broker_comes_back_at_the_same_address(tmp_path: Path) -> None:
    with Servers(tmp_path / "store", tmp_path / "logs") as servers:
        addresses = servers.brokers
        assert list(addresses) == list(BROKERS)
        servers.check()
        servers.kill_broker("broker-b")
        with pytest.raises(ServerFailed, match="broker-b"):
            servers.check()
        servers.restart_broker("broker-b")
        servers.check()
        assert servers.brokers == addresses


def test_server_that_cannot_start_says_why_and_where_its_log_is(tmp_path: Path) -> None:
    server = ServerProcess("nameserver", ("nameserver", "--port", "-5"), tmp_path)
    try:
        with pytest.raises(ServerFailed, match=r"nameserver\.log"):
            server.wait_until_ready()
    finally:
        server.stop()


# ---- the command ---------------------------------------------------------------------------------


def _demo(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    # Run the script that users run. With `python -m`, the interpreter may end by SIGINT instead of
    # exit code 130, if Ctrl-C interrupts code that was generated at run time, as by a dataclass.
    command = Path(sys.executable).with_name("downrange")
    return subprocess.Popen(
        [command, "demo", "--no-spark", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        process_group=0,
    )


def _servers_of(folder: Path) -> list[str]:
    """Return the servers that still run with their stores in this folder."""
    commands: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # not readable, or it has just ended
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in commands if str(folder) in command and " broker " in command]


def test_demo_without_spark_agrees_and_says_what_it_left_out(tmp_path: Path) -> None:
    packing = _day(tmp_path, 2)
    for seconds in (10, 30):  # a busy machine sends little in the time for a short day
        if packing["retried"] > 0 and packing["rebalances"] > 2:
            break
        packing = _day(tmp_path, seconds)
    assert packing["retried"] > 0, packing
    assert packing["rebalances"] > 2, packing


def _day(tmp_path: Path, seconds: int) -> dict[str, Any]:
    """Run the demo, check what it shows, and return what the group `packing` did."""
    with _demo(tmp_path, "--seconds", str(seconds)) as process:
        shown, _ = process.communicate(timeout=DEADLINE * 5)
    assert process.returncode == 0, shown
    assert "Left out" in shown
    assert "The numbers agree" in shown
    assert "no group missed any of its messages" in shown
    assert "kill -9" in shown
    summary = json.loads((tmp_path / "downrange-demo" / "summary.json").read_text())
    assert _servers_of(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["downrange-demo"]
    found: dict[str, Any] = next(
        group for group in summary["groups"] if group["group"] == "packing"
    )
    return found


def test_demo_with_a_difference_reports_it_and_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A message that a broker lost is reported."""
    read_back = ShopDay.read_back

    def lose_one(day: ShopDay, stage: Stage) -> dict[str, FoundMessages]:
        found = read_back(day, stage)
        found["orders"].ids.popitem()
        return found

    monkeypatch.setattr(ShopDay, "read_back", lose_one)
    arguments = ["demo", "--no-spark", "--seconds", "2", "--output", str(tmp_path / "demo")]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 1, ended.output
    assert "orders: 1 acknowledged, but not stored" in ended.output
    assert "do NOT agree" in ended.output
    assert json.loads((tmp_path / "demo" / "summary.json").read_text())["agrees"] is False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_demo_and_its_servers(tmp_path: Path, number: int, code: int) -> None:
    with _demo(tmp_path, "--seconds", "60") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Send for"):
                break
        assert len(_servers_of(tmp_path)) == 2
        process.send_signal(number)
        shown, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == code, shown
    assert "Traceback" not in shown
    assert _servers_of(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["downrange-demo"]
