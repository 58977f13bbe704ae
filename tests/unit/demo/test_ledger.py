from __future__ import annotations

from downrange.demo.ledger import Account, Tally
from downrange.errors import ConnectFailed
from tests.unit.demo.receipts import answer_lost, batch, receipt, refused


def test_only_a_receipt_acknowledges() -> None:
    account = Account("orders", "sync")
    account.sent(receipt("a"))
    account.sent_batch(batch("b", "c"))
    account.sent_oneway()
    account.failed(ConnectFailed("127.0.0.1:1", "refused"), count=3)
    assert account.acknowledged == {"a", "b", "c"}
    assert account.tally() == Tally(
        acknowledged=3, withdrawn=0, oneway=1, retried=0, maybe_twice=0, failed=3
    )
    assert account.tally().handed_over == 7


def test_withdrawn_message_is_not_expected_any_more() -> None:
    account = Account("payments", "transaction")
    account.sent(receipt("a"))
    account.sent(receipt("b"))
    account.withdrew("a")
    assert account.acknowledged == {"b"}
    assert account.withdrawn == {"a"}


def test_message_whose_fate_nobody_knows_is_neither_expected_nor_forbidden() -> None:
    account = Account("reminders", "delay")
    account.sent(receipt("a"))
    account.lost_sight_of("a")
    assert account.acknowledged == account.withdrawn == frozenset()
    assert account.tally().failed == 1


def test_retries_are_counted_with_what_they_met() -> None:
    account = Account("orders", "sync")
    account.sent(receipt("a", failures=(refused(),)))
    account.sent(receipt("b", failures=(refused(), answer_lost())))
    account.sent(receipt("c"))
    assert account.tally().retried == 2
    assert account.tally().maybe_twice == 1
    assert account.failures == {"ConnectFailed": 2, "ConnectionLost": 1}
