from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from downrange import __main__ as entry
from downrange import native
from downrange.cli import app
from downrange.errors import MissingExtra
from downrange.wire.codes import HeaderCodec
from downrange.wire.command import Command, encode
from downrange.wire.fields import request_command
from downrange.wire.headers import PullReply, RouteRequest
from downrange.wire.records import Record, encode_record

if TYPE_CHECKING:
    from pathlib import Path

RECORD = Record(
    queue_offset=7,
    body="körper".encode(),
    topic_bytes=b"orders",
    property_bytes=b"TAGS\x01new\x02KEYS\x01o-1\x02",
)
ROUTE = request_command(RouteRequest(topic="orders"))
PULLED = Command(
    0,
    PullReply(
        suggest_which_broker_id=0, next_begin_offset=8, min_offset=0, max_offset=8
    ).to_fields(),
    encode_record(RECORD),
    remark="FOUND",
    flags=1,
)
run = CliRunner().invoke


def _facts(*commands: Command) -> list[dict[str, object]]:
    text = "".join(encode(command).hex() for command in commands)
    result = run(app, ["decode", "--json", text])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_request_is_shown_with_its_fields_in_full() -> None:
    (facts,) = _facts(ROUTE)
    assert facts["kind"] == "request"
    assert facts["code"] == "105 GET_ROUTEINFO_BY_TOPIC"
    assert facts["fields"] == {"topic": "orders"}
    assert facts["sender"] == "PYTHON 479"


def test_reply_is_shown_with_the_records_in_its_body() -> None:
    (facts,) = _facts(PULLED)
    assert facts["code"] == "0 SUCCESS"
    assert facts["remark"] == "FOUND"
    body = facts["body"]
    assert isinstance(body, list)
    assert body[0]["topic"] == "orders"
    assert body[0]["body"] == "körper"
    assert body[0]["properties"] == {"TAGS": "new", "KEYS": "o-1"}


def test_several_frames_are_shown_in_order() -> None:
    oneway = Command(7654, {"x": "1"}, b'{"a":[1,2]}', flags=2, language=None)
    broken_json = Command(1, body=b"{oops", flags=1, codec=HeaderCodec.BINARY)
    unreadable = Command(11, {"topic": "T"}, b"\xff\x00" * 300)
    kinds = _facts(ROUTE, oneway, broken_json, unreadable)
    assert [facts["kind"] for facts in kinds] == ["request", "one-way request", "reply", "request"]
    assert kinds[1]["code"] == "7654 (unknown)"
    assert kinds[1]["sender"] == "? 479"
    assert kinds[1]["body"] == {"a": [1, 2]}
    assert kinds[2]["body"] == "{oops"
    assert kinds[2]["header_codec"] == "BINARY"
    assert kinds[3]["fields"] == {"topic": "T"}  # a pull request has more fields
    assert str(kinds[3]["body"]).startswith("ff00ff00 ff00ff00")


def test_default_output_is_a_table() -> None:
    result = run(app, ["decode"], input=encode(PULLED).hex(" "))
    assert result.exit_code == 0
    assert "reply 0 SUCCESS" in result.output
    assert "FOUND" in result.output


def test_segment_is_shown_up_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000"
    file.write_bytes(encode_record(RECORD) + bytes(100))
    result = run(app, ["decode", "--records", "--file", str(file)])
    assert result.exit_code == 0
    assert "orders" in result.output
    as_json = run(app, ["decode", "--records", "--json", "--file", str(file)])
    assert json.loads(as_json.output)["offset"] == 7


def test_a_stored_message_is_shown_in_one_line_and_its_times_in_json(tmp_path: Path) -> None:
    file = tmp_path / "segment"
    record = Record(
        queue_id=3,
        queue_offset=7,
        log_offset=900,
        born_ms=2**62,  # not a time: clients write any number
        store_ms=1_767_225_600_123,
        body=b"two\nlines\x1b[2J",
        topic_bytes=b"orders",
        property_bytes=b"TAGS\x01new\x02KEYS\x01o-1 o-2\x02",
    )
    file.write_bytes(encode_record(record))
    shown = run(app, ["decode", "--records", "--file", str(file)]).stdout
    words = "log=900 orders/3@7 [new] key=o-1 key=o-2 two\\nlines\\x1b[2J"
    assert shown.endswith(f" {words}\n")
    assert shown.count("\n") == 1
    facts = json.loads(run(app, ["decode", "--records", "--json", "--file", str(file)]).stdout)
    assert (facts["born_at"], facts["stored_at"]) == (str(2**62), "2026-01-01T00:00:00.123Z")


@pytest.mark.parametrize("content", [b"", encode(ROUTE)])
def test_a_file_of_frames_may_be_empty(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "frames"
    file.write_bytes(content)
    result = run(app, ["decode", "--file", str(file)])
    assert result.exit_code == 0
    assert ("105 GET_ROUTEINFO_BY_TOPIC" in result.output) == bool(content)


def test_damage_ends_with_code_1_after_what_was_good(tmp_path: Path) -> None:
    good = encode_record(RECORD)
    file = tmp_path / "segment"
    file.write_bytes(good + good[:-3])
    result = run(app, ["decode", "--records", "--file", str(file)])
    assert result.exit_code == 1
    assert "orders" in result.output
    assert f"record at byte {len(good)}" in result.output
    cut = run(app, ["decode", encode(ROUTE).hex()[:-2]])
    assert cut.exit_code == 1
    assert "the last frame is incomplete" in cut.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["decode", "zz"], "not hexadecimal"),
        (["decode", "  "], "nothing to decode"),
        (["decode", "00", "--file", __file__], "not both"),
    ],
)
def test_wrong_use_ends_with_code_2_and_says_why(arguments: list[str], text: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 2
    assert text in result.output


def test_version_is_printed() -> None:
    result = run(app, ["--version"])
    assert result.output == f"downrange {native.VERSION} ({native.path_in_use()})\n"


def test_command_without_its_extra_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(feature: str, extra: str) -> None:
        raise MissingExtra(feature, extra)

    monkeypatch.setattr(entry, "check", missing)
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 2
    assert "pip install '.[cli]'" in capsys.readouterr().err


def test_command_with_its_extra_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["downrange", "--version"])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 0
    assert "downrange" in capsys.readouterr().out
