"""What the senders were told about their messages; the demo's own books.

One rule: a message counts as acknowledged only by a receipt. Accounts are written to by one sender
and read by others, from several threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from downrange.errors import RocketMQError
    from downrange.model import BatchReceipt, SendReceipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The numbers of an account at one time.

    Attributes:
        acknowledged: Messages that a broker took, and that are meant to be seen.
        withdrawn: Messages that a broker took, and that nobody may see: rolled back, recalled.
        oneway: Messages that were handed over without an answer.
        retried: Receipts that took more than one attempt.
        maybe_twice: Those of them where an attempt before may have stored it, too.
        failed: Messages that were given up.
    """

    acknowledged: int
    withdrawn: int
    oneway: int
    retried: int
    maybe_twice: int
    failed: int

    @property
    def handed_over(self) -> int:
        """Everything that was tried."""
        return self.acknowledged + self.withdrawn + self.oneway + self.failed


class Account:
    """What one sender was told.

    Args:
        topic: Where it sends to.
        mode: How, in a word or two.
    """

    def __init__(self, topic: str, mode: str) -> None:
        self.topic = topic
        self.mode = mode
        self._lock = threading.Lock()
        self._acknowledged: set[str] = set()
        self._withdrawn: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._oneway = self._retried = self._maybe_twice = self._failed = 0

    # ---- writing -----------------------------------------------------------------------------

    def sent(self, receipt: SendReceipt) -> None:
        """Take a receipt; that of a batch holds the ids of all its messages."""
        ids = receipt.message_id.split(",")
        with self._lock:
            self._acknowledged.update(ids)
            self._retried += receipt.attempts > 1
            self._maybe_twice += receipt.may_be_stored_twice
            self._failures.update(type(attempt.error).__name__ for attempt in receipt.failures)

    def sent_batch(self, batch: BatchReceipt) -> None:
        """Take the receipts of a list."""
        for receipt in batch:
            self.sent(receipt)

    def withdrew(self, message_id: str) -> None:
        """Note that nobody may see a message that was acknowledged."""
        with self._lock:
            self._acknowledged.discard(message_id)
            self._withdrawn.add(message_id)

    def lost_sight_of(self, message_id: str) -> None:
        """Note that nobody can know whether a message will be seen: an answer about it was lost."""
        with self._lock:
            self._acknowledged.discard(message_id)
            self._failed += 1

    def sent_oneway(self) -> None:
        """Note a message for which there is no receipt."""
        with self._lock:
            self._oneway += 1

    def failed(self, error: RocketMQError, count: int = 1) -> None:
        """Note messages that were given up; they may be stored all the same."""
        with self._lock:
            self._failed += count
            self._failures[type(error).__name__] += 1

    # ---- reading -----------------------------------------------------------------------------

    def tally(self) -> Tally:
        """Return the numbers as they are now."""
        with self._lock:
            return Tally(
                acknowledged=len(self._acknowledged),
                withdrawn=len(self._withdrawn),
                oneway=self._oneway,
                retried=self._retried,
                maybe_twice=self._maybe_twice,
                failed=self._failed,
            )

    @property
    def acknowledged(self) -> frozenset[str]:
        """The ids that must be found again."""
        with self._lock:
            return frozenset(self._acknowledged)

    @property
    def withdrawn(self) -> frozenset[str]:
        """The ids that must not."""
        with self._lock:
            return frozenset(self._withdrawn)

    @property
    def failures(self) -> Counter[str]:
        """What attempts met, by the name of the error."""
        with self._lock:
            return Counter(self._failures)
