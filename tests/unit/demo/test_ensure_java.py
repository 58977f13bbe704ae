"""`make setup` and `make demo` install Java where it is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).parents[3] / "scripts" / "ensure_java.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ensure_java", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pretend(
    monkeypatch: pytest.MonkeyPatch,
    script: ModuleType,
    *,
    javas: list[bool],
    can_install: bool = False,
    works: str = "",
) -> list[str]:
    """Fake the search for Java and the installation; only the package `works` installs."""
    commands: list[str] = []

    def run(*command: str) -> bool:
        commands.append(" ".join(command))
        return command[-1] in ("update", works)

    monkeypatch.setattr(script, "find_java", lambda: javas.pop(0) or None)
    monkeypatch.setattr(script, "can_install", lambda: can_install)
    monkeypatch.setattr(script, "run", run)
    return commands


def test_nothing_is_done_or_printed_when_java_is_installed(
    monkeypatch: pytest.MonkeyPatch, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _pretend(monkeypatch, script, javas=[True], can_install=True) == []
    script.main()
    assert capsys.readouterr().out == ""


def test_command_is_printed_to_a_user_who_may_not_install(
    monkeypatch: pytest.MonkeyPatch, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _pretend(monkeypatch, script, javas=[False])
    script.main()
    assert "install Java 17 or newer: " in capsys.readouterr().out
    assert commands == []


def test_first_package_that_the_distribution_has_is_installed(
    monkeypatch: pytest.MonkeyPatch, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = "openjdk-21-jre-headless"
    commands = _pretend(monkeypatch, script, javas=[False, True], can_install=True, works=newer)
    script.main()
    assert commands == [
        "apt-get update",
        "apt-get install -y openjdk-17-jre-headless",
        "apt-get install -y openjdk-21-jre-headless",
    ]
    assert "failed" not in capsys.readouterr().out


def test_failed_install_is_reported_and_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, script, javas=[False, False], can_install=True)
    script.main()
    assert "The installation failed" in capsys.readouterr().out


def test_command_that_fails_says_why(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.run("sh", "-c", "echo no such mirror >&2; exit 100") is False
    assert script.run("no-such-program") is False
    assert script.run("true") is True
    assert "no such mirror" in capsys.readouterr().out
