"""The client commands do the same on every kind of server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from downrange import Admin, ClientOptions
from downrange.cli import app
from tests.apache.fixtures import ACCOUNTS
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import only_sync
from tests.contract.raw_members import RawMember

if TYPE_CHECKING:
    from pathlib import Path

    from tests.apache.fixtures import UniqueName
    from tests.contract.servers import Server

pytestmark = only_sync
USER = ACCOUNTS.others[0]
#: Messages that a group has not read, far more than the groups of other tests.
LAG = 1000


def _run(
    name_server: str,
    *arguments: str,
    stdin: str = "",
    code: int = 0,
    env: dict[str, str] | None = None,
) -> str:
    environment = {"NAMESRV_ADDR": name_server, "COLUMNS": "200", **(env or {})}
    words = [*arguments, "--timeout", f"{LONG_TIMEOUT:g}"]
    result = CliRunner().invoke(app, words, input=stdin, env=environment)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 or result.stdout else result.stderr


def _json(name_server: str, *arguments: str, stdin: str = "") -> list[Any]:
    lines = _run(name_server, *arguments, "--json", stdin=stdin).splitlines()
    return [json.loads(line) for line in lines]


def test_messages_are_sent_and_found_again(server: Server) -> None:
    at, topic = server.name_server, server.topic()
    sent = ("send", topic, "42 apples", "--tags", "new", "--key", "o-1", "--property", "color=red")
    (receipt,) = _json(at, *sent)
    (found,) = _json(at, "tail", topic, "--from", "earliest", "--max", "1")
    assert (found["message_id"], found["body"]) == (receipt["message_id"], "42 apples")
    assert (found["tags"], found["keys"], found["properties"]["color"]) == ("new", ["o-1"], "red")
    (shown,) = _json(at, "message", "show", topic, receipt["offset_id"])
    assert shown["offset"] == receipt["offset"]
    queue = f"{receipt['broker']}:{receipt['queue']}"
    (pulled,) = _json(at, "pull", topic, queue, str(receipt["offset"]))
    assert pulled["message_id"] == receipt["message_id"]


def test_lines_arrive_in_batches_and_are_all_read(server: Server) -> None:
    at, topic = server.name_server, server.topic()
    lines = "".join(f"{number}\n" for number in range(25))
    receipts = _json(at, "send", topic, "--lines", "--batch", "10", stdin=lines)
    assert [receipt["line"] for receipt in receipts] == list(range(1, 26))
    server.read_all(topic, 25)  # they may become readable a moment later
    arguments = ("tail", topic, "--from", "earliest", "--no-follow")
    found = {each["message_id"]: each for each in _json(at, *arguments)}
    assert found.keys() == {receipt["message_id"] for receipt in receipts}
    for receipt in receipts:
        message = found[receipt["message_id"]]
        assert (message["offset"], message["offset_id"]) == (
            receipt["offset"],
            receipt["offset_id"],
        )


def test_a_topic_is_created_changed_shown_and_deleted(
    server: Server, unique_name: UniqueName
) -> None:
    at, topic = server.name_server, unique_name("topic")
    _run(at, "topic", "create", topic, "--queues", "2")
    _run(at, "topic", "create", topic, code=1)
    _run(at, "topic", "update", topic, "--read-queues", "3")
    _run(at, "send", topic, "--lines", stdin="1\n2\n3\n")
    server.read_all(topic, 3)
    (shown,) = _json(at, "topic", "show", topic)
    assert [(each["read_queues"], each["write_queues"]) for each in shown["brokers"]] == [(3, 2)]
    assert shown["messages"] == 3
    assert topic in _run(at, "topic", "list")
    _run(at, "topic", "delete", topic, "--yes")
    _run(at, "topic", "show", topic, code=5)


def test_the_doctor_finds_nothing_wrong(server: Server) -> None:
    # Other tests leave dead letters and groups that are behind on a shared server.
    findings = _json(server.name_server, "doctor", "--network", "--topic", server.topic())
    assert all(finding["is_ok"] for finding in findings), findings
    assert {"tcp", "answer", "brokers", "route"} <= {finding["name"] for finding in findings}
    environment = {"NAMESRV_ADDR": server.name_server}
    words = ["doctor", "--interval", "0", "--json", "--timeout", f"{LONG_TIMEOUT:g}"]
    result = CliRunner().invoke(app, words, env=environment)
    examined = [json.loads(line) for line in result.stdout.splitlines()]
    clocks = [finding for finding in examined if finding["name"] == "clock"]
    assert len(clocks) == len(server.brokers)
    assert all(finding["is_ok"] for finding in clocks), clocks
    assert {"disk", "groups"} <= {finding["name"] for finding in examined}


def test_members_with_different_subscriptions_are_found_and_a_dump_has_them(
    server: Server, unique_name: UniqueName, tmp_path: Path
) -> None:
    """The group has a large lag, so that it is examined also on a server with many groups."""
    at, topic, group = server.name_server, server.topic(queues=1), unique_name("group")
    _run(at, "send", topic, "a secret body", "--key", "a-secret-key")
    _run(at, "send", topic, "--lines", "--batch", "500", stdin="a secret body\n" * LAG)
    server.read_all(topic, LAG + 1)
    with Admin(at, client_options=ClientOptions(call_timeout=LONG_TIMEOUT)) as admin:
        admin.create_group(group)
        for queue in admin.read_queues(topic):
            admin.set_group_offset(group, queue, 0)
    with (
        RawMember(server.brokers, group, "member-1", {topic: "new"}),
        RawMember(server.brokers, group, "member-2", {topic: "paid"}),
    ):
        words = ["doctor", "--interval", "0", "--json", "--timeout", f"{LONG_TIMEOUT:g}"]
        examined = CliRunner().invoke(app, words, env={"NAMESRV_ADDR": at})
        findings = [json.loads(line) for line in examined.stdout.splitlines()]
        different = [each for each in findings if each["name"] == "subscriptions"]
        assert [each["target"] for each in different if group in each["target"]] == [
            f"group {group}"
        ]
        output = tmp_path / "dump.json"
        _run(at, "broker", "dump", "-o", str(output))
    text = output.read_text(encoding="utf-8")
    assert "a secret body" not in text
    assert "a-secret-key" not in text
    dump = json.loads(text)
    for broker in dump["settings"]:
        assert dump["settings"][broker]["brokerName"] == broker
        assert dump["figures"][broker]["putMessageTimesTotal"]
    assert len(dump["settings"]) == len(server.brokers)
    assert (
        sum(queue["max_offset"] for queue in dump["topics"]["described"][topic]["queues"])
        == LAG + 1
    )
    members = dump["groups"]["described"][group]["members"]["members"]
    assert {each["client_id"] for each in members} == {"member-1", "member-2"}
    assert "subscriptions" in {each["name"] for each in dump["findings"]}


def test_the_doctor_recognizes_a_broker_in_the_place_of_a_name_server(server: Server) -> None:
    assert "not a name server" in _run(server.brokers[0], "doctor", code=3)
    for arguments in (("topic", "list"), ("send", "t", "x"), ("tail", "t")):
        refused = _run(server.brokers[0], *arguments, code=1)
        assert f"{server.brokers[0]} is not a name server" in refused


def test_tail_ends_at_a_time_between_two_messages(server: Server) -> None:
    at, topic = server.name_server, server.topic()
    for number in range(4):
        _run(at, "send", topic, str(number))
        time.sleep(0.05)  # a store time of its own
    server.read_all(topic, 4)
    tail = ("tail", topic, "--from", "earliest")
    stored = {each["body"]: each["stored_at"] for each in _json(at, *tail, "--no-follow")}
    assert len(stored) == 4
    assert {each["body"] for each in _json(at, *tail, "--to", stored["2"])} == {"0", "1"}
    later = ("tail", topic, "--from", stored["1"], "--to", stored["3"])
    assert {"1", "2"} <= {each["body"] for each in _json(at, *later)} <= {"0", "1", "2"}


def test_a_topic_that_is_not_there_is_not_deleted(server: Server) -> None:
    refused = _run(server.name_server, "topic", "delete", "nowhere", "--yes", code=5)
    assert refused.startswith("downrange: topic 'nowhere' does not exist at ")


def _account(secret: str = USER.secret_key) -> dict[str, str]:
    return {"DOWNRANGE_ACCESS_KEY": USER.access_key, "DOWNRANGE_SECRET_KEY": secret}


def test_an_account_comes_from_the_environment(guarded: str) -> None:
    shown = _run(guarded, "doctor", env=_account())
    assert shown.endswith("\nno problems found\n")
    _run(guarded, "send", "OpenTopic", "x", env=_account())
    refused = _run(guarded, "send", "ForeignTopic", "x", code=4, env=_account())
    assert "SendNotPermitted" in refused or "not stored" in refused
    assert USER.secret_key not in shown + refused


def test_the_doctor_sees_an_account_that_is_not_accepted(guarded: str) -> None:
    assert "give an access key" in _run(guarded, "doctor", code=4)
    shown = _run(guarded, "doctor", code=4, env=_account("wrong-secret"))
    assert f"check the access key {USER.access_key}" in shown
    assert "wrong-secret" not in shown
