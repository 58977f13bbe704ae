"""The script that writes `client/_sync/` from `client/_async/`."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).parents[3] / "scripts" / "generate_sync.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_sync", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate_sync = _loaded()


def _translated(lines: str) -> str:
    text: str = generate_sync.sync_text("x.py", textwrap.dedent(lines))
    header, _, rest = text.partition("\n")
    assert header == "# Generated from client/_async/x.py by scripts/generate_sync.py; do not edit."
    return rest


def test_sync_classes_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_sync.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("async def send(self) -> int: ...", "def send(self) -> int: ..."),
        ("return await client.run(flow)", "return client.run(flow)"),
        ("async with AsyncProducer() as p:", "with Producer() as p:"),
        ("async for message in consumer:", "for message in consumer:"),
        ("async def __aenter__(self): ...", "def __enter__(self): ..."),
        ("async def __aexit__(self): ...", "def __exit__(self): ..."),
        (
            "from downrange.client._async.admin import x",
            "from downrange.client._sync.admin import x",
        ),
        ("def run(self) -> Coroutine[Any, Any, int]: ...", "def run(self) -> int: ..."),
        ("Check = Outcome | Awaitable[Outcome | None] | None", "Check = Outcome | None"),
        ("needs an AsyncClient, or an `AsyncAdmin`", "needs a Client, or a `Admin`"),
        ("driver: AioDriver", "driver: ThreadDriver"),
        ("send(core.async_rules, is_limited=True)", "send(core.waiting_rules)"),
    ],
)
def test_words_are_replaced(line: str, expected: str) -> None:
    assert _translated(line) == expected


def test_marked_lines_are_replaced_and_added() -> None:
    marked = """
        class AsyncA(Base):  # sync: class A(Other):
            async def one(self) -> None:
                await go(1)  # sync: go(2)

            # sync: def two(self) -> None:
            # sync:     stay()
            # sync:
            async def three(self) -> None: ...
    """
    assert _translated(marked) == textwrap.dedent(
        """
        class A(Other):
            def one(self) -> None:
                go(2)

            def two(self) -> None:
                stay()

            def three(self) -> None: ...
    """
    )


def test_a_line_that_the_sync_file_does_not_have_is_dropped() -> None:
    text = "one()\nif True:  # no sync\n    two()  # no sync\nthree()\n"
    assert generate_sync.sync_text("x.py", text).endswith("edit.\none()\nthree()\n")


def test_a_passage_that_is_gone_from_its_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate_sync.TEXTS, "x.py", (("on a loop", "in a thread"),))
    assert "in a thread" in generate_sync.sync_text("x.py", "# on a loop")
    with pytest.raises(ValueError, match=r"'on a loop' does not occur in _async/x\.py"):
        generate_sync.sync_text("x.py", "# elsewhere")


def test_files_that_differ_are_named_and_written(tmp_path: Path) -> None:
    wanted = {"new.py": "1", "same.py": "2", "stale.py": "3"}
    for name, text in (("same.py", "2"), ("stale.py", "old"), ("orphan.py", "4")):
        (tmp_path / name).write_text(text)
    assert generate_sync.problems(wanted, tmp_path) == [
        "new.py is missing",
        "orphan.py has no file in _async/",
        "stale.py is not up to date",
    ]
    assert sorted(generate_sync.write(wanted, tmp_path)) == ["new.py", "orphan.py", "stale.py"]
    assert generate_sync.problems(wanted, tmp_path) == []
    assert generate_sync.write(wanted, tmp_path) == []


def test_a_difference_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_sync, "generated", dict[str, str])
    assert generate_sync.main(["--check"]) == 1
    printed = capsys.readouterr().out
    assert "client/_sync/producer.py has no file in _async/" in printed
    assert "run `make fix`" in printed
