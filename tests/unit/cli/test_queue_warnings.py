"""Warnings about queues: each reason once, and none that the command ends with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from downrange.cli.queue_warnings import QueueWarnings
from downrange.errors import ConnectFailed, NoPermission

if TYPE_CHECKING:
    import pytest

LOG = logging.getLogger("downrange.client")
DENIED = NoPermission(16, "not you", "b:1")
GONE = ConnectFailed("b:1", "refused")


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def _fail(error: Exception, count: int = 8) -> None:
    for number in range(count):
        LOG.warning("%s queue %s/%d cannot be read: %s", "t", "a", number, error)


def test_a_reason_is_printed_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with QueueWarnings(clock) as warnings:
        _fail(GONE)
        LOG.warning("something else")
        LOG.warning("with a fact: %s", 5)
        assert [record.getMessage() for record in caplog.records] == [
            "t queue a/0 cannot be read: b:1: refused",
            "something else",
            "with a fact: 5",
        ]
        clock.now += 60.0
        _fail(GONE)
        assert len(caplog.records) == 4
        warnings.print_old()
    _fail(GONE)
    assert len(caplog.records) == 12


def test_an_error_that_the_command_ends_with_is_not_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with QueueWarnings(Clock()) as warnings:
        _fail(DENIED)
        warnings.print_old()
    assert not caplog.records
    assert capsys.readouterr().err == ""


def test_an_error_of_some_queues_is_printed_once_the_others_were_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with QueueWarnings(clock) as warnings:
        _fail(DENIED)
        clock.now += 2.0
        warnings.print_old()
        _fail(DENIED)
        clock.now += 2.0
        warnings.print_old()
    assert capsys.readouterr().err == f"downrange: t queue a/0 cannot be read: {DENIED}\n"
