from __future__ import annotations

import csv
import io
import json
import zlib
from dataclasses import replace
from typing import Any

from downrange import DeadMessage
from downrange.client.exports import (
    LETTER_COLUMNS,
    letter_facts,
    letter_header,
    letter_line,
    message_facts,
    utc_text,
)
from tests.unit.console.cluster.fake_admin import message


def letter(body: bytes, *, compression: Any = None, **properties: Any) -> DeadMessage:
    stored = message(3, body, topic="%DLQ%billing", **properties)
    stored = replace(stored, compression=compression)
    return DeadMessage(group="billing", message=stored, topic="orders", origin_id="ORIGIN")


def test_a_message_becomes_json() -> None:
    facts = message_facts(message(3, "é".encode(), KEYS="k1 k2", TAGS="t", own="p", UNIQ_KEY="U"))
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["body"], facts["keys"], facts["tags"]) == ("é", ["k1", "k2"], "t")
    assert (facts["properties"], facts["system_properties"]["UNIQ_KEY"]) == ({"own": "p"}, "U")
    assert facts["stored_at"] == "1970-01-01T00:01:40.000Z"
    assert message_facts(message(3, b"\xff"))["body_base64"] == "/w=="


def test_a_compressed_body_is_exported_readable_or_with_the_problem() -> None:
    packed = replace(message(3, zlib.compress(b"hello")), compression="zlib")
    facts = message_facts(packed)
    assert (facts["body"], "body_problem" in facts) == ("hello", False)
    facts = letter_facts(letter(b"not zlib", compression="zlib"))
    assert facts["body_base64"] == "bm90IHpsaWI="
    assert facts["body_problem"].startswith("ZLIB body: cannot be decompressed")
    (cells,) = csv.reader(io.StringIO(letter_line(letter(b"not zlib", compression="zlib"))))
    assert cells[LETTER_COLUMNS.index("body_problem")] == facts["body_problem"]


def test_a_number_that_is_no_time_stays_a_number() -> None:
    assert utc_text(10**17) == "100000000000000000"
    assert utc_text(-1) == "1969-12-31T23:59:59.999Z"


def test_a_dead_letter_names_where_it_came_from() -> None:
    facts = letter_facts(letter(b"x"))
    assert (facts["group"], facts["origin_topic"], facts["origin_id"]) == (
        *("billing", "orders", "ORIGIN"),
    )
    assert facts["died_at"] == facts["stored_at"]


def test_a_sheet_has_a_header_and_one_line_per_dead_letter() -> None:
    odd = letter(b'a,"b"\nc', KEYS="k1 k2", own="=SUM(A1)", more="1")
    text = letter_header() + letter_line(odd) + letter_line(letter(b"\xff"))
    header, first, second = csv.reader(io.StringIO(text))
    assert header == list(LETTER_COLUMNS)
    cells = dict(zip(header, first, strict=True))
    assert (cells["body"], cells["keys"], cells["origin_id"]) == (
        *('a,"b"\nc', "k1 k2"),
        "ORIGIN",
    )
    assert cells["properties"] == "own==SUM(A1)\nmore=1"
    assert dict(zip(header, second, strict=True))["body_base64"] == "/w=="


def test_a_cell_is_never_a_formula() -> None:
    for body in (b"=1+1", b"+1", b"-1", b"@x", b"\tx", b"\rx"):
        (cells,) = csv.reader(io.StringIO(letter_line(letter(body)), newline=""))
        assert cells[LETTER_COLUMNS.index("body")] == "'" + body.decode()
