"""Frames of sends, native and in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.wire.send_commands import SendForm, pure_send_frame
from tests.unit.native.pairs import assert_same, native
from tests.unit.wire.strategies import int32s, int64s

FORM = SendForm(
    310,
    group='g%d"',
    topic="t%%\\é",
    default_topic="TBW102",
    default_topic_queues=4,
    queue=3,
    broker="b%b",
)
#: All characters that JSON escapes, lone surrogates, and others.
TEXTS = (
    st.text(st.characters())
    | st.text(st.characters(max_codepoint=0x7F))
    | st.text(st.characters(categories=["Cs", "Nd"]))
)
#: What Python's `%d` takes, and what it does not.
UNUSUAL = st.sampled_from(
    [0, 1 << 20, 2**63 - 1, 2**63, -(2**63) - 1, 1.5, 1e300, float("nan"), True, None, "1"]
)
BODIES = (b"body", bytearray(b"body"), memoryview(b"body"), "body", None)


@given(int32s, int64s, int32s, TEXTS, int32s, int32s, st.binary(max_size=100))
def test_frames(
    sys_flag: int,
    born_ms: int,
    flag: int,
    properties: str,
    flags: int,
    request_id: int,
    body: bytes,
) -> None:
    assert_same(
        pure_send_frame,
        native.send_frame,
        *(FORM, sys_flag, born_ms, flag, properties, flags, request_id, body, 1 << 20),
    )


@given(st.integers(300, 500), st.binary(max_size=100))
def test_the_limit(bytes_max: int, body: bytes) -> None:
    arguments = (FORM, 0, 1, 0, "UNIQ_KEY\x01A\x02", 0, 7, body, bytes_max)
    assert_same(pure_send_frame, native.send_frame, *arguments)


@given(UNUSUAL, UNUSUAL, UNUSUAL, UNUSUAL, UNUSUAL, st.sampled_from(BODIES), UNUSUAL)
def test_values_of_other_types_are_left_to_python(
    sys_flag: Any, born_ms: Any, flag: Any, flags: Any, request_id: Any, body: Any, most: Any
) -> None:
    assert_same(
        pure_send_frame,
        native.send_frame,
        *(FORM, sys_flag, born_ms, flag, "UNIQ_KEY\x01A\x02", flags, request_id, body, most),
    )


@pytest.mark.parametrize("properties", [None, b"UNIQ_KEY", 7])
def test_properties_of_other_types_are_left_to_python(properties: Any) -> None:
    arguments = (FORM, 0, 1, 0, properties, 0, 7, b"x", 1 << 20)
    assert_same(pure_send_frame, native.send_frame, *arguments)
