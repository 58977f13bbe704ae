"""The fuzzer itself, and a fixed part of its inputs in every test run."""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from downrange.errors import WireError
from tests.fuzz import __main__ as command_line
from tests.fuzz.mutation import BYTES_MAX, mutate
from tests.fuzz.runner import Campaign, Failure, steps, summary
from tests.fuzz.targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Callable

EXECUTIONS = 120


def failing_target(read: Callable[[bytes], object]) -> Target:
    return Target("broken", read, lambda _: None, (b"seed 12",))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.name))
def test_a_reader_survives_fuzzing(target: Target) -> None:
    campaign = Campaign(target, seed=20240229)
    for failure in islice(steps([campaign]), EXECUTIONS):
        assert failure is None, str(failure)
    assert campaign.executions == EXECUTIONS


def test_the_same_seed_gives_the_same_input() -> None:
    inputs: list[list[bytes]] = []
    for seed in (1, 1, 2):
        seen: list[bytes] = []
        campaign = Campaign(Target("recorder", seen.append, lambda _: None, (b"abc",)), seed)
        for _ in range(50):
            campaign.step()
        inputs.append(seen)
    assert inputs[0] == inputs[1] != inputs[2]


def test_a_failure_names_its_target_input_and_trace() -> None:
    def read(_: bytes) -> None:
        raise KeyError("found it")

    failure = Campaign(failing_target(read), 1).step()
    assert isinstance(failure, Failure)
    assert "target: broken" in str(failure)
    assert f"input:  {failure.data.hex()}" in str(failure)
    assert "KeyError: 'found it'" in str(failure)


def test_a_broken_invariant_is_a_failure() -> None:
    def check(_: object) -> None:
        raise AssertionError("not the same")

    failure = Campaign(Target("broken", len, check, (b"x",)), 1).step()
    assert failure is not None
    assert "not the same" in failure.trace


def test_refused_input_counts_neither_as_failure_nor_as_accepted() -> None:
    def read(_: bytes) -> None:
        raise WireError("here", "wrong")

    campaign = Campaign(failing_target(read), 1)
    assert campaign.step() is None
    assert (campaign.executions, campaign.accepted) == (1, 0)
    assert "1         0  broken" in summary([campaign])


def test_accepted_input_is_kept_up_to_a_limit() -> None:
    campaign = Campaign(failing_target(len), 1)
    for _ in range(500):
        campaign.step()
    assert campaign.accepted == 500
    assert 100 < len(campaign._pool) < 300


def test_damage_is_bounded_and_takes_any_input() -> None:
    source = random.Random(1)
    for data in (b"", b"x", b"12345", bytes(BYTES_MAX)):
        damaged = [mutate(source, data, b"other") for _ in range(300)]
        assert len(set(damaged)) > 50
        assert max(map(len, damaged)) <= BYTES_MAX


def test_the_command_line_tells_seed_and_executions(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--seconds", "0.01", "--seed", "7", "--target", "batch"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("seed 7\n")
    assert "batch" in output


def test_the_command_line_draws_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--seconds", "0.01", "--target", "frames"]) == 0
    assert int(capsys.readouterr().out.split()[1]) >= 0


def test_the_command_line_fails_with_seed_input_and_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: bytes) -> None:
        raise KeyError("found it")

    monkeypatch.setattr(command_line, "TARGETS", (failing_target(read),))
    assert command_line.main(["--seconds", "60", "--seed", "7"]) == 1
    output = capsys.readouterr().out
    assert "FAILED with seed 7\ntarget: broken\ninput:  " in output
    assert "KeyError: 'found it'" in output


def test_the_command_line_refuses_an_unknown_target(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["--target", "no such"])
    assert "no target's name holds 'no such'" in capsys.readouterr().err
