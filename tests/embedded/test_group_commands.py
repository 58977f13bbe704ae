"""The commands for groups, dead letters, clusters and brokers, with an embedded cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from downrange import Admin, DeadMessage, Message, Producer
from downrange.cli import watching
from downrange.embedded import Cluster, cut, refuse
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import SendBackRequest
from tests.apache import probe
from tests.contract.raw_members import RawMember
from tests.embedded.test_commands import DEADLINE, PYTHON, Shell
from tests.support.options import PATIENT_CLIENT, PATIENT_PRODUCER
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from downrange.model import ReceivedMessage


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


@pytest.fixture
def shell(cluster: Cluster) -> Shell:
    return Shell(cluster.name_server)


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.name_server, client_options=PATIENT_CLIENT) as started:
        yield started


def _fill(cluster: Cluster, topic: str, each: int = 5) -> None:
    """Create a topic with a queue on each broker, and send messages to each."""
    with Producer(
        cluster.name_server,
        group="filler",
        options=PATIENT_PRODUCER,
        client_options=PATIENT_CLIENT,
    ) as producer:
        producer.create_topic(topic, queues=1)
        for queue in producer.publish_queues(topic):
            for number in range(each):
                producer.send(
                    Message(topic, f"{queue.broker} {number}", keys=[f"k{number}"]), queue=queue
                )


def _offsets(admin: Admin, group: str, topic: str) -> list[int | None]:
    return [admin.group_offset(group, queue) for queue in admin.read_queues(topic)]


@pytest.mark.parametrize("flags", [(), ("--names",)])
def test_a_broker_that_is_down_is_named_and_the_other_groups_are_listed(
    flags: tuple[str, ...],
) -> None:
    with Cluster(brokers=2) as cluster:
        shell = Shell(cluster.name_server)
        shell("group", "create", "crew")
        away = cluster.brokers[1]
        cluster.intercept(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, cut(), broker=1)
        found = shell("group", "list", "--json", *flags)
    assert [json.loads(line)["group"] for line in found.stdout.splitlines()] == ["crew"]
    assert f"broker broker-b at {away} did not answer" in found.stderr


def test_a_group_is_created_shown_changed_and_deleted(shell: Shell) -> None:
    (created,) = shell.json("group", "create", "crew", "--retries", "3", "--no-broadcast")
    assert [(each["retries"], each["can_broadcast"]) for each in created] == [(3, False)] * 2
    refused = shell("group", "create", "crew", code=1)
    assert "change it with `downrange group update crew`" in refused.stderr
    shell("group", "create", "crew", "--if-missing")
    changed = shell("group", "update", "crew", "--disabled", "--retry-queues", "2")
    assert changed.stdout.splitlines()[1].split() == [
        *("crew", "broker-a", "no", "no", "3", "2", "no"),
    ]
    (shown,) = shell.json("group", "show", "crew")
    assert (shown["lag"], shown["members"], shown["topics"]) == (0, [], [])
    assert "0 messages behind" in shell("group", "show", "crew").stdout
    listed = [each["group"] for each in shell.json("group", "list")]
    assert "crew" in listed
    assert "TOOLS_CONSUMER" not in listed
    assert "TOOLS_CONSUMER" in shell("group", "list", "--all", "--names").stdout
    assert shell("group", "delete", "crew", stdin="n\n", code=1).stdout == ""
    shell("group", "delete", "crew", "--with-topics", stdin="y\n")
    shell("group", "create", "crew")
    deleted = shell.json("group", "delete", "crew", "--with-topics", "--yes")
    assert deleted == [{"deleted": "crew", "brokers": ["broker-a", "broker-b"]}]
    for command in ("show", "lag", "members", "delete"):
        missing = shell("group", command, "crew", code=5)
        assert "group 'crew' does not exist on" in missing.stderr


def test_a_change_that_one_broker_refuses_names_both_brokers(
    shell: Shell, cluster: Cluster
) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    cluster.intercept(code, refuse(ResponseCode.SYSTEM_ERROR, "disk full"), broker=1)
    try:
        failed = shell("group", "create", "halves", code=1).stderr
    finally:
        cluster.intercept(code, None)
    assert "create group 'halves': done on broker-a, but not on broker-b:" in failed
    assert f"broker-b {cluster.brokers[1]}: ServerFailure, code 1: disk full" in failed
    (settings,) = shell.json("group", "update", "halves", "--retries", "2")
    assert [each["brokers"] for each in settings] == [["broker-a"], ["broker-b"]]


def test_lag_is_shown_once_or_watched(shell: Shell, cluster: Cluster, admin: Admin) -> None:
    _fill(cluster, "lagging")
    admin.create_group("slow")
    queue = admin.read_queues("lagging")[0]
    admin.set_group_offset("slow", queue, 2)
    (found,) = shell.json("group", "lag", "slow", "lagging")
    assert [(each["committed"], each["lag"]) for each in found["queues"]] == [(2, 3), (0, 5)]
    assert (found["lag"], found["age_seconds"] < 600) == (8, True)
    lines = shell("group", "lag", "slow", "lagging").stdout.splitlines()
    assert lines[0].startswith("slow: 8 messages behind, oldest ")
    (shown,) = shell.json("group", "show", "slow")
    assert (shown["lag"], shown["topics"]) == (3, ["lagging"])
    assert "lagging" in shell("group", "show", "slow").stdout
    (reader,) = shell.json("topic", "groups", "lagging")
    assert (reader["group"], reader["lag"]) == ("slow", 8)
    assert shell("topic", "groups", "lagging").stdout.splitlines()[1].split()[:2] == ["slow", "8"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_watched_lag_is_a_line_per_reading_and_ends_with_ctrl_c(
    shell: Shell, cluster: Cluster, admin: Admin, form: str
) -> None:
    topic = f"watched-{form}"
    _fill(cluster, topic, each=1)
    admin.create_group("watcher")
    admin.set_group_offset("watcher", admin.read_queues(topic)[0], 1)
    command = [*PYTHON, "group", "lag", "watcher", topic, "--watch", "0.05"]
    command += ["--json"] if form == "json" else []
    environment = {**os.environ, **shell.environment}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=DEADLINE)[1]
    assert (process.returncode, errors) == (130, "")
    if form == "json":
        assert [json.loads(line)["lag"] for line in lines] == [1, 1, 1]
    else:
        assert all(line.startswith("watcher: 1 messages behind") for line in lines)


def test_watched_figures_are_drawn_in_place_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from downrange.cli import output
    from downrange.errors import ConnectFailed

    screen = Console(force_terminal=True, width=60)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(output, "console", lambda: screen)
    readings: list[Any] = ["one", "two", ConnectFailed("a:1", "refused"), "four"]

    def read() -> str:
        if not readings:
            raise KeyboardInterrupt
        value = readings.pop(0)
        if isinstance(value, Exception):
            raise value
        return str(value)

    with pytest.raises(KeyboardInterrupt):
        watching.show_or_watch(0.001, read, str, print)
    shown = capsys.readouterr()
    assert all(word in shown.out for word in ("one", "two", "four"))
    assert "a:1" in shown.err


def assert_nobody_was_asked(result: Result) -> None:
    """Check a command that asks for confirmation, and had an empty standard input."""
    text = " ".join(result.stderr.split())
    assert text.endswith(
        "Error: the question has no answer: standard input is empty and not a terminal; give --yes"
    )
    assert "Aborted" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("group", "reset", "asked", "asking", "--to", "latest", "--apply"),
        ("group", "skip", "asked", "asking", "--apply"),
        ("group", "clone", "asked-before", "asked", "asking", "--apply"),
        ("group", "delete", "asked"),
        ("topic", "delete", "asking"),
        ("broker", "set", "fileReservedTime=48"),
        ("broker", "clean", "queues"),
        ("broker", "wipe-writes", "broker-a"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_that_nobody_can_confirm_changes_nothing_and_says_to_give_yes(
    shell: Shell, cluster: Cluster, admin: Admin, arguments: tuple[str, ...]
) -> None:
    if "asking" not in [each.name for each in admin.list_topics()]:
        _fill(cluster, "asking", each=1)
        for name in ("asked", "asked-before"):
            admin.create_group(name)
        shell("group", "reset", "asked-before", "asking", "--to", "earliest", "--apply", "--yes")
    assert_nobody_was_asked(shell(*arguments, code=2))
    assert _offsets(admin, "asked", "asking") == [None, None]
    shell("topic", "show", "asking")


def test_offsets_are_previewed_applied_exported_and_restored(
    shell: Shell, cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    _fill(cluster, "moved")
    for name in ("mover", "copier"):
        admin.create_group(name)
    reset = ("group", "reset", "mover", "moved")
    preview = shell(*reset, "--to", "3")
    assert "would be reset in topic moved" in preview.stdout
    assert "nothing was changed" in preview.stderr
    assert _offsets(admin, "mover", "moved") == [None, None]
    (done,) = shell.json(*reset, "--to", "3", "--apply", "--yes")
    assert (done["is_done"], done["skipped"]) == (True, 6)
    assert _offsets(admin, "mover", "moved") == [3, 3]
    saved = tmp_path / "offsets.jsonl"
    exported = shell("group", "export", "mover", "moved").stdout
    assert shell("group", "export", "mover", "moved", "--json").stdout == exported
    saved.write_text(exported)
    shell(*reset, "--shift=-2", "--apply", "--queue", "broker-b:0", stdin="y\n")
    assert _offsets(admin, "mover", "moved") == [3, 1]
    shell(*reset, "--to", "latest", "--apply", stdin="n\n", code=1)
    assert _offsets(admin, "mover", "moved") == [3, 1]
    shell(*reset, "--to", "1d", "--apply", "--yes")
    assert _offsets(admin, "mover", "moved") == [0, 0]
    shell(*reset, "--file", str(saved), "--apply", "--yes")
    assert _offsets(admin, "mover", "moved") == [3, 3]
    assert "cut to what the queue holds" in shell(*reset, "--to", "99").stdout
    shell("group", "clone", "mover", "copier", "--apply", "--yes")
    assert _offsets(admin, "copier", "moved") == [3, 3]
    shell("group", "skip", "copier", "--apply", "--yes")
    assert _offsets(admin, "copier", "moved") == [5, 5]
    (planned,) = shell.json("group", "skip", "mover", "moved")
    assert (planned["is_done"], planned["skipped"]) == (False, 4)
    shell(*reset, "--to", "earliest", "--apply", "--yes")
    assert _offsets(admin, "mover", "moved") == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("reset", "lost", "t"), "give one of --to, --shift and --file", 2),
        (("reset", "lost", "t", "--to", "1", "--shift", "2"), "give one of", 2),
        (("reset", "lost", "t", "--to", "soon"), "earliest, latest, an offset, a time", 2),
        (("reset", "lost", "t", "--to", "latest"), "group 'lost' does not exist", 5),
        (("reset", "TOOLS_CONSUMER", "no-topic", "--to", "latest"), "no-topic", 5),
        (("clone", "lost", "found"), "group 'found' does not exist", 5),
        (("skip", "lost"), "group 'lost' does not exist", 5),
        (("export", "lost", "t"), "group 'lost' does not exist", 5),
        (("runinfo", "lost", "nobody"), "`downrange group members lost` shows the", 1),
    ],
)
def test_wrong_use_is_explained(
    shell: Shell, arguments: tuple[str, ...], words: str, code: int
) -> None:
    assert words in shell("group", *arguments, code=code).stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--file has no offset"),
        ("5\n", "--file line 1: not an object with broker"),
        ('\n{"broker": "broker-z", "queue": 0, "offset": 1}\n', "line 2: the topic has no queue 0"),
        ('{"broker": "broker-a", "queue": 0, "offset": null}\n', "--file has no offset"),
    ],
)
def test_a_wrong_file_of_offsets_is_explained(
    shell: Shell, tmp_path: Path, text: str, words: str
) -> None:
    shell("topic", "create", "filed", "--queues", "1", "--if-missing")
    file = tmp_path / "offsets"
    file.write_text(text)
    refused = shell("group", "reset", "any", "filed", "--file", str(file), code=2)
    assert words in " ".join(refused.stderr.split())


def test_members_are_listed_compared_and_used(shell: Shell, cluster: Cluster, admin: Admin) -> None:
    _fill(cluster, "worked")
    admin.create_group("workers")
    assert "0 members" in shell("group", "members", "workers").stdout
    queue = admin.read_queues("worked")[0]
    first = RawMember(cluster.brokers, "workers", "one@1", {"worked": "a"}, [queue])
    second = RawMember(cluster.brokers, "workers", "two@2", {"worked": "b"})
    with first, second:
        (found,) = shell.json("group", "members", "workers")
        assert [member["client_id"] for member in found["members"]] == ["one@1", "two@2"]
        assert found["members"][0]["brokers"] == ["broker-a", "broker-b"]
        differing = shell("group", "members", "workers", "--subscriptions", code=1)
        assert "one@1 reads 'a', two@2 reads 'b'" in differing.stderr
        (lag,) = shell.json("group", "lag", "workers", "worked", "--owners")
        assert [each["owner"] for each in lag["queues"]] == ["one@1", None]
        (state,) = shell.json("group", "runinfo", "workers", "one@1", "--stack")
        assert (state["queues"][0]["buffered"], state["stack"]) == (3, "main: waits")
        assert "main: waits" in shell("group", "runinfo", "workers", "one@1", "--stack").stdout
        (message,) = shell.json("tail", "worked", "--from", "earliest", "--max", "1")
        one = ("group", "consume-one", "workers", "two@2", "worked", message["message_id"])
        (result,) = shell.json(*one)
        assert (result["result"], result["is_consumed"]) == ("CR_SUCCESS", True)
        assert "CR_SUCCESS" in shell(*one).stdout
        first.direct_result = "CR_LATER"
        shell(*one[:3], "one@1", *one[4:], code=1)
        (given,) = shell.json("group", "retry", "workers", "worked", message["message_id"])
        retried = shell.json("tail", "%RETRY%workers", "--from", "earliest", "--max", "1")
        assert retried[0]["message_id"] == given["message_id"]
        again = shell("group", "retry", "workers", "worked", message["message_id"])
        assert "message_id" in again.stdout
        question = shell("group", "delete", "workers", stdin="n\n", code=1)
        text = "group 'workers' and its offsets on broker-a, broker-b? It has 2 connected members."
        assert text in question.stderr
    with Producer(cluster.name_server, group="senders") as producer:
        producer.send(Message("worked", b"x"))
        wait_until(lambda: len(shell.json("group", "producers", "senders")[0]) == 1)
        assert "client id" in shell("group", "producers", "senders").stdout
        assert "senders" in {each["group"] for each in shell.json("group", "producers")[0]}


def _kill(cluster: Cluster, group: str, message: ReceivedMessage) -> None:
    """Make a message a dead letter, as a consumer does that gives up."""
    header = SendBackRequest(
        offset=message.log_offset,
        group=group,
        delay_level=-1,
        origin_topic=message.topic,
        unit_mode=False,
    )
    address = cluster.brokers[("broker-a", "broker-b").index(message.queue.broker)]
    answer = probe.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header.to_fields())
    assert answer.code == 0, answer


def test_dead_letters_are_listed_exported_and_sent_again(
    shell: Shell, cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    _fill(cluster, "mail", each=2)
    admin.create_group("post")
    assert shell.json("dlq", "list", "post") == []
    for number in range(2):
        for message in admin.query_messages("mail", f"k{number}"):
            _kill(cluster, "post", message)
    listed = shell.json("dlq", "list", "post")
    assert [each["body"] for each in listed] == [
        *("broker-a 0", "broker-a 1", "broker-b 0", "broker-b 1"),
    ]
    assert {each["origin_topic"] for each in listed} == {"mail"}
    some = shell("dlq", "list", "post", "--max", "3")
    assert len(some.stdout.splitlines()) == 4
    assert "stopped after 3" in some.stderr
    first = listed[0]["offset_id"]
    assert shell.json("dlq", "show", "post", first)[0]["keys"] == ["k0"]
    assert "broker-a 0" in shell("dlq", "show", "post", listed[0]["message_id"]).stdout
    assert "has no dead letter X" in shell("dlq", "show", "post", "X", code=5).stderr
    assert shell.json("dlq", "list", "post", "--end", "1h") == []

    file = tmp_path / "letters.jsonl"
    shell("dlq", "export", "post", "--output", str(file), "--begin", "1h", "--max", "2")
    assert len(file.read_text().splitlines()) == 2
    assert len(shell("dlq", "export", "post").stdout.splitlines()) == 4
    assert len(shell.json("dlq", "export", "post")) == 4
    refused = shell("dlq", "export", "post", "--format", "csv", "--json", code=2)
    assert "--json is the form jsonl" in refused.stderr
    nowhere = str(tmp_path / "nowhere" / "letters.jsonl")
    failed = shell("dlq", "export", "post", "--output", nowhere, code=2)
    assert f"--output {nowhere} cannot be written: No such file" in failed.stderr
    dry = shell("dlq", "resend", "post", "--dry-run")
    assert "4 dead letters of 'post'; nothing was sent" in dry.stderr
    shell("dlq", "resend", "post", "--id", first, stdin="n\n", code=1)
    assert_nobody_was_asked(shell("dlq", "resend", "post", "--id", first, code=2))
    sent = shell("dlq", "resend", "post", "--id", first, "--rate", "1000", stdin="y\n")
    assert "1 sent, 0 sent by an earlier run, 0 failed" in sent.stderr
    results = shell.json("dlq", "resend", "post", "--file", str(file), "--yes")
    assert [each["outcome"] for each in results] == ["skipped", "sent"]
    everything = shell("dlq", "resend", "post", "--yes")
    assert "2 sent, 2 sent by an earlier run, 0 failed" in everything.stderr
    again = shell("dlq", "resend", "post", "--yes", "--again", "--max", "1", "--begin", "1h")
    assert "1 sent, 0 sent" in again.stderr
    retried = shell("dlq", "resend", "post", "--yes", "--to", "retry")
    assert "4 sent, 0 sent by an earlier run, 0 failed" in retried.stderr
    shell("topic", "delete", "mail", "--yes")
    failed = shell("dlq", "resend", "post", "--yes", code=1)
    assert "0 sent, 0 sent by an earlier run, 4 failed" in failed.stderr
    assert f"{first}: topic 'mail' has no route" in failed.stderr
    file.write_text("x\n")
    wrong = shell("dlq", "resend", "post", "--file", str(file), code=2)
    assert "line 1 is not a line of `dlq export`" in " ".join(wrong.stderr.split())
    file.write_text("\n")
    assert (
        "has no dead letter" in shell("dlq", "resend", "post", "--file", str(file), code=2).stderr
    )
    assert "does not exist" in shell("dlq", "list", "no-such-group", code=5).stderr


def test_a_dead_letter_that_cannot_be_decompressed_is_listed_and_exported(
    shell: Shell, cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    _fill(cluster, "packed", each=1)
    admin.create_group("unpackers")
    first = admin.query_messages("packed", "k0")[0]
    _kill(cluster, "unpackers", first)
    broken = replace(first, body=b"not zlib", compression="zlib")
    letter = DeadMessage(
        group="unpackers", message=broken, topic="%DLQ%unpackers", origin_id=first.offset_id
    )
    (sent,) = admin.resend_dead_letters([letter], skip_resent=False)
    assert sent.outcome == "sent", sent
    problem = "ZLIB body: cannot be decompressed"
    letters = shell.json("dlq", "list", "unpackers")
    assert sorted("body_problem" in each for each in letters) == [False, True]
    (found,) = (each for each in letters if "body_problem" in each)
    assert found["body_problem"].startswith(problem)
    assert problem in shell("dlq", "show", "unpackers", found["offset_id"]).stdout
    for arguments in (("list",), ("export",), ("export", "--format", "csv")):
        assert problem[:10] in shell("dlq", arguments[0], "unpackers", *arguments[1:]).stdout


def test_a_broker_that_refuses_its_figures_does_not_hide_the_others(
    shell: Shell, cluster: Cluster
) -> None:
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    cluster.intercept(code, refuse(ResponseCode.SYSTEM_ERROR, "no figures yet"), broker=1)
    try:
        first, second = shell.json("cluster", "show")
        table = shell("cluster", "show").stdout
    finally:
        cluster.intercept(code, None)
    assert "problem" not in first
    assert first["stored_today"] >= 0
    assert (second["broker"], second["address"]) == ("broker-b", cluster.brokers[1])
    assert "no figures yet" in second["problem"]
    assert "no figures yet" in table
    assert "5.5.0" in table
    assert "problem" not in shell("cluster", "show").stdout


def test_clusters_and_brokers_are_shown_and_changed(shell: Shell, cluster: Cluster) -> None:
    (found,) = shell.json("cluster", "list")
    assert found["clusters"] == {"DefaultCluster": ["broker-a", "broker-b"]}
    assert cluster.brokers[0] in shell("cluster", "list").stdout
    brokers = shell.json("cluster", "show")
    assert [each["broker"] for each in brokers] == ["broker-a", "broker-b"]
    assert all(0 <= each["disk_ratio"] <= 1 for each in brokers)
    assert "5.5.0" in shell("cluster", "show", "--cluster", "DefaultCluster").stdout
    wrong = shell("cluster", "show", "--cluster", "no-such-cluster", code=2).stderr
    assert "cluster='no-such-cluster' is not among ['DefaultCluster']" in " ".join(wrong.split())
    (figures,) = shell.json("broker", "show", "broker-a")
    assert "putTps" in figures
    assert "putTps" in shell("broker", "show", "broker-b").stdout
    name = "autoCreateTopicEnable"
    (settings,) = shell.json("broker", "settings", "--name", name)
    old = settings["broker-a"][name]
    new = "false" if old == "true" else "true"
    (changes,) = shell.json("broker", "set", f"{name}={new}", "--broker", "broker-a", "--yes")
    assert [(each["old"], each["new"]) for each in changes] == [(old, new)]
    shell("broker", "set", f"{name}={old}", stdin="y\n")
    assert shell("broker", "settings", "-k", "autocreatetopic").stdout.count(old) == 2
    shell("broker", "set", f"{name}={new}", stdin="n\n", code=1)
    assert "'x' is not NAME=VALUE" in shell("broker", "set", "x", code=2).stderr
    assert shell.json("broker", "clean", "queues", "--yes")[0]["brokers"] == [
        *("broker-a", "broker-b"),
    ]
    assert "broker-b" in shell("broker", "clean", "log", "--broker", "broker-b", stdin="y\n").stdout
    (wiped,) = shell.json("broker", "wipe-writes", "broker-b", "--yes")
    assert (wiped["state"], wiped["topics"] > 0) == ("read-only", True)
    assert "writable" in shell("broker", "restore-writes", "broker-b").stdout
    assert "not among" in shell("broker", "show", "broker-z", code=2).stderr
    shell("broker", "no-such-command", code=2)
    helped = shell("broker", "--help").stdout
    assert "--nameserver" in helped
    assert "wipe-writes" in helped


def test_the_use_of_a_topic_is_shown(shell: Shell, cluster: Cluster) -> None:
    _fill(cluster, "used", each=2)
    (route,) = shell.json("topic", "route", "used")
    assert [part["addresses"] for part in route["brokers"]] == [
        {"0": address} for address in cluster.brokers
    ]
    assert f"0={cluster.brokers[1]}" in shell("topic", "route", "used").stdout
    (ranges,) = shell.json("topic", "ranges", "used")
    assert [(each["first"], each["end"]) for each in ranges] == [(0, 2)] * 2
    assert all(each["first_stored_at"] <= each["last_stored_at"] for each in ranges)
    assert "first stored" in shell("topic", "ranges", "used").stdout
    (traffic,) = shell.json("topic", "traffic", "used")
    assert [(each["topic"], each["group"]) for each in traffic] == [("used", None)]
    assert "(sent)" in shell("topic", "traffic", "used").stdout
