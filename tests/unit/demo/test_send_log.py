from __future__ import annotations

from downrange.demo.send_log import SendCounts, SendLog
from downrange.errors import ConnectFailed
from tests.unit.demo.receipts import answer_lost, batch, receipt, refused


def test_only_a_receipt_acknowledges() -> None:
    send_log = SendLog("orders", "sync")
    send_log.add_receipt(receipt("a"))
    send_log.add_batch(batch("b", "c"))
    send_log.add_oneway()
    send_log.add_failure(ConnectFailed("127.0.0.1:1", "refused"), count=3)
    assert send_log.acknowledged == {"a", "b", "c"}
    assert send_log.counts() == SendCounts(
        acknowledged=3, withdrawn=0, unknown=0, oneway=1, retried=0, maybe_twice=0, failed=3
    )
    assert send_log.counts().attempted == 7


def test_withdrawn_message_is_not_expected_any_more() -> None:
    send_log = SendLog("payments", "transaction")
    send_log.add_receipt(receipt("a"))
    send_log.add_receipt(receipt("b"))
    send_log.withdraw("a")
    assert send_log.acknowledged == {"b"}
    assert send_log.withdrawn == {"a"}


def test_message_with_unknown_outcome_is_neither_expected_nor_forbidden() -> None:
    send_log = SendLog("reminders", "delay")
    send_log.add_receipt(receipt("a"))
    send_log.mark_unknown("a")
    assert send_log.acknowledged == send_log.withdrawn == frozenset()
    counts = send_log.counts()
    assert (counts.unknown, counts.failed) == (1, 0)
    assert counts.stored == counts.attempted == 1


def test_retries_are_counted_with_their_errors() -> None:
    send_log = SendLog("orders", "sync")
    send_log.add_receipt(receipt("a", failures=(refused(),)))
    send_log.add_receipt(receipt("b", failures=(refused(), answer_lost())))
    send_log.add_receipt(receipt("c"))
    assert send_log.counts().retried == 2
    assert send_log.counts().maybe_twice == 1
    assert send_log.failures == {"ConnectFailed": 2, "ConnectionLost": 1}
