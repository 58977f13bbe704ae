"""Sync and asyncio classes: what differs, and that docstrings fit the class they stand in.

That all else is equal follows from generation; see test_generate_sync.py.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

import downrange
from downrange.client import _async, _sync


def _classes(package: Any) -> dict[str, type]:
    """Return the classes that the modules of a package define, by name."""
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    }


SYNC = _classes(_sync)
ASYNC = _classes(_async)

#: A thread that does not wait needs a future; a task is one already. Only threads can leave flows
#: behind that have not begun.
ONLY_FOR_THREADS = {
    "Client": {"submit", "submit_send", "run_last", "backlog"},
    "Producer": {"submit", "submit_batch", "submit_request"},
    "TransactionProducer": {"submit", "submit_batch", "submit_request"},
    "MessageTemplate": {"convert_and_submit"},
}
#: Threads share a client; an event loop has its own.
ONLY_FOR_ASYNCIO = {"Client": {"check_loop"}}
#: Bases of public classes.
BASES = {"ClientUser", "TopicCalls", "GroupCalls", "ResetCalls", "DeadLetterCalls", "BrokerCalls"}

each_twin = pytest.mark.parametrize("name", sorted(SYNC))


def _public(kind: type) -> dict[str, Any]:
    """Return the public members of a class, inherited ones included, by name."""
    return {
        name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")
    }


def _function_of(member: Any) -> Any:
    """Return the function of a method, class method or property; None for plain values."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    return member if inspect.isfunction(member) else None


def _docstrings(kind: type) -> list[str]:
    functions = [_function_of(member) for member in _public(kind).values()]
    return [inspect.getdoc(one) or "" for one in (kind, *functions) if one is not None]


def test_all_public_classes_that_wait_have_a_twin() -> None:
    assert set(ASYNC) == {f"Async{name}" for name in SYNC}
    assert set(SYNC) == {
        *("Admin", "Client", "MessageTemplate", "Producer", "PullConsumer", "Transaction"),
        *("TransactionProducer", "SimpleConsumer", "PoppedMessage", "Processing", *BASES),
        *("PushConsumer", "PushedMessage"),
    }
    for name in set(SYNC) - BASES:
        assert getattr(downrange, name) is SYNC[name]
        assert getattr(downrange, f"Async{name}") is ASYNC[f"Async{name}"]


@each_twin
def test_only_submit_and_the_like_have_no_twin(name: str) -> None:
    ours, twins = set(_public(SYNC[name])), set(_public(ASYNC[f"Async{name}"]))
    assert ours - twins == ONLY_FOR_THREADS.get(name, set())
    assert twins - ours == ONLY_FOR_ASYNCIO.get(name, set())


@each_twin
def test_docstrings_of_sync_classes_speak_of_threads(name: str) -> None:
    for text in _docstrings(SYNC[name]):
        assert not re.search(r"[Aa]sync|\bawait|coroutine|event loop|\btasks?\b", text), text


@each_twin
def test_docstrings_of_asyncio_classes_name_asyncio_classes(name: str) -> None:
    for text in _docstrings(ASYNC[f"Async{name}"]):
        assert not re.search(rf"\b({'|'.join(SYNC)})\b(?=[`(])", text), text


@each_twin
def test_all_parameters_of_constructors_are_described(name: str) -> None:
    kind = SYNC[name]
    text = inspect.getdoc(kind) or ""  # Python 3.13 removes the indentation itself
    if "Args:" in text:
        described = re.findall(r"^    (\w+): ", text.partition("Raises:")[0], re.MULTILINE)
        assert described == list(inspect.signature(kind).parameters)


@each_twin
def test_all_public_members_are_described(name: str) -> None:
    assert all(_docstrings(SYNC[name]))
