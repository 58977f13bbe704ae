"""`doctor` on brokers and groups, `broker dump`, and the logs of a server process."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pytest
from click.testing import CliRunner

import downrange as mq
from downrange.cli import app
from downrange.client.flows.admin import brokers, health_checks, stuck_queues
from downrange.embedded import Cluster
from downrange.options.consumers import ConsumerOptions
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.embedded.pages import metrics_of
from tests.support.options import PATIENT_CLIENT, PATIENT_PRODUCER
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BODY = "body-that-must-stay-secret"
PROPERTY = "property-that-must-stay-secret"


def run(cluster: Cluster, *arguments: str, **environment: str) -> tuple[int, str]:
    given = {"NAMESRV_ADDR": cluster.name_server, "COLUMNS": "200", **environment}
    result = CliRunner().invoke(app, list(arguments), env=given)
    return result.exit_code, result.stdout


def doctor(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    _, text = run(cluster, "doctor", "--json", *arguments)
    return [json.loads(line) for line in text.splitlines()]


def failed(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["name"], each["target"]) for each in findings if not each["is_ok"]]


def send(cluster: Cluster, topic: str, count: int) -> None:
    with mq.Producer(
        cluster.name_server,
        group="senders",
        options=PATIENT_PRODUCER,
        client_options=PATIENT_CLIENT,
    ) as producer:
        for number in range(count):
            producer.send(mq.Message(topic, f"{number}"))


@pytest.fixture(name="cluster")
def _cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


# ---- doctor ------------------------------------------------------------------------------------


def test_a_healthy_cluster_has_brokers_and_groups_without_findings(cluster: Cluster) -> None:
    findings = doctor(cluster)
    assert failed(findings) == []
    texts = {each["name"]: each["text"] for each in findings}
    assert texts["clock"] == "its clock agrees with that of this machine"
    assert texts["disk"].endswith("of the disk are in use")
    assert texts["groups"] == "there are none"


def test_the_network_alone_can_be_checked(cluster: Cluster) -> None:
    assert {"disk", "clock", "groups"}.isdisjoint(
        each["name"] for each in doctor(cluster, "--network")
    )


def test_a_group_without_members_that_is_behind_is_no_failure(cluster: Cluster) -> None:
    send(cluster, "orders", 3)
    with mq.Admin(cluster.name_server) as admin:
        admin.create_group("idle")
        for queue in admin.publish_queues("orders"):
            admin.set_group_offset("idle", queue, 0)
    (finding,) = [each for each in doctor(cluster) if each["target"] == "group idle"]
    assert finding["is_ok"]
    assert finding["text"] == "3 messages wait, and no member is connected"
    assert "downrange group delete idle" in finding["next_step"]


def prepare(cluster: Cluster, group: str) -> None:
    """Make a topic with one queue and three messages, which a group has not read."""
    with mq.Admin(cluster.name_server, client_options=PATIENT_CLIENT) as admin:
        admin.create_topic("orders", queues=1)
        admin.create_group(group)
        send(cluster, "orders", 3)
        admin.set_group_offset(group, admin.publish_queues("orders")[0], 0)


def committed(cluster: Cluster, group: str) -> int:
    with mq.Admin(cluster.name_server) as admin:
        return admin.group_lag(group, topic="orders").queues[0].committed


def test_a_queue_that_stands_still_is_found_with_its_owner(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_queues, "STUCK_AFTER", timedelta(0))
    release = threading.Event()
    taken = threading.Event()

    def handle(message: mq.ReceivedMessage) -> None:
        taken.set()
        release.wait(60)

    prepare(cluster, "slow")
    options = ConsumerOptions(commit_interval=0.1)
    with mq.PushConsumer(
        cluster.name_server, group="slow", subscribe="orders", handler=handle, options=options
    ):
        assert taken.wait(60)
        given = {"NAMESRV_ADDR": cluster.name_server}
        arguments = ["doctor", "--json", "--interval", "0", "--recheck", "0.01"]
        result = CliRunner().invoke(app, arguments, env=given)
        release.set()
    assert result.exit_code == 1
    assert result.stderr.startswith("1 queue of group slow did not move; looking again in 0.01 s")
    findings = [json.loads(line) for line in result.stdout.splitlines()]
    (finding,) = [each for each in findings if not each["is_ok"]]
    assert (finding["name"], finding["target"]) == ("stuck", "group slow")
    assert "queue 0 of orders on broker-a stands still at 0" in finding["text"]
    assert re.search(r"downrange group runinfo slow \S+ --stack", finding["next_step"])
    assert "--queue broker-a:0 --to 1 --apply" in finding["next_step"]


def test_a_queue_that_moves_with_its_next_commit_is_not_stuck(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_queues, "STUCK_AFTER", timedelta(0))
    taken, go_on, release = threading.Event(), threading.Event(), threading.Event()

    def handle(message: mq.ReceivedMessage) -> None:
        taken.set()
        (release if message.body == b"2" else go_on).wait(60)

    def commit(reason: str) -> None:
        """Happen in the time before the last look."""
        assert "consumers commit every 5 s" in reason
        go_on.set()
        wait_until(lambda: committed(cluster, "late") == 2)

    prepare(cluster, "late")
    options = ConsumerOptions(commit_interval=0.1)
    with (
        mq.PushConsumer(
            cluster.name_server, group="late", subscribe="orders", handler=handle, options=options
        ),
        mq.Client(cluster.name_server) as client,
    ):
        assert taken.wait(60)
        flow = health_checks.check_cluster(client.core, pause=0, recheck=0.01, notify=commit)
        (finding,) = [each for each in client.run(flow) if each.target == "group late"]
        release.set()
    assert (finding.name, finding.is_ok) == ("lag", True)
    assert finding.text == "1 messages wait, and it moves on"


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_a_slow_consumer_says_itself_that_it_handles_messages(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, mode: Literal["concurrent", "orderly"]
) -> None:
    """It has handled two messages; its next commit comes later than the last look."""
    monkeypatch.setattr(stuck_queues, "STUCK_AFTER", timedelta(0))
    taken, release = threading.Event(), threading.Event()

    def handle(message: mq.ReceivedMessage) -> None:
        if message.body == b"2":
            taken.set()
            release.wait(60)

    prepare(cluster, "slow")
    options = ConsumerOptions(commit_interval=60, concurrency=1, mode=mode)
    with mq.PushConsumer(
        cluster.name_server, group="slow", subscribe="orders", handler=handle, options=options
    ):
        assert taken.wait(60)
        findings = doctor(cluster, "--interval", "0", "--recheck", "0")
        release.set()
    assert failed(findings) == []
    (finding,) = [each for each in findings if each["target"] == "group slow"]
    assert finding["name"] == "slow"
    assert "its offset 0 did not move" in finding["text"]


def test_a_lag_that_grows_between_two_looks_is_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mq.Admin(cluster.name_server) as admin:
        admin.create_topic("orders", queues=1)
    release = threading.Event()
    options = ConsumerOptions(start="earliest", concurrency=1)
    with mq.PushConsumer(
        cluster.name_server,
        group="late",
        subscribe="orders",
        handler=lambda message: release.wait(60),
        options=options,
    ):
        send(cluster, "orders", 5)
        stop = threading.Event()

        def send_on() -> None:
            while not stop.is_set():
                send(cluster, "orders", 50)

        sender = threading.Thread(target=send_on)
        sender.start()
        try:
            findings = wait_until(
                lambda: [
                    each
                    for each in doctor(cluster, "--interval", "0.5")
                    if each["name"] == "lag" and not each["is_ok"]
                ]
            )
        finally:
            stop.set()
            sender.join()
            release.set()
    assert re.search(r"grew from \d+ to \d+ messages in 0.5 s", findings[0]["text"])
    assert "start more members" in findings[0]["next_step"]


def test_members_with_different_subscriptions_are_found(cluster: Cluster) -> None:
    send(cluster, "orders", 1)

    def consumer(tags: str) -> mq.PushConsumer:
        return mq.PushConsumer(
            cluster.name_server,
            group="mixed",
            subscribe={"orders": tags},
            handler=lambda message: None,
            options=ConsumerOptions(check_subscriptions=False),
        )

    with consumer("new"), consumer("paid"):
        found = wait_until(lambda: dict(failed(doctor(cluster, "--interval", "0"))))
        assert found == {"subscriptions": "group mixed"}
        code, text = run(cluster, "doctor", "--interval", "0")
    assert code == 1
    assert "FAIL" in text
    assert "the same subscriptions" in text


def test_recent_dead_letters_are_found(cluster: Cluster) -> None:
    def refuse(message: mq.ReceivedMessage) -> None:
        raise mq.DeadLetter("no")

    send(cluster, "orders", 2)
    with (
        mq.Admin(cluster.name_server) as admin,
        mq.PushConsumer(
            cluster.name_server,
            group="billing",
            subscribe="orders",
            handler=refuse,
            options=ConsumerOptions(start="earliest"),
        ),
    ):
        wait_until(lambda: len(admin.dead_letters("billing").letters) == 2)
        findings = doctor(cluster, "--interval", "0")
    (letters,) = [each for each in findings if each["name"] == "dead letters"]
    assert not letters["is_ok"]
    assert letters["text"].startswith("2 dead letters, the last one at ")
    assert "downrange dlq resend billing" in letters["next_step"]


@pytest.mark.parametrize(
    ("figures", "name", "text"),
    [
        ({"commitLogDiskRatio": "0.87"}, "disk", "87% of the disk are in use"),
        ({"bootTimestamp": "1000"}, "clock", "behind that of this machine"),
        ({"bootTimestamp": "9999999999999"}, "clock", "ahead of that of this machine"),
    ],
)
def test_a_full_disk_and_a_wrong_clock_are_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, figures: dict[str, str], name: str, text: str
) -> None:
    original = brokers.broker_figures

    def changed(*arguments: Any, **options: Any) -> Any:
        found = yield from original(*arguments, **options)
        return {broker: table | figures for broker, table in found.items()}

    monkeypatch.setattr(health_checks, "broker_figures", changed)
    (finding,) = [each for each in doctor(cluster) if not each["is_ok"]]
    assert finding["name"] == name
    assert text in finding["text"]
    assert finding["next_step"]


# ---- dump --------------------------------------------------------------------------------------


def test_a_dump_has_the_state_and_neither_bodies_nor_secrets(tmp_path: Path) -> None:
    accounts = tmp_path / "access.toml"
    accounts.write_text(
        '[accounts.operator]\nsecret_key = "operator-secret"\nadmin = true\n', encoding="utf-8"
    )
    keys = {"DOWNRANGE_ACCESS_KEY": "operator", "DOWNRANGE_SECRET_KEY": "operator-secret"}
    credentials = mq.Credentials("operator", "operator-secret")
    with Cluster(access=accounts) as cluster:
        with mq.Producer(cluster.name_server, group="senders", credentials=credentials) as producer:
            message = mq.Message("orders", BODY, keys=["key-in-secret"])
            message.properties["p"] = PROPERTY
            producer.send(message)
        consumer = mq.PushConsumer(
            cluster.name_server,
            group="billing",
            subscribe="orders",
            handler=lambda message: None,
            credentials=credentials,
        )
        with consumer:
            output = tmp_path / "dump.json"
            code, _ = run(cluster, "broker", "dump", "-o", str(output), **keys)
            assert code == 0
            code, printed = run(cluster, "broker", "dump", "--broker", "broker-a", **keys)
            assert code == 0
    for text in (output.read_text(encoding="utf-8"), printed):
        for secret in ("operator-secret", BODY, PROPERTY, "key-in-secret"):
            assert secret not in text
        found = json.loads(text)
        assert found["settings"]["broker-a"]["brokerName"] == "broker-a"
        assert found["figures"]["broker-a"]["putMessageTimesTotal"]
        assert sum(each["max_offset"] for each in found["topics"]["described"]["orders"]["queues"])
        assert found["groups"]["described"]["billing"]["members"]["members"]
        assert found["findings"]


def test_settings_that_may_hold_secrets_are_removed_from_a_dump(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = cluster.server.brokers[0].state
    monkeypatch.setitem(state.fixed_settings, "innerClientAuthenticationCredentials", "x1")
    monkeypatch.setitem(state.fixed_settings, "tlsKeyPassword", "x2")
    monkeypatch.setitem(state.fixed_settings, "other", '{"secretKey": "x3"}')
    _, text = run(cluster, "broker", "dump")
    settings = json.loads(text)["settings"]["broker-a"]
    for name in ("innerClientAuthenticationCredentials", "tlsKeyPassword", "other"):
        assert settings[name] == "(removed)"
    assert settings["aclEnable"] == "false"


def test_a_dump_with_json_is_one_line(cluster: Cluster) -> None:
    code, text = run(cluster, "broker", "dump", "--json")
    assert (code, text.count("\n")) == (0, 1)
    assert "broker-a" in json.loads(text)["settings"]


def test_a_dump_tells_what_could_not_be_asked(cluster: Cluster) -> None:
    cluster.stop_broker()
    code, text = run(cluster, "broker", "dump")
    found = json.loads(text)
    assert code == 0
    assert found["settings"]["error"].startswith("BrokerNotFound")
    assert not all(each["is_ok"] for each in found["findings"])


def test_a_dump_that_cannot_be_written_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    code, _ = run(cluster, "broker", "dump", "-o", str(tmp_path / "no" / "dump.json"))
    assert code == 2


# ---- logs --------------------------------------------------------------------------------------


def test_denied_requests_are_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accounts = tmp_path / "access.toml"
    accounts.write_text('[accounts.shop-front]\nsecret_key = "shop-secret"\n', encoding="utf-8")
    with (
        caplog.at_level(logging.WARNING, "downrange.access"),
        Cluster(access=accounts, metrics="127.0.0.1:0") as cluster,
    ):
        for _ in range(3):
            probe.call(cluster.brokers[0], RequestCode.GET_BROKER_CONFIG, {})
        assert cluster.metrics_address is not None
        metrics = metrics_of(cluster.metrics_address)
    assert metrics.value("downrange_denied_requests_total") == 3
    (line,) = [each.getMessage() for each in caplog.records if each.name == "downrange.access"]
    assert re.search(
        r"^denied: .*; request 26 \(GET_BROKER_CONFIG\) of account none from 127", line
    )


def test_a_server_logs_json_lines_at_the_levels_of_its_loggers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "downrange", "serve", "--store", str(tmp_path / "store")]
    command += ["--nameserver-port", "0", "--broker-port", "0", "--metrics", "127.0.0.1:0"]
    command += ["--log-format", "json", "--log-level", "warning", "--log-level", "broker=info"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            address = re.search(r" metrics=(\S+)$", ready.strip())
            assert address is not None, ready
            assert metrics_of(address[1]).value("rocketmq_broker_permission") == 6
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert {line["logger"] for line in lines} == {"downrange.broker"}
    assert any(line["message"].startswith("broker broker-a listens on") for line in lines)
    assert all(line["level"] == "info" for line in lines)


def test_the_console_beside_a_server_logs_json_lines_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "downrange", "serve", "--store", str(tmp_path / "store")]
    command += ["--nameserver-port", "0", "--broker-port", "0", "--console", "--console-port", "0"]
    command += ["--log-format", "json", "--log-level", "warning", "--log-level", "server=error"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            port = int(ready.strip().rpartition(":")[2])
            for first in (b"\x16\x03\x01\x02\x00", b"no request\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", port), WAIT_TIMEOUT) as peer:
                    peer.sendall(first)
                    assert b"400 Bad Request" in peer.recv(1000)
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
    lines = [json.loads(line) for line in errors.splitlines()]
    # The console may also say that the cluster does not answer: it stops first.
    cut = [line for line in lines if line["message"].startswith("a connection of ")]
    (named,) = [line for line in cut if "a TLS handshake on a port" in line["message"]]
    assert (named["logger"], named["level"]) == ("downrange.console", "warning")
    (invalid,) = [line for line in cut if line is not named]
    assert (invalid["logger"], invalid["level"]) == ("downrange.console", "warning")
    assert invalid["message"] == (
        "a connection of 127.0.0.1 is cut: it sent what is no HTTP request"
    )
