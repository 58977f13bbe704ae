"""Each class and its asyncio twin: the same methods, the same parameters, the same words."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

import downrange
from downrange import client

MODULES = [
    importlib.import_module(f"downrange.client.{module.name}")
    for module in pkgutil.iter_modules(client.__path__)
]
CLASSES: dict[str, type] = {
    name: kind
    for module in MODULES
    for name, kind in vars(module).items()
    if inspect.isclass(kind) and kind.__module__ == module.__name__ and not name.startswith("_")
}
TWINS = sorted(name for name in CLASSES if f"Async{name}" in CLASSES)

#: A thread that does not want to wait needs a future; a task is one already. Only threads can leave
#: flows behind that have not begun.
ONLY_FOR_THREADS = {
    "Client": {"submit", "run_last"},
    "Producer": {"submit", "submit_batch", "submit_request"},
    "TransactionProducer": {"submit", "submit_batch", "submit_request"},
    "MessageTemplate": {"convert_and_submit"},
}
#: What runs the flows is told where it runs them.
OWN_WORDS = {("Client", "run"), ("Client", "round_robin")}

#: Bases of others, which nobody makes by themselves.
INSIDE = {"TopicCalls"}

each_twin = pytest.mark.parametrize("name", TWINS)


def public(kind: type) -> dict[str, Any]:
    """Return what a class offers, inherited or its own, by name."""
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") or name == "__init__"
    }


def both(name: str) -> list[tuple[str, Any, Any]]:
    ours, twins = public(CLASSES[name]), public(CLASSES[f"Async{name}"])
    return [(member, ours[member], twins[member]) for member in sorted(ours.keys() & twins.keys())]


def function_of(member: Any) -> Any:
    """Return the function behind a method, class method or property; None for plain values."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    return member if inspect.isfunction(member) else None


def untwinned(text: object) -> str:
    """Return a type or a text as the one for threads has it."""
    plain = re.sub(r"\ban (`?)Async(?=[A-Z])", r"a \1", str(text))
    plain = re.sub(r"\bAsync(?=[A-Z])", "", plain)
    plain = re.sub(r"\b(async|await) ", "", plain)
    return re.sub(r"(Awaitable|Coroutine)\[(?:Any, Any, )?(.*)\]", r"\2", plain)


def signature_of(member: Any) -> list[tuple[str, str, object, str]]:
    signature = inspect.signature(function_of(member))
    return [
        (parameter.name, parameter.kind.name, parameter.default, untwinned(parameter.annotation))
        for parameter in signature.parameters.values()
    ]


def words_of(thing: Any) -> str:
    """Return a docstring without its example, which shows how one waits."""
    text = inspect.cleandoc(thing.__doc__ or "").partition("Example:")[0].rstrip()
    return untwinned(text)


def test_all_classes_that_wait_have_a_twin() -> None:
    assert set(TWINS) == {
        *("Admin", "Client", "MessageTemplate", "Producer", "PullConsumer", "Transaction"),
        *("TransactionProducer", *INSIDE),
    }
    assert {name for name in CLASSES if name.startswith("Async")} == {f"Async{n}" for n in TWINS}
    for name in set(TWINS) - INSIDE:
        assert getattr(downrange, name) is CLASSES[name]
        assert getattr(downrange, f"Async{name}") is CLASSES[f"Async{name}"]


@each_twin
def test_twins_offer_the_same(name: str) -> None:
    ours, twins = set(public(CLASSES[name])), set(public(CLASSES[f"Async{name}"]))
    assert ours - twins == ONLY_FOR_THREADS.get(name, set())
    assert twins - ours == set()


@each_twin
def test_twins_take_the_same_parameters(name: str) -> None:
    for member, ours, twins in both(name):
        if function_of(ours) is not None:
            assert signature_of(ours) == signature_of(twins), member


@each_twin
def test_twins_return_the_same(name: str) -> None:
    for member, ours, twins in both(name):
        if function_of(ours) is not None:
            returned = [inspect.signature(function_of(one)) for one in (ours, twins)]
            plain = [untwinned(one.return_annotation) for one in returned]
            assert plain[0] == plain[1].replace("AsyncIterator", "Iterator"), member


@each_twin
def test_twins_are_described_in_the_same_words(name: str) -> None:
    for member, ours, twins in both(name):
        if (name, member) not in OWN_WORDS and member != "__init__":
            assert words_of(function_of(ours) or ours) == words_of(function_of(twins) or twins), (
                member
            )


@each_twin
def test_the_arguments_of_twins_are_described_all(name: str) -> None:
    """How they are used may be said in other words: functions may be coroutine functions there."""
    for kind in (CLASSES[name], CLASSES[f"Async{name}"]):
        described = re.findall(
            r"^    (\w+): ", words_of(kind).partition("Raises:")[0], re.MULTILINE
        )
        taken = [argument for argument, *_ in signature_of(public(kind)["__init__"])][1:]
        assert described == taken or kind.__doc__ is None or "Args:" not in kind.__doc__


@each_twin
def test_everything_that_twins_offer_is_described(name: str) -> None:
    for member, ours, _ in both(name):
        function = function_of(ours)
        if function is not None and member != "__init__":
            assert function.__doc__, member


@each_twin
def test_twins_are_entered_and_left_alike(name: str) -> None:
    ours, twins = CLASSES[name], CLASSES[f"Async{name}"]
    assert hasattr(ours, "__enter__") == hasattr(twins, "__aenter__")
    assert hasattr(ours, "__exit__") == hasattr(twins, "__aexit__")
    assert not hasattr(twins, "__enter__")
    assert hasattr(ours, "__iter__") == hasattr(twins, "__aiter__")


def test_a_difference_between_twins_would_be_noticed() -> None:
    def one(self: Any, timeout: float = 3.0) -> None:
        """Do it."""

    def other(self: Any, timeout: float = 5.0) -> None:
        """Do it otherwise."""

    assert signature_of(one) != signature_of(other)
    assert words_of(one) != words_of(other)
    assert untwinned("AsyncClient | Awaitable[int]") == "Client | int"
