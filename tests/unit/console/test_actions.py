"""Every action: its form, its rights, the audit file, and what is shown afterwards."""

from __future__ import annotations

import json
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from downrange.console.action_forms import ACTIONS
from downrange.console.audit import AuditLog, AuditRecord, new_record_id
from downrange.console.cluster.actions.dead_letters import ResendDeadLetters
from downrange.console.cluster.actions.groups import AlterGroup, CreateGroup, DeleteGroup
from downrange.console.cluster.actions.messages import DeliverToGroup, SendAgain, SendMessage
from downrange.console.cluster.actions.offsets import CloneOffsets, ResetOffsets, SkipMessages
from downrange.console.cluster.actions.topics import AlterTopic, CreateTopic, DeleteTopic
from downrange.console.cluster.problems import NoSuchMember
from downrange.console.forms import Form
from downrange.console.limits import AUDIT_ROWS_MAX
from downrange.console.rendering import UNKNOWN
from downrange.errors import OptionError, RocketMQError, SendFailed, server_error
from downrange.model import Attempt
from tests.unit.console.fake_view import AT, ATTACK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from downrange.console.cluster.actions.action import Action
    from tests.unit.console.conftest import Visitor


def refused_send(code: int, remark: str) -> SendFailed:
    """Return the error of a send that a broker refused."""
    error = server_error(code, remark, "b:1")
    return SendFailed("t", [Attempt("b", "b:1", 0, error, 0.1)], 0.1)


#: Name of the action, its form, the action, the page that follows.
CASES: list[tuple[dict[str, Any], Action, str]] = [
    (
        {"topic": "t", "queues": "4", "permission": "r", "is_ordered": "yes", "attributes": "a=b"},
        CreateTopic(topic="t", queues=4, permission="r", is_ordered=True, attributes={"a": "b"}),
        "/topics/t",
    ),
    ({"topic": "t", "queues": ""}, CreateTopic(topic="t"), "/topics/t"),
    (
        {"topic": "t", "read_queues": "2", "is_ordered": "no", "attributes": "a=\n\nb=c"},
        AlterTopic(topic="t", read_queues=2, is_ordered=False, attributes={"a": None, "b": "c"}),
        "/topics/t",
    ),
    ({"topic": "t", "typed": "t"}, DeleteTopic(topic="t", typed="t"), "/topics"),
    (
        {"topic": "t", "body": "x\r\ny", "keys": "a, b", "properties": "p=1", "deliver_in": "2.5"},
        SendMessage(topic="t", body="x\ny", keys=("a", "b"), properties={"p": "1"}, deliver_in=2.5),
        "/topics/t",
    ),
    ({"topic": "t", "body": ""}, SendMessage(topic="t", body=""), "/message?topic=t&id=NEW1"),
    (
        {"topic": "t", "message_id": "I"},
        SendAgain(topic="t", message_id="I"),
        "/message?topic=t&id=NEW1",
    ),
    (
        {"group": "g", "topic": "t", "message_id": "I", "client_id": "c"},
        DeliverToGroup(group="g", topic="t", message_id="I", client_id="c"),
        "/message?topic=t&id=I",
    ),
    ({"group": "g", "retries": "3"}, CreateGroup(group="g", retries=3), "/groups/g"),
    (
        {"group": "g", "is_enabled": "no", "retry_queues": "2"},
        AlterGroup(group="g", is_enabled=False, retry_queues=2),
        "/groups/g",
    ),
    (
        {"group": "g", "typed": "g", "with_topics": "yes"},
        DeleteGroup(group="g", typed="g", with_topics=True),
        "/groups",
    ),
    (
        {"group": "g", "topic": "t", "to": "15m", "queue": "broker-a:1"},
        ResetOffsets(group="g", topic="t", to="15m", queue="broker-a:1"),
        "/groups/g",
    ),
    ({"group": "g", "topics": "a b"}, SkipMessages(group="g", topics=("a", "b")), "/groups/g"),
    ({"source": "f", "group": "g"}, CloneOffsets(source="f", group="g"), "/groups/g"),
    (
        {"group": "g", "id": ["1", "2"], "to": "retry", "rate": "5", "again": "yes"},
        ResendDeadLetters(group="g", ids=("1", "2"), to="retry", rate=5.0, again=True),
        "/dead-letters/g",
    ),
]


def test_every_action_is_tried_here() -> None:
    assert {action.name for _, action, _ in CASES} == set(ACTIONS)


@pytest.mark.parametrize(("fields", "action", "page"), CASES, ids=lambda value: str(value)[:30])
def test_form_becomes_an_action(
    visitor: Visitor, fields: dict[str, Any], action: Action, page: str, tmp_path: Path
) -> None:
    response = visitor.post(f"/actions/{action.name}", fields)
    assert response.status_code == 303, response.text
    assert visitor.view.done == [action]
    (line,) = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    record = json.loads(line)
    assert (record["visitor"], record["address"]) == ("local", "testclient")
    assert (record["action"], record["target"]) == (action.name, action.target)
    assert record["is_ok"] is True
    assert record["command"].startswith("downrange ")
    assert "--name-server" in record["command"]
    place = response.headers["location"]
    done = parse_qs(urlsplit(place).query)["done"]
    assert done == [record["id"]]
    assert place.replace(f"&done={done[0]}", "").replace(f"?done={done[0]}", "") == page
    shown = visitor.text(place)
    assert f"done: {action.target}" in shown, "the page tells the outcome"
    assert record["command"].split(" --")[0].replace("'", "&#39;") in shown


def test_action_answers_a_program_in_json(visitor: Visitor) -> None:
    response = visitor.post(
        "/actions/create-topic", {"topic": "t"}, headers={"accept": "application/json"}
    )
    assert response.status_code == 200
    assert response.json()["command"].startswith("downrange topic create")
    token = visitor.token()
    by_header = visitor.http.post(
        "/actions/create-topic?format=json",
        data={"topic": "u"},
        headers={"x-downrange-token": token},
    )
    assert by_header.status_code == 200
    assert len(visitor.view.done) == 2


@pytest.mark.parametrize("name", ["reset-offsets", "skip-messages", "clone-offsets"])
def test_preview_changes_nothing_and_carries_the_form_on(visitor: Visitor, name: str) -> None:
    fields = {"group": "g", "topic": "t", "to": ATTACK, "source": "f", "preview": "yes"}
    response = visitor.post(f"/actions/{name}", fields)
    assert response.status_code == 200
    assert visitor.view.done == []
    assert "<script>alert" not in response.text
    assert f'action="/actions/{name}"' in response.text
    assert 'name="preview"' not in response.text
    assert response.text.count('name="token"') == 1
    found = visitor.post(f"/actions/{name}?format=json", fields).json()
    assert (found["repeated"], found["is_done"]) == (4, False)


def test_preview_of_an_action_without_one_is_refused(visitor: Visitor) -> None:
    response = visitor.post("/actions/create-topic", {"topic": "t", "preview": "yes"})
    assert response.status_code == 400
    assert visitor.view.done == []
    (record,) = visitor.console.audit.newest()
    assert (record.action, record.outcome) == ("create-topic", "preview: create-topic has none")


def test_deleting_needs_the_name_typed_in(visitor: Visitor) -> None:
    for typed in ("", "orderss", "ORDERS"):
        response = visitor.post("/actions/delete-topic", {"topic": "orders", "typed": typed})
        assert response.status_code == 400
    assert visitor.view.done == []
    assert [record.is_ok for record in visitor.console.audit.newest()] == [False] * 3


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("create-topic", {}, "topic: is missing"),
        ("create-topic", {"topic": "t", "queues": "many"}, "queues: &#39;many&#39; is not a whole"),
        ("create-topic", {"topic": "t", "attributes": "abc"}, "attributes: the line"),
        *(
            ("create-topic", {"topic": "t", "queues": text}, "is not a whole number")
            for text in ("1_0", "\uff11\uff12", "\u0663", "1.0", "- 1", "9" * 4000 + "_")
        ),
        *(
            ("send-message", {"topic": "t", "deliver_in": text}, "is not a number")
            for text in ("1_0", "\uff11", "\u0663", "nan", "inf", "0x1p3", "1e", ".")
        ),
        ("alter-topic", {"topic": "t", "is_ordered": "perhaps"}, "is_ordered"),
        ("send-message", {"topic": "t", "deliver_in": "soon"}, "deliver_in"),
        ("resend-dead-letters", {"group": "g"}, "no dead letter is selected"),
        ("resend-dead-letters", {"group": "g", "id": "1", "to": "moon"}, "to: "),
    ],
)
def test_wrong_field_is_named(
    visitor: Visitor, name: str, fields: dict[str, str], problem: str
) -> None:
    response = visitor.post(f"/actions/{name}", fields)
    assert response.status_code == 400
    assert problem in response.text
    assert visitor.view.done == []
    (record,) = visitor.console.audit.newest()
    assert (record.action, record.is_ok, record.command) == (name, False, "")
    assert (record.visitor, record.target) == (
        "local",
        fields.get("topic", fields.get("group", "")),
    )
    assert record.outcome in unescape(response.text)
    assert f'<td class="code cut">{UNKNOWN}</td>' in visitor.text("/audit")


@pytest.mark.parametrize(("text", "number"), [(" 12 ", 12), ("+3", 3), ("-4", -4)])
def test_whole_numbers_are_read_as_people_write_them(text: str, number: int) -> None:
    assert Form([("n", text)]).number("n") == number


@pytest.mark.parametrize(
    ("text", "number"), [(" 2.5 ", 2.5), ("3", 3), (".5", 0.5), ("1.", 1), ("-1e3", -1000)]
)
def test_numbers_are_read_as_people_write_them(text: str, number: float) -> None:
    assert Form([("n", text)]).decimal("n") == number


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (refused_send(13, "the delay is too long"), 400),
        (refused_send(14, "the disk is full"), 502),
        (server_error(29, "retryQueueNums 99999", "b:1"), 400),
        (server_error(1, "it failed", "b:1"), 502),
        (NoSuchMember("g", "c"), 404),
    ],
    ids=str,
)
def test_what_a_broker_refuses_for_its_value_is_a_mistake_of_the_visitor(
    visitor: Visitor, error: RocketMQError, status: int
) -> None:
    visitor.view.failure = error
    assert visitor.post("/actions/create-topic", {"topic": "t"}).status_code == status


def test_unknown_action_is_not_found(visitor: Visitor) -> None:
    assert visitor.post("/actions/shutdown").status_code == 404


def test_failed_action_shows_the_problem_and_the_command(visitor: Visitor) -> None:
    visitor.view.failure = RocketMQError("the broker <b>refused</b>")
    response = visitor.post("/actions/create-topic", {"topic": "t"})
    assert response.status_code == 502
    assert "the broker &lt;b&gt;refused" in response.text
    assert "downrange topic create" in response.text
    (record,) = visitor.console.audit.newest()
    assert (record.is_ok, record.outcome) == (False, "the broker <b>refused</b>")


def test_outcome_comes_from_the_audit_file_and_not_from_the_address(visitor: Visitor) -> None:
    assert "outcome" not in visitor.text(f"/topics?done={ATTACK}")
    assert 'id="outcome"' not in visitor.text("/topics?done=0123456789abcdef")


# ---- the audit file ----


def _record(**changes: Any) -> AuditRecord:
    values: dict[str, Any] = {
        "id": new_record_id(),
        "at": AT,
        "visitor": "local",
        "address": "127.0.0.1",
        "action": "create-topic",
        "target": "t",
        "command": "downrange topic create t",
        "is_ok": True,
        "outcome": "done",
    }
    return AuditRecord(**{**values, **changes})


def test_audit_file_is_read_again_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "audit.jsonl"
    log = AuditLog(path)
    first, second = log.add(_record()), log.add(_record(target=ATTACK))
    with path.open("ab") as file:
        file.write(b'{"torn": ')
    again = AuditLog(path)
    assert list(again.newest()) == [second, first]
    assert again.find(first.id) == first
    assert again.find("no") is None
    assert path.stat().st_mode & 0o077 == 0, "others cannot read it"


def test_audit_file_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    long = log.add(_record(command="x" * 100_000))
    assert len(long.command) < 5000
    monkeypatch.setattr("downrange.console.limits.AUDIT_FILE_BYTES", path.stat().st_size)
    log.add(_record())
    assert (tmp_path / "audit.jsonl.1").exists()
    assert len(path.read_bytes().splitlines()) == 1
    for _ in range(AUDIT_ROWS_MAX):
        log = AuditLog(None) if log.path else log
        log.add(_record())
    assert len(log.newest()) == AUDIT_ROWS_MAX


def test_audit_file_that_cannot_be_written_is_told(
    visitor: Visitor, make_visitor: Callable[..., Visitor], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="audit file"):
        make_visitor(audit_file=tmp_path / "file" / "audit.jsonl")
    assert visitor.console.audit.path is not None
    visitor.console.audit.path.unlink()
    visitor.console.audit.path.mkdir()
    assert visitor.post("/actions/create-topic", {"topic": "t"}).status_code == 303
    assert "cannot be written" in visitor.text("/audit")
    visitor.console.audit.path.rmdir()
    visitor.post("/actions/create-topic", {"topic": "t"})
    assert "cannot be written" not in visitor.text("/audit")


def test_audit_record_round_trips() -> None:
    record = _record(outcome=ATTACK)
    assert msgspec.json.decode(msgspec.json.encode(record), type=AuditRecord) == record
