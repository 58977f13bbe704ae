"""The client commands with an embedded cluster: output, its stream, and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from downrange.cli import app
from downrange.embedded import Cluster, refuse
from downrange.native import path_in_use
from downrange.options import ListenerOptions
from downrange.tls import client_context, server_context
from downrange.wire.codes import RequestCode, ResponseCode
from tests.apache.security import make_tls_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE = 60.0
PYTHON = [sys.executable, "-m", "downrange"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


class Shell:
    """Runs commands that find the cluster in the environment."""

    def __init__(self, name_server: str) -> None:
        self.environment = {"NAMESRV_ADDR": name_server, "COLUMNS": "200"}

    def __call__(self, *arguments: str, stdin: bytes | str = "", code: int = 0) -> Result:
        result = CliRunner().invoke(app, arguments, input=stdin, env=self.environment)
        assert result.exit_code == code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    def json(self, *arguments: str, stdin: bytes | str = "", code: int = 0) -> list[Any]:
        lines = self(*arguments, "--json", stdin=stdin, code=code).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def topic(self, name: str, *arguments: str) -> str:
        self("topic", "create", name, *arguments)
        return name


@pytest.fixture
def shell(cluster: Cluster) -> Shell:
    return Shell(cluster.name_server)


def _process(shell: Shell, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    environment = {**os.environ, **shell.environment, **settings.pop("env", {})}
    return subprocess.run(
        [*PYTHON, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        env=environment,
        **settings,
    )


def _bodies(shell: Shell, topic: str, *arguments: str) -> list[str]:
    tail = ("tail", topic, "--from", "earliest", "--no-follow", "--body-only")
    return shell(*tail, *arguments).stdout.splitlines()


# ---- send and tail -------------------------------------------------------------------------------


def test_a_message_is_sent_and_found_again(shell: Shell) -> None:
    topic = shell.topic("one")
    sent = ("send", topic, "42 apples", "--tags", "new", "--key", "o-1", "--property", "color=red")
    (receipt,) = shell.json(*sent)
    (found,) = shell.json("tail", topic, "--from", "earliest", "--max", "1")
    assert (found["message_id"], found["offset"]) == (receipt["message_id"], receipt["offset"])
    assert (found["body"], found["tags"], found["keys"]) == ("42 apples", "new", ["o-1"])
    assert found["properties"] == {"color": "red"}
    by_key = shell("message", "query", topic, "--key", "o-1").stdout
    assert by_key.endswith(" [new] key=o-1 42 apples\n")
    for message_id in (receipt["message_id"], receipt["offset_id"]):
        shown = shell("message", "show", topic, message_id).stdout
        assert "property color" in shown
        assert "42 apples" in shown
    (whole,) = shell.json("message", "show", topic, receipt["message_id"])
    assert whole["offset_id"] == receipt["offset_id"]
    body = shell("message", "show", topic, receipt["message_id"], "--body-only").stdout
    assert body == "42 apples"


def test_a_receipt_is_readable(shell: Shell) -> None:
    shown = shell("send", shell.topic("receipt"), "x").stdout
    assert "message_id" in shown
    assert "stored" in shown


def test_a_body_comes_from_a_file_or_a_pipe_as_it_is(shell: Shell, tmp_path: Path) -> None:
    topic = shell.topic("bytes", "--queues", "1", "--broker", "broker-a")
    file = tmp_path / "body"
    file.write_bytes(b"\xff\x00\n")
    shell("send", topic, "--file", str(file))
    shell("send", topic, stdin=b"two\nlines\n")
    shell("send", topic, "one way", "--oneway")
    found = shell.json("tail", topic, "--from", "earliest", "--max", "3")
    assert found[0]["body_base64"] == "/wAK"
    assert [each["body"] for each in found[1:]] == ["two\nlines\n", "one way"]


@pytest.mark.parametrize("batch", [(), ("--batch", "4")])
def test_each_line_is_a_message(shell: Shell, batch: tuple[str, ...]) -> None:
    topic = shell.topic(f"lines{len(batch)}")
    lines = "".join(f"{number}\n" for number in range(10))
    result = shell("send", topic, "--lines", *batch, stdin=lines)
    assert result.stdout.startswith("sent 10 messages in ")
    assert sorted(_bodies(shell, topic)) == [str(number) for number in range(10)]


def test_lines_of_a_file_keep_their_order_by_sharding_key(shell: Shell, tmp_path: Path) -> None:
    topic = shell.topic("ordered")
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(20)))
    shell("send", topic, "--lines", "--file", str(file), "--sharding-key", "customer-7")
    assert _bodies(shell, topic) == [str(number) for number in range(20)]


def test_progress_and_rate_are_printed_on_standard_error(shell: Shell) -> None:
    arguments = ("--lines", "--rate", "1000", "--progress")
    result = shell("send", shell.topic("rate"), *arguments, stdin="1\n2\n")
    assert result.stdout.startswith("sent 2 messages")


def test_messages_are_copied_from_topic_to_topic(shell: Shell) -> None:
    old, new = shell.topic("old"), shell.topic("new")
    lines = '{"body": "1", "tags": "a", "keys": ["k"]}\n{"body_base64": "/w=="}\n'
    shell("send", old, "--json-lines", stdin=lines)
    copied = shell("tail", old, "--from", "earliest", "--no-follow", "--json").stdout
    receipts = shell.json("send", new, "--json-lines", stdin=copied)
    assert [receipt["line"] for receipt in receipts] == [1, 2]
    found = shell.json("tail", new, "--from", "earliest", "--no-follow")
    assert {each.get("body", each.get("body_base64")) for each in found} == {"1", "/w=="}
    assert [each["tags"] for each in found if each["keys"]] == ["a"]


def test_lines_that_fail_are_named_and_skipped(shell: Shell) -> None:
    topic = shell.topic("skipped")
    lines = '{"body": "1"}\nnope\n{"body": "3"}\n'
    result = shell("send", topic, "--json-lines", "--on-error", "skip", stdin=lines, code=1)
    assert "downrange: line 2: invalid JSON line" in result.stderr
    assert sorted(_bodies(shell, topic)) == ["1", "3"]
    shell("send", topic, "--json-lines", stdin="nope\n" + lines, code=1)
    assert len(_bodies(shell, topic)) == 2


def test_tail_filters_by_tags_and_begins_at_the_given_offset(shell: Shell) -> None:
    topic = shell.topic("tagged", "--queues", "1", "--broker", "broker-a")
    for number, tag in enumerate(["a", "b", "a"]):
        shell("send", topic, str(number), "--tags", tag)
    assert _bodies(shell, topic, "--tags", "b || c") == ["1"]
    assert _bodies(shell, topic, "--from", "2") == ["2"]
    assert _bodies(shell, topic, "--from", "1h") == ["0", "1", "2"]
    assert _bodies(shell, topic, "--from", "latest") == []


def test_tail_goes_on_where_its_group_is(shell: Shell) -> None:
    topic = shell.topic("committed", "--queues", "1", "--broker", "broker-a")
    shell("send", topic, "--lines", stdin="1\n2\n3\n")
    group = ("--from", "committed", "--group", "audit", "--commit")
    assert _bodies(shell, topic, *group, "--max", "2") == ["1", "2"]
    assert _bodies(shell, topic, *group) == ["3"]


def test_pull_prints_the_next_offset(shell: Shell) -> None:
    topic = shell.topic("pulled", "--queues", "1", "--broker", "broker-a")
    shell("send", topic, "--lines", stdin="1\n2\n3\n")
    result = shell("pull", topic, "broker-a:0", "1", "--count", "1", "--body-only")
    assert result.stdout == "2\n"
    assert result.stderr == "found: 1 messages; next offset 2; the queue holds 0 to 3\n"
    assert [each["body"] for each in shell.json("pull", topic, "0", "1")] == ["2", "3"]
    shell("pull", topic, "7", "0", code=2)


def test_tail_follows_until_ctrl_c(cluster: Cluster, shell: Shell) -> None:
    topic = shell.topic("followed")
    environment = {**os.environ, **shell.environment}
    with subprocess.Popen(
        [*PYTHON, "tail", topic, "--from", "earliest", "--body-only"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            for body in ("1", "2"):
                shell("send", topic, body)
                assert process.stdout.readline() == f"{body}\n"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=DEADLINE) == ("", "")
        finally:
            process.kill()
    assert process.returncode == 130


def test_tail_goes_on_when_a_broker_comes_back() -> None:
    with Cluster() as own:
        shell = Shell(own.name_server)
        topic = shell.topic("patient", "--queues", "1")
        with subprocess.Popen(
            [*PYTHON, "tail", topic, "--from", "earliest", "--body-only"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **shell.environment},
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                shell("send", topic, "1")
                assert process.stdout.readline() == "1\n"
                own.stop_broker(0)
                assert "cannot be read, trying again" in process.stderr.readline()
                own.restart_broker(0)
                shell("send", topic, "2")
                assert process.stdout.readline() == "2\n"
            finally:
                process.kill()


def test_tail_ends_at_the_given_offset_or_time(shell: Shell) -> None:
    topic = shell.topic("ranged", "--queues", "1", "--broker", "broker-a")
    stored = []
    for number in range(4):
        shell("send", topic, str(number))
        time.sleep(0.01)  # a store time of its own
        stored.append(shell.json("pull", topic, "0", str(number))[0]["stored_at"])
    tail = ("tail", topic, "--from", "earliest", "--body-only")
    assert shell(*tail, "--to", "2").stdout == "0\n1\n"
    assert shell(*tail, "--from", "1", "--to", "3").stdout == "1\n2\n"
    assert shell(*tail, "--to", "latest").stdout == "0\n1\n2\n3\n"
    assert shell(*tail, "--to", stored[3]).stdout == "0\n1\n2\n"
    assert shell(*tail, "--to", "1h").stdout == ""
    assert shell(*tail, "--to", "99", "--no-follow").stdout == "0\n1\n2\n3\n"
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    assert shell(*tail, "--to", soon).stdout == "0\n1\n2\n3\n"
    commit = ("--group", "g", "--commit")
    assert "exclude each other" in shell(*tail, "--to", "2", *commit, code=2).stderr


def test_tail_without_permission_prints_one_line(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(
        '[accounts.administrator]\nsecret_key = "a long secret"\nadmin = true\n'
        '[accounts.auditor]\nsecret_key = "another secret"\ntopics = { guarded = "SUB" }\n'
    )
    with Cluster(access=accounts) as guarded:
        shell = Shell(guarded.name_server)
        shell.environment["DOWNRANGE_ACCESS_KEY"] = "administrator"
        shell.environment["DOWNRANGE_SECRET_KEY"] = "a long secret"
        shell("topic", "create", "guarded", "--queues", "8")
        shell("send", "guarded", "x")
        signed = ("--access-key", "auditor", "--secret-key", "another secret")
        for follow in ((), ("--no-follow",)):
            result = _process(shell, "tail", "guarded", "--from", "0", *signed, *follow)
            assert result.returncode == 4
            assert result.stdout == ""
            (line,) = result.stderr.splitlines()
            assert "account 'auditor' has no SUB permission for group 'TOOLS_CONSUMER'" in line


# ---- topics --------------------------------------------------------------------------------------


def test_a_topic_is_created_changed_shown_and_deleted(shell: Shell) -> None:
    created = shell("topic", "create", "shop", "--queues", "3").stdout
    assert "broker-a, broker-b" in created
    (changed,) = shell.json("topic", "update", "shop", "--write-queues", "2", "--permission", "r")
    assert {each["permission"] for each in changed} == {"r"}
    (shown,) = shell.json("topic", "show", "shop")
    assert [each["write_queues"] for each in shown["brokers"]] == [2, 2]
    assert [each["read_queues"] for each in shown["brokers"]] == [3, 3]
    assert {"topic": "shop", "kind": "normal"} in shell.json("topic", "list")
    assert "shop" in shell("topic", "list").stdout
    assert "TBW102" in shell("topic", "list", "--all").stdout
    shell("topic", "delete", "shop", stdin="n\n", code=1)
    shell("topic", "delete", "shop", stdin="y\n")
    shell("topic", "show", "shop", code=5)
    shell("topic", "create", "shop")
    deleted = shell.json("topic", "delete", "shop", "--yes")
    assert deleted == [{"deleted": "shop", "brokers": ["broker-a", "broker-b"]}]
    assert shell("topic", "delete", "shop", "--yes", code=5).stderr == (
        f"downrange: topic 'shop' does not exist at {shell.environment['NAMESRV_ADDR']}\n"
    )


def test_a_topic_that_exists_is_not_created_again(shell: Shell) -> None:
    topic = shell.topic("twice", "--queues", "2")
    result = shell("topic", "create", topic, code=1)
    assert "downrange topic update twice" in result.stderr
    shell("topic", "create", topic, "--queues", "5", "--if-missing")
    (shown,) = shell.json("topic", "show", topic)
    assert {each["write_queues"] for each in shown["brokers"]} == {2}


def test_a_topic_is_shown_with_what_its_queues_hold(shell: Shell) -> None:
    topic = shell.topic("held", "--queues", "1")
    shell("send", topic, "--lines", stdin="1\n2\n3\n")
    (shown,) = shell.json("topic", "show", topic)
    assert shown["messages"] == 3
    assert sum(queue["max_offset"] for queue in shown["queues"]) == 3
    table = shell("topic", "show", topic).stdout
    lines = table.splitlines()
    assert lines[0].split("  ")[0] == "topic"
    assert lines[3] == ""
    assert lines[4].split() == ["broker", "queue", "first", "next", "messages", "last", "stored"]
    assert [line.split()[0] for line in lines[1:3]] == ["held", "held"]
    assert [line.split()[0] for line in lines[5:]] == ["broker-a", "broker-b"]
    assert table.isascii()
    for queue in shown["queues"]:
        stored_at = queue["last_stored_at"]
        assert stored_at is None or re.fullmatch(r"\S{10}T\S{12}Z", stored_at)


def test_a_namespace_is_put_on_and_taken_off(shell: Shell) -> None:
    shell("topic", "create", "inner", "--namespace", "ns")
    shell("send", "inner", "x", "--namespace", "ns")
    names = [each["topic"] for each in shell.json("topic", "list")]
    assert "ns%inner" in names
    names = [each["topic"] for each in shell.json("topic", "list", "--namespace", "ns")]
    assert "inner" in names


# ---- errors -------------------------------------------------------------------------------------


def test_no_server_is_a_line_with_the_next_step_and_3(shell: Shell) -> None:
    for arguments in (["send", "t", "x"], ["tail", "t"], ["topic", "list"]):
        result = shell(*arguments, "--name-server", "127.0.0.1:1", code=3)
        assert "connection refused" in result.stderr
        assert "downrange doctor 127.0.0.1:1" in result.stderr


def test_what_is_not_there_is_5(shell: Shell) -> None:
    topic = shell.topic("empty")
    assert "'nowhere' has no route" in shell("tail", "nowhere", code=5).stderr
    assert "has the key 'k'" in shell("message", "query", topic, "--key", "k", code=5).stderr
    missing = "0A0000010007000000010000000A0001"
    assert missing in shell("message", "show", topic, missing, code=5).stderr


def test_a_topic_that_cannot_be_written_to_is_5(shell: Shell) -> None:
    topic = shell.topic("locked")
    shell("topic", "update", topic, "--permission", "r")
    result = shell("send", topic, "x", code=5)
    assert "Check its permission" in result.stderr


def test_a_refusal_of_a_broker_is_4(cluster: Cluster, shell: Shell) -> None:
    topic = shell.topic("refused")
    cluster.intercept(RequestCode.SEND_MESSAGE_V2, refuse(ResponseCode.NO_PERMISSION, "not you"))
    try:
        assert "not you" in shell("send", topic, "x", code=4).stderr
    finally:
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, None)


def test_tls_is_spoken_with_the_authority_that_is_named(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    with Cluster(
        tls=server_context(files.certificate, files.key),
        client_tls=client_context(ca=files.authority, is_name_checked=False),
        listener=ListenerOptions(tls_mode="enforcing"),
    ) as guarded:
        shell = Shell(guarded.name_server)
        ours = ("--ca", str(files.authority))
        shell("send", "orders", "x", *ours)
        assert "no problems found" in shell("doctor", *ours).stdout
        result = shell("send", "orders", "x", "--tls", code=3)
        assert "file with --ca" in result.stderr
        shown = shell("doctor", "--tls", code=3).stdout
        assert "FAIL  tls" in shown
        assert "file with --ca" in shown
        assert "try with TLS" in shell("doctor", code=3).stdout


# ---- doctor --------------------------------------------------------------------------------------


def test_the_doctor_finds_nothing_wrong_with_a_healthy_cluster(shell: Shell) -> None:
    topic = shell.topic("healthy")
    assert shell("doctor", "--topic", topic).stdout.endswith("\nno problems found\n")
    findings = shell.json("doctor", "--topic", topic)
    assert all(finding["is_ok"] for finding in findings)
    assert [each["name"] for each in findings].count("answer") == 3
    assert findings[0]["name"] == "install"
    assert findings[0]["text"].endswith(path_in_use())


def test_the_doctor_names_what_is_wrong_and_the_next_step(shell: Shell) -> None:
    shown = shell("doctor", "127.0.0.1:1", code=3).stdout
    assert "FAIL  tcp" in shown
    assert "no server listens there" in shown
    assert "downrange topic create gone" in shell("doctor", "--topic", "gone", code=5).stdout


def test_the_doctor_recognizes_a_broker_in_the_place_of_a_name_server(
    cluster: Cluster, shell: Shell
) -> None:
    assert "not a name server" in shell("doctor", cluster.brokers[0], code=3).stdout
    for arguments in (["topic", "list"], ["send", "t", "x"], ["tail", "t"]):
        result = shell(*arguments, "-n", cluster.brokers[0], code=1)
        assert f"{cluster.brokers[0]} is not a name server" in result.stderr
        assert "Give the address of the name server" in result.stderr


def test_the_doctor_reports_credentials_that_are_refused(cluster: Cluster, shell: Shell) -> None:
    cluster.intercept(RequestCode.HEART_BEAT, refuse(ResponseCode.NO_PERMISSION, "who are you"))
    try:
        shown = shell("doctor", code=4).stdout
        assert "give an access key" in shown
    finally:
        cluster.intercept(RequestCode.HEART_BEAT, None)
