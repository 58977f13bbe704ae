"""Log lines of group consumers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from downrange.client.consumer_log import log_consumer, log_handler_failure
from downrange.client.flows.notices import (
    AssignmentChanged,
    ClientIdTaken,
    CommitFailed,
    HandlerFailed,
    HandlerStuck,
    HandoverEnded,
    LockLost,
    QueueFailed,
    QueueRecovered,
    SharesFound,
    SharesMissing,
    SubscriptionsDiffer,
    TopicUnread,
)
from downrange.client.notice_log import NoticeLog
from downrange.errors import ConnectFailed, Retry
from downrange.model import QueueId
from tests.support.clock import FakeClock
from tests.unit.client.flows.consuming.group_stage import A0, A1
from tests.unit.client.flows.consuming.test_delivery_window import messages_at

if TYPE_CHECKING:
    from downrange.client.flows.notices import ConsumerNotice

AWAY = ConnectFailed("a:1", "away")
(MESSAGE,) = messages_at(5)
ID = MESSAGE.message_id
Q0, Q1 = "queue 0 of orders on a", "queue 1 of orders on a"


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "downrange.client")


@pytest.mark.parametrize(
    ("notice", "level", "line"),
    [
        (
            AssignmentChanged("g", {A0: (7, "committed")}, []),
            "INFO",
            f"group g: {Q0} is consumed from offset 7 on (committed)",
        ),
        (AssignmentChanged("g", {}, [A1]), "INFO", f"group g: {Q1} goes to another member"),
        (QueueFailed("g", A0, AWAY, "cannot be read"), "WARNING", f"{Q0} cannot be read: {AWAY}"),
        (QueueFailed("g", A0, None, "moved to 5"), "WARNING", f"group g: {Q0} moved to 5"),
        (QueueRecovered("g", A0), "INFO", f"group g: {Q0} can be read again"),
        (LockLost("g", A0), "WARNING", f"the lock of {Q0} was lost to another member"),
        (HandoverEnded("g", A0, 13.04), "WARNING", f"{Q0} is taken after 13.0 s, although its"),
        (CommitFailed("g", AWAY), "WARNING", f"group g: offsets cannot be committed: {AWAY}"),
        (
            HandlerStuck("g", MESSAGE, 901.2),
            "WARNING",
            f"group g: the handler of message {ID} ({Q0}, offset 5) has been running for 901 s",
        ),
        (
            SubscriptionsDiffer("g", {"orders": "new"}, {}),
            "WARNING",
            "This member: orders 'new'. The broker has, from another member: none.",
        ),
        (
            TopicUnread("g", "oders", "does not exist", "`downrange topic list` shows the topics"),
            "WARNING",
            "group g: topic oders does not exist, so nothing of it is consumed; it is looked for "
            "again. `downrange topic list` shows the topics",
        ),
        (
            SharesMissing("g", "orders", "no group"),
            "WARNING",
            "group g: the queues of topic orders cannot be divided among the members, so this one "
            "gets no new ones; it tries again. no group",
        ),
        (SharesMissing("g", "orders", "the strategy failed", ValueError("bad")), "ERROR", "failed"),
        (SharesFound("g"), "INFO", "group g: the queues can be divided among the members again"),
        (
            QueueFailed("g", QueueId("orders", "a", -1), AWAY, "cannot be popped"),
            "WARNING",
            f"group g: topic orders on a cannot be popped: {AWAY}",
        ),
        (
            ClientIdTaken("g", "10.0.0.1@same", ("10.0.0.1:5", "10.0.0.2:6")),
            "WARNING",
            "group g: several clients have the id 10.0.0.1@same, on connections from 10.0.0.1:5",
        ),
        (
            HandlerFailed("g", MESSAGE, ValueError("bad"), "attempt 2 follows"),
            "ERROR",
            f"message {ID} ({Q0}, offset 5) failed: ValueError('bad'); attempt 2 follows",
        ),
        (HandlerFailed("g", MESSAGE, Retry(1), "as asked"), "INFO", "failed: Retry(1); as asked"),
    ],
)
def test_lines(
    caplog: pytest.LogCaptureFixture, notice: ConsumerNotice, level: str, line: str
) -> None:
    NoticeLog(FakeClock()).observe(notice)
    log_consumer(notice)
    for record in caplog.records:
        assert record.levelname == level
        assert line in record.getMessage()
    assert len(caplog.records) == 2


def test_the_error_of_a_strategy_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_consumer(SharesMissing("g", "orders", "the strategy failed", ValueError("bad")))
    (record,) = caplog.records
    assert record.exc_info is not None


def test_an_exception_is_logged_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    log_handler_failure(HandlerFailed("g", MESSAGE, ValueError("bad"), "plan"), 3)
    log_handler_failure(HandlerFailed("g", MESSAGE, ValueError("bad"), "plan"), None)
    first, second = caplog.records
    assert first.exc_info is not None
    assert first.getMessage().endswith("plan (3 more failed since the last error)")
    assert second.levelname == "DEBUG"
