"""JSON in the forms that Java writes and reads; reading is bounded for any input."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given

from downrange.errors import MalformedBody, Unencodable
from downrange.wire.fastjson import DEPTH_MAX, REPEATED_VALUES_MAX, ObjectKey, dumps, loads
from tests.unit.wire.strategies import json_values


@given(json_values)
def test_any_value_survives_writing_and_reading(value: Any) -> None:
    assert loads(dumps(value)) == value


@given(json_values)
def test_the_tolerant_reader_agrees_with_the_strict_one(value: Any) -> None:
    """The comment makes the text take the tolerant reader."""
    strict = msgspec.json.encode(value)
    assert loads(strict + b"//") == loads(strict) == value


# ---- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        ("{-1:2,1.5:3}", {-1: 2, 1.5: 3}),
        ('{{"topic":"T","queueId":3}:5}', {ObjectKey(topic="T", queueId=3): 5}),
        ('{{"a":{{"b":1}:2}}:3}', {ObjectKey(a={ObjectKey(b=1): 2}): 3}),
        ("{{1:2,'a':3}:4}", {ObjectKey({1: 2, "a": 3}): 4}),
        ('{{{"a":1}:2,{"a":2}:3}:4}', {ObjectKey({ObjectKey(a=1): 2, ObjectKey(a=2): 3}): 4}),
        ("{'a':'b \"c\"'}", {"a": 'b "c"'}),
        ("{'a':\"it's\"}", {"a": "it's"}),
        ("{a:1,_b:2,$c:3,d1:4}", {"a": 1, "_b": 2, "$c": 3, "d1": 4}),
        ("{null:1,true:2}", {"null": 1, "true": 2}),
        ("[1,2,]", [1, 2]),
        ('{"a":1,}', {"a": 1}),
        ("/* a */ [ // b\n 1 /* c */ , 2 ] // d", [1, 2]),
        ("/***/[]", []),
        ("[1]//", [1]),
        ("  5  ", 5),
        ("[-0, 0, -5, 1.5, -2.5e3, 1E2,]", [0, 0, -5, 1.5, -2500.0, 100.0]),
        ("[true,false,null,]", [True, False, None]),
        ("[[],{},[{}],]", [[], {}, [{}]]),
        ("{}//", {}),
        ('{"a":1,"a":2}', {"a": 2}),
        ("{'a':1,'a':2}", {"a": 2}),
        ('{{"a":1,"b":2}:1,{"b":2,"a":1}:2}', {ObjectKey(a=1, b=2): 2}),
        ("'\\b\\f\\n\\r\\t\\v\\0\\/\\\\\\'\\\"'", "\b\f\n\r\t\v\0/\\'\""),
        ("'\\x41\\u00e9\\u4E2d'", "Aé中"),
        ("'\\ud83d\\ude00'", "😀"),
        ('"\\ud83d"', "?"),
        ("'a\\ude00b\\ud83d'", "a?b?"),
        ("'中文😀'", "中文😀"),
        ('"a\nb"', "a\nb"),
        ("''", ""),
    ],
)
def test_a_form_that_java_uses_is_read(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "JSON character 0: the text ends too early"),
        (b"  ", "JSON character 2: the text ends too early"),
        (b"[1 2]", "JSON character 3: expected ',', found '2'"),
        (b"[1", "JSON character 2: expected ',', found ''"),
        (b"[,]", "JSON character 1: unexpected ','"),
        (b"{'a' 1}", "JSON character 5: expected ':', found '1'"),
        (b"{'a':}", "JSON character 5: unexpected '}'"),
        (b"{:1}", "JSON character 1: unexpected ':'"),
        (b"{[]:1}", "JSON character 1: unexpected '['"),
        (b"'abc", "JSON character 4: a string does not end"),
        (b"'abc\\", "JSON character 6: unknown escape ''"),
        (b"'\\q'", "JSON character 3: unknown escape 'q'"),
        (b"'\\u12'", 'JSON character 3: escape "12\'" is not 4 hexadecimal digits'),
        (b"'\\u12_4'", "escape '12_4' is not 4 hexadecimal digits"),
        (b"'\\xg1'", "JSON character 3: escape 'g1' is not 2 hexadecimal digits"),
        (b"nul", "JSON character 0: unknown word 'nul'"),
        (b"[NaN]", "JSON character 1: unknown word 'NaN'"),
        (b"-", "JSON character 0: unexpected '-'"),
        (b"+1", "JSON character 0: unexpected '+'"),
        (b"[1]]", "JSON character 3: there is text after the value"),
        (b"[/* 1]", "JSON character 1: unexpected '/'"),
        (b"[1]\x00", "JSON character 3: there is text after the value"),
    ],
)
def test_text_that_is_not_json_is_refused_with_its_place(text: bytes, message: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        loads(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", [b'{"a":"\xff"}', b"\xc3", b"{'a':'\xed\xa0\x80'}"])
def test_invalid_utf_8_is_refused_with_its_place(text: bytes) -> None:
    with pytest.raises(MalformedBody, match=r"JSON byte \d+: not UTF-8"):
        loads(text)


@pytest.mark.parametrize("brackets", [b"[]", b"{}"])
def test_a_document_of_100_000_brackets_is_refused(brackets: bytes) -> None:
    opening = brackets[:1] if brackets == b"[]" else b'{"a":'
    with pytest.raises(MalformedBody, match=f"nested deeper than {DEPTH_MAX}"):
        loads(opening * 100_000)
    with pytest.raises(MalformedBody, match=f"nested deeper than {DEPTH_MAX}"):
        loads(opening * 100_000 + b"1" + brackets[1:] * 100_000)


def test_object_keys_within_object_keys_stop_at_the_depth_limit() -> None:
    with pytest.raises(MalformedBody, match=f"nested deeper than {DEPTH_MAX}"):
        loads(b"{" * 100_000)


@pytest.mark.parametrize("suffix", [b"", b"//"], ids=["strict", "tolerant"])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_depth_limit_is_the_same_on_both_paths(opening: bytes, suffix: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    loads(opening * DEPTH_MAX + b"1" + closing * DEPTH_MAX + suffix)
    for depth in (DEPTH_MAX + 1, 300, 900):
        with pytest.raises(MalformedBody, match=f"nested deeper than {DEPTH_MAX}"):
            loads(opening * depth + b"1" + closing * depth + suffix)


@pytest.mark.parametrize("text", [b'"' + b"[" * 500 + b'"', b"5/*" + b"[" * 500 + b"*/"])
def test_brackets_that_nest_nothing_do_not_count(text: bytes) -> None:
    assert loads(text) in ("[" * 500, 5)


@pytest.mark.parametrize("size", [401, 4301, 100_000])
def test_a_number_of_very_many_digits_does_not_take_long_or_raise(size: int) -> None:
    for text in (b"9" * size + b"//", b"-" + b"9" * size + b"//", b"[" + b"9" * size + b",]"):
        with pytest.raises(MalformedBody, match=r"a number of \d+ digits"):
            loads(text)


@pytest.mark.parametrize("text", [b"1e999", b"[1e999,]"])
def test_a_number_beyond_floating_point_is_infinite(text: bytes) -> None:
    assert loads(text) in (float("inf"), [float("inf")])


def test_a_hostile_text_takes_memory_in_proportion_to_its_size() -> None:
    """Comments, quotes and escapes are where the tolerant reader could take quadratic time."""
    for text in (b"/**/" * 5_000, b"'" + b"\\n" * 10_000, b"[" + b"''," * 6_000):
        tracemalloc.start()
        try:
            with pytest.raises(MalformedBody):
                loads(text)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 60 * len(text)


# ---- references ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
        ('[[1,2],{"$ref":"$[0]"}]', [[1, 2], [1, 2]]),
        ('{"a":[5,6],"b":{"$ref":"$.a[1]"}}', {"a": [5, 6], "b": 6}),
        ('{"a":{"x.y":7},"b":{"$ref":"$.a[\'x.y\']"}}', {"a": {"x.y": 7}, "b": 7}),
        ('{"a":{"x.y":7},"b":{"$ref":"$.a.[\\"x.y\\"]"}}', {"a": {"x.y": 7}, "b": 7}),
        ('{"a":[1],"b":[{"$ref":"$.a"}],"c":{"$ref":"$.b"}}', {"a": [1], "b": [[1]], "c": [[1]]}),
        ("{'a':[1],'b':{'$ref':'$.a'}}", {"a": [1], "b": [1]}),
        ("{a:[1],b:{$ref:'$.a'}}", {"a": [1], "b": [1]}),
        ('{"a":{"$ref":5}}', {"a": {"$ref": 5}}),
        ('{"a":{"$ref":"$.b","c":1}}', {"a": {"$ref": "$.b", "c": 1}}),
        ('{"a":"$ref"}', {"a": "$ref"}),
    ],
)
def test_a_reference_becomes_what_it_names(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"$ref":"$"}', "JSON reference '$': names a value that is not complete before it"),
        ('{"a":{"b":{"$ref":"$.a"}}}', "names a value that is not complete before it"),
        ('{"a":{"$ref":"$.b"},"b":[1]}', "names a value that is not complete before it"),
        ('{"a":{"$ref":"@"}}', "JSON reference '@': does not begin with $"),
        ('{"a":{"$ref":".."}}', "JSON reference '..': does not begin with $"),
        ('{"a":{"$ref":"$..b"}}', "step '..b' is not understood"),
        ('{"a":{"$ref":"$.b"}}', "JSON reference '$.b': nothing is at '$.b'"),
        ('{"a":[1],"b":{"$ref":"$.a[1].c"}}', "nothing is at '$.a[1]'"),
        ('{"a":[1],"b":{"$ref":"$.a.c"}}', "nothing is at '$.a.c'"),
        ('{"a":[1],"b":{"$ref":"$.a[0].c"}}', "nothing is at '$.a[0].c'"),
        ('{"a":[1],"b":{"$ref":"$.a[' + "9" * 5000 + ']"}}', "nothing is at '$.a[999"),
    ],
)
def test_a_reference_to_nothing_is_refused_with_its_path(text: str, message: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        loads(text.encode())
    assert message in str(caught.value)


def test_references_that_multiply_are_refused_before_they_take_memory() -> None:
    """Each member repeats the one before it ten times: 10^20 values from a kilobyte."""
    members = [b'"m0":[1,1,1,1,1,1,1,1,1,1]']
    members += [
        b'"m%d":[%b]' % (n, b",".join([b'{"$ref":"$.m%d"}' % (n - 1)] * 10)) for n in range(1, 20)
    ]
    bomb = b"{" + b",".join(members) + b"}"
    tracemalloc.start()
    try:
        with pytest.raises(MalformedBody, match=f"repeats more than {REPEATED_VALUES_MAX} values"):
            loads(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_the_limit_of_repeated_values_is_exact() -> None:
    """An array of 999 numbers is 1,000 values, itself included."""
    text = b"[[%b],%b]"
    array, reference = b",".join([b"7"] * 999), b'{"$ref":"$[0]"}'
    assert len(loads(text % (array, b",".join([reference] * 100)))) == 101
    with pytest.raises(MalformedBody, match="repeats more than 100000 values"):
        loads(text % (array, b",".join([reference] * 101)))


def test_references_that_pile_up_depth_are_refused() -> None:
    """Each item nests the one before it 90 levels deeper; none is too deep by itself."""
    items = [b"[" * 90 + b"]" * 90]
    items += [b"[" * 90 + b'{"$ref":"$[%d]"}' % n + b"]" * 90 for n in range(30)]
    with pytest.raises(MalformedBody, match=f"nested deeper than {DEPTH_MAX}"):
        loads(b"[" + b",".join(items) + b"]")


@pytest.mark.parametrize("depth", [150, 900])
def test_a_reference_within_too_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(MalformedBody, match=f"nested deeper than {DEPTH_MAX}"):
        loads(b"[" * depth + b'{"$ref":"$"}' + b"]" * depth)


# ---- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, 1.5]}, '{"a":[true,null,1.5],"b":1}'),
        ({1: "a", 0: "b"}, '{"0":"b","1":"a"}'),
        ({ObjectKey(b=1, a=2): {"y": 1, "x": 2}}, '{{"a":2,"b":1}:{"x":2,"y":1}}'),
        (
            {"t": [{ObjectKey(q=1): 5, ObjectKey(q=0): 6}], "a": ()},
            '{"a":[],"t":[{{"q":0}:6,{"q":1}:5}]}',
        ),
        ({ObjectKey(a=1): 1, 7: 2, "s": 3}, '{"7":2,"s":3,{"a":1}:1}'),
        ({ObjectKey({ObjectKey(a=1): 2}): 3}, '{{{"a":1}:2}:3}'),
        ("é中/", '"é中/"'),
        (2**70, "1180591620717411303424"),
    ],
)
def test_json_is_written_sorted_with_objects_as_keys(value: Any, text: str) -> None:
    assert dumps(value) == text.encode()


@pytest.mark.parametrize(
    "value", ["\ud800", {"a": ["\ud800"]}, {"\ud800": 1}, {ObjectKey(a="\ud800"): 1}]
)
def test_half_a_surrogate_pair_cannot_be_written(value: Any) -> None:
    with pytest.raises(Unencodable, match=r"JSON text: .*surrogates not allowed"):
        dumps(value)


@pytest.mark.parametrize("value", [object(), [object()], {"a": object()}, {ObjectKey(): 1j}])
def test_a_value_of_no_json_type_cannot_be_written(value: Any) -> None:
    with pytest.raises(Unencodable, match=r"JSON value: (object|complex) has no JSON form"):
        dumps(value)
