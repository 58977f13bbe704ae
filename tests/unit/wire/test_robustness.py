"""Every reader of the wire layer reads any input or refuses it with a `WireError`.

The readers and the checks of their results are the fuzzer's table of targets.
"""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import WireError
from tests.fuzz.targets import TARGETS, Target
from tests.unit.wire.strategies import damaged, few_examples

GENERAL = [target for target in TARGETS if not target.name.startswith("body ")]
BODIES = [target for target in TARGETS if target.name.startswith("body ")]
each_target = pytest.mark.parametrize("target", GENERAL, ids=lambda target: str(target.name))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.name))
def test_a_reader_accepts_undamaged_input(target: Target) -> None:
    assert target.run(target.seeds[0])


@each_target
@few_examples
@given(st.binary(max_size=100))
def test_a_reader_takes_or_refuses_any_bytes(target: Target, data: bytes) -> None:
    target.run(data)


@each_target
@few_examples
@given(st.data())
def test_a_reader_takes_or_refuses_damaged_input(target: Target, data: st.DataObject) -> None:
    target.run(data.draw(damaged(target.seeds)))


@given(st.sampled_from(BODIES), st.data())
def test_every_body_takes_or_refuses_damaged_input(target: Target, data: st.DataObject) -> None:
    target.run(data.draw(damaged(target.seeds)))


@given(st.binary(max_size=100))
def test_every_body_takes_or_refuses_any_bytes(data: bytes) -> None:
    for target in BODIES:
        target.run(data)


@each_target
def test_a_reader_takes_or_refuses_input_cut_off_anywhere(target: Target) -> None:
    seed = max(target.seeds[:20], key=len)
    for size in range(0, len(seed), max(len(seed) // 100, 1)):
        target.run(seed[:size])


@each_target
@pytest.mark.parametrize("number", [-(2**31), -1, 0, 1, 2**31 - 1])
def test_a_reader_takes_or_refuses_any_lying_length(target: Target, number: int) -> None:
    seed = min(target.seeds, key=len)
    for at in range(min(len(seed), 120)):
        target.run(seed[:at] + pack(">i", number) + seed[at + 4 :])


def test_a_target_fails_when_its_reader_raises_anything_else() -> None:
    def read(_: bytes) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        Target("broken", read, lambda _: None, (b"",)).run(b"")


def test_a_target_tells_whether_its_reader_refused() -> None:
    def read(_: bytes) -> None:
        raise WireError("here", "wrong")

    assert not Target("refusing", read, lambda _: None, (b"",)).run(b"")
    assert Target("accepting", len, lambda _: None, (b"",)).run(b"")
