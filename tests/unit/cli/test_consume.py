"""Arguments of `consume`: subscriptions, start, handlers by name, and the environment."""

from __future__ import annotations

import functools
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from downrange.cli import app
from downrange.cli.consume import parse_group_start, parse_subscriptions
from downrange.cli.handler_loader import load_handler
from downrange.cli.program_handler import ProgramHandler, environment
from downrange.errors import InvalidSql, OptionError
from downrange.filters.sql import Sql
from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_topics_have_tags_or_an_expression() -> None:
    assert parse_subscriptions(["a", "b:new || paid"], ["c:x = 'a:b'"]) == {
        "a": "*",
        "b": "new || paid",
        "c": Sql("x = 'a:b'"),
    }


@pytest.mark.parametrize(
    ("topics", "filters", "text"),
    [
        ([], [], "give at least one --topic"),
        (["a", "a:new"], [], "topic 'a' is named twice"),
        (["a"], ["a:x = 1"], "topic 'a' is named twice"),
        ([":new"], [], "--topic ':new' is not TOPIC or TOPIC:TAGS"),
        (["a:"], [], "--topic 'a:' is not TOPIC or TOPIC:TAGS"),
        ([], ["a"], "--sql 'a' is not TOPIC:EXPRESSION"),
    ],
)
def test_wrong_topics_are_refused(topics: list[str], filters: list[str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse_subscriptions(topics, filters)


def test_wrong_expression_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidSql):
        parse_subscriptions([], ["a:color LIKE 'r%'"])


def test_start_is_a_word_a_time_or_an_age() -> None:
    assert parse_group_start("Latest", NOW) == "latest"
    assert parse_group_start("earliest", NOW) == "earliest"
    assert parse_group_start("15m", NOW) == NOW - timedelta(minutes=15)
    with pytest.raises(OptionError, match="--start '7' is not one of: earliest, latest, a time"):
        parse_group_start("7", NOW)


# ---- handlers by name ----------------------------------------------------------------------------

MODULE = """
import functools
class Shop:
    def handle(self, message): return message
    def __call__(self, message): return message
shop = Shop()
part = functools.partial(lambda extra, message: message, 1)
number = 7
async def later(message): pass
def none(): pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("shop_handlers", "broken_handlers", "needy_handlers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "shop_handlers.py").write_text(MODULE)
    (tmp_path / "broken_handlers.py").write_text("1 / 0\n")
    (tmp_path / "needy_handlers.py").write_text("import there_is_no_such_module\n")
    return tmp_path


@pytest.mark.parametrize("name", ["shop.handle", "shop", "part", "later"])
def test_handler_is_found_in_the_folder(folder: Path, name: str) -> None:
    found = load_handler(f"shop_handlers:{name}", folder)
    expected: Any = functools.reduce(getattr, name.split("."), sys.modules["shop_handlers"])
    assert found == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nowhere:handle", "there is no module 'nowhere' in "),
        ("shop_handlers.inner:handle", "no module 'shop_handlers.inner'"),
        ("shop_handlers", "'shop_handlers' is not MODULE:NAME, such as shop_handlers:handle"),
        ("shop_handlers.py:shop", "is not MODULE:NAME, such as shop_handlers:shop"),
        (":shop", "is not MODULE:NAME"),
        ("shop_handlers:gone", "module 'shop_handlers' has no attribute 'gone'"),
        ("shop_handlers:shop.gone", "has no attribute 'gone'"),
        ("shop_handlers:number", "is a int and cannot be called"),
        ("shop_handlers:Shop", "is a class"),
        ("shop_handlers:none", "'shop_handlers:none': handler=.* cannot be called with one mess"),
        ("broken_handlers:handle", "cannot be imported: ZeroDivisionError"),
        ("needy_handlers:handle", "cannot be imported: ModuleNotFoundError: .*no_such_module"),
    ],
)
def test_missing_handler_is_explained(folder: Path, text: str, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        load_handler(text, folder)


def test_error_in_the_module_is_printed_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OptionError):
        load_handler("broken_handlers:handle", folder)
    assert "broken_handlers.py" in capsys.readouterr().err


# ---- programs ------------------------------------------------------------------------------------


def test_program_gets_the_fields_of_a_message() -> None:
    message = ReceivedMessage(
        message_id="AB",
        queue=QueueId("orders", "broker-a", 3),
        offset=QueueOffset(7),
        body=b"",
        properties={"TAGS": "new", "KEYS": "o-1 o-2", "color-x": "rot", "größe": "ü"},
        offset_id="",
        log_offset=LogOffset(0),
        flag=0,
        born_at_ms=5,
        born_host="",
        stored_at_ms=6,
        delivery_attempts=2,
    )
    found = environment(message)
    assert json.loads(found.pop("DOWNRANGE_PROPERTIES")) == {"color-x": "rot", "größe": "ü"}
    assert found == {
        "DOWNRANGE_TOPIC": "orders",
        "DOWNRANGE_TAGS": "new",
        "DOWNRANGE_KEYS": "o-1 o-2",
        "DOWNRANGE_MESSAGE_ID": "AB",
        "DOWNRANGE_ATTEMPT": "3",
        "DOWNRANGE_QUEUE": "broker-a:3",
        "DOWNRANGE_OFFSET": "7",
        "DOWNRANGE_BORN_AT_MS": "5",
        "DOWNRANGE_PROPERTY_COLOR_X": "rot",
        "DOWNRANGE_PROPERTY_GR__E": "ü",
    }


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("", "--exec is empty"),
        ("'open", "--exec .*No closing quotation"),
        ("there-is-no-such-program x", "there is no program 'there-is-no-such-program'"),
    ],
)
def test_missing_program_is_refused(command: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ProgramHandler(command, 1.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give either HANDLER"),
        (("a:b", "--exec", "true"), "give either HANDLER"),
        (("--exec", "true", "--batch", "2"), "leave --batch out"),
        (("a:b", "--offsets", "there"), "--offsets is for --model broadcast"),
        (("a:b", "--concurrency", "0"), "concurrency=0"),
    ],
)
def test_options_that_exclude_each_other_are_refused(arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(app, ["consume", "-g", "g", "--topic", "t", *arguments])
    assert result.exit_code == 2
    assert text in result.output
