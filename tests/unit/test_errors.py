"""The exception tree: as it is drawn, with its facts, through pickles too."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest

from downrange import errors
from downrange.errors import RocketMQError

#: One of each kind that carries facts, with the facts and the text.
SAMPLES: list[tuple[RocketMQError, dict[str, Any], str]] = [
    (RocketMQError("text"), {}, "text"),
    (errors.OptionError("text"), {}, "text"),
    (
        errors.MissingExtra("the console", "console"),
        {"feature": "the console", "extra": "console"},
        "the console needs the 'console' extra: pip install 'downrange[console]'",
    ),
    (errors.LinkError("text"), {}, "text"),
    (errors.LinkClosed("text"), {}, "text"),
    (
        errors.TooManyInFlight(5),
        {"limit": 5},
        "5 requests are in flight on this connection, its limit",
    ),
    (
        errors.TransportError("broker:1", "odd"),
        {"address": "broker:1", "problem": "odd"},
        "broker:1: odd",
    ),
    (errors.ConnectFailed("broker:1", "refused"), {"address": "broker:1"}, "broker:1: refused"),
    (errors.ConnectionLost("broker:1", "cut"), {"address": "broker:1"}, "broker:1: cut"),
    (
        errors.CallTimeout("broker:1", 0.5),
        {"address": "broker:1", "timeout": 0.5, "problem": "no answer within 0.5 s"},
        "broker:1: no answer within 0.5 s",
    ),
    (
        errors.CannotListen("127.0.0.1:9876", "taken"),
        {"address": "127.0.0.1:9876", "problem": "taken"},
        "cannot listen on 127.0.0.1:9876: taken",
    ),
    (errors.StoreError("text"), {}, "text"),
    (
        errors.StoreLocked("data"),
        {"folder": "data"},
        "store folder data is in use by another process; stop it first",
    ),
    (errors.DiskFull("a/b"), {"path": "a/b"}, "no space left on the disk for a/b"),
    (
        errors.CorruptStore("a/b", 7, "wrong"),
        {"path": "a/b", "position": 7, "problem": "wrong"},
        "a/b at byte 7: wrong",
    ),
    (errors.WireError("here", "wrong"), {"where": "here", "problem": "wrong"}, "here: wrong"),
    (
        errors.FrameTooLarge(11, 10),
        {"size": 11, "limit": 10, "where": "frame length"},
        "frame length: 11 bytes are more than the limit of 10",
    ),
    (errors.MalformedFrame("here", "wrong"), {"where": "here"}, "here: wrong"),
    (errors.MalformedCommand("here", "wrong"), {"where": "here"}, "here: wrong"),
    (
        errors.MissingField("PullRequest", "topic"),
        {"field": "topic", "where": "PullRequest"},
        "PullRequest: field 'topic' is missing",
    ),
    (
        errors.InvalidField("PullRequest", "queueId", "'x' is no whole number"),
        {"field": "queueId", "where": "PullRequest"},
        "PullRequest: field 'queueId': 'x' is no whole number",
    ),
    (errors.MalformedBody("here", "wrong"), {"where": "here"}, "here: wrong"),
    (
        errors.MalformedRecord(7, "wrong"),
        {"position": 7, "problem": "wrong"},
        "record at byte 7: wrong",
    ),
    (errors.MalformedId("here", "wrong"), {"where": "here"}, "here: wrong"),
    (errors.Unencodable("here", "wrong"), {"where": "here"}, "here: wrong"),
]
each_sample = pytest.mark.parametrize(
    ("error", "facts", "text"), SAMPLES, ids=[type(sample[0]).__name__ for sample in SAMPLES]
)


def drawn_tree() -> dict[str, tuple[str | None, list[str]]]:
    """Read the docstring: class -> the one that it hangs under, and its other bases."""
    tree: dict[str, tuple[str | None, list[str]]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ((?:[│├└─ ]{4})*)(\w+)(?: \((\w+)\))?(?:  |$)", line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            others = [found[3]] if found[3] else []
            tree[found[2]] = (path[depth - 1] if depth else None, others)
    return tree


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    real: dict[str, tuple[str | None, list[str]]] = {}
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, RocketMQError):
            ours = [b.__name__ for b in kind.__bases__ if issubclass(b, RocketMQError)]
            others = [b.__name__ for b in kind.__bases__ if not issubclass(b, RocketMQError)]
            real[name] = (ours[0] if ours else None, [b for b in others if b != "Exception"])
    assert drawn_tree() == real


def test_every_error_has_a_sample_here() -> None:
    assert {type(sample[0]).__name__ for sample in SAMPLES} == set(drawn_tree())


@each_sample
def test_an_error_says_its_text_and_carries_its_facts(
    error: RocketMQError, facts: dict[str, Any], text: str
) -> None:
    assert str(error) == text
    assert repr(error) == f"{type(error).__name__}({text!r})"
    assert {name: getattr(error, name) for name in facts} == facts


@each_sample
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_a_pickle(
    error: RocketMQError, facts: dict[str, Any], text: str, protocol: int
) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (str(again), again.args) == (text, error.args)
    assert {name: getattr(again, name) for name in facts} == facts


@each_sample
def test_an_error_can_be_copied(error: RocketMQError, facts: dict[str, Any], text: str) -> None:
    error.add_note("noted")
    again = copy.copy(error)
    assert str(again) == text
    assert again.__notes__ == ["noted"]
    assert {name: getattr(again, name) for name in facts} == facts


def test_our_errors_are_caught_as_what_they_are_in_python() -> None:
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.MissingExtra, ImportError)
    assert issubclass(errors.CallTimeout, TimeoutError)
