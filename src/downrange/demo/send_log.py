"""Records the outcome of each message, as its sender sees it.

One rule: only a receipt makes a message acknowledged. One sender writes to a log, other threads
read it.
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
class SendCounts:
    """The numbers of a send log at one time.

    Attributes:
        acknowledged: Messages that a broker acknowledged and that consumers shall read.
        withdrawn: Messages that were acknowledged, then rolled back or recalled.
        unknown: Messages that were acknowledged, and may be recalled: the reply to that was lost.
        oneway: Messages that were sent one-way, without an acknowledgement.
        retried: Receipts that took more than one attempt.
        maybe_twice: Receipts where an earlier attempt may have stored the message, too.
        failed: Messages whose send ended with an error.
    """

    acknowledged: int
    withdrawn: int
    unknown: int
    oneway: int
    retried: int
    maybe_twice: int
    failed: int

    @property
    def stored(self) -> int:
        """The number of messages that a broker acknowledged, whatever came after."""
        return self.acknowledged + self.withdrawn + self.unknown

    @property
    def attempted(self) -> int:
        """The number of all messages, whatever their outcome."""
        return self.stored + self.oneway + self.failed


class SendLog:
    """The outcomes of one sender's messages.

    Args:
        topic: Topic that the sender writes to.
        mode: How it sends, in a word or two.
    """

    def __init__(self, topic: str, mode: str) -> None:
        self.topic = topic
        self.mode = mode
        self._lock = threading.Lock()
        self._acknowledged: set[str] = set()
        self._withdrawn: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._unknown = self._oneway = self._retried = self._maybe_twice = self._failed = 0

    # ---- writing -----------------------------------------------------------------------------

    def add_receipt(self, receipt: SendReceipt) -> None:
        """Add a receipt; the receipt of a batch holds the ids of all its messages."""
        ids = receipt.message_id.split(",")
        with self._lock:
            self._acknowledged.update(ids)
            self._retried += receipt.attempts > 1
            self._maybe_twice += receipt.may_be_stored_twice
            self._failures.update(type(attempt.error).__name__ for attempt in receipt.failures)

    def add_batch(self, batch: BatchReceipt) -> None:
        """Add the receipts of a list of messages."""
        for receipt in batch:
            self.add_receipt(receipt)

    def withdraw(self, message_id: str) -> None:
        """Record that an acknowledged message must not be readable any more."""
        with self._lock:
            self._acknowledged.discard(message_id)
            self._withdrawn.add(message_id)

    def mark_unknown(self, message_id: str) -> None:
        """Record that an acknowledged message may or may not become readable."""
        with self._lock:
            self._acknowledged.discard(message_id)
            self._unknown += 1

    def add_oneway(self) -> None:
        """Count a one-way message, which has no receipt."""
        with self._lock:
            self._oneway += 1

    def add_failure(self, error: RocketMQError, count: int = 1) -> None:
        """Count messages whose send failed; a broker may have stored them nevertheless."""
        with self._lock:
            self._failed += count
            self._failures[type(error).__name__] += 1

    # ---- reading -----------------------------------------------------------------------------

    def counts(self) -> SendCounts:
        """Return the current numbers."""
        with self._lock:
            return SendCounts(
                acknowledged=len(self._acknowledged),
                withdrawn=len(self._withdrawn),
                unknown=self._unknown,
                oneway=self._oneway,
                retried=self._retried,
                maybe_twice=self._maybe_twice,
                failed=self._failed,
            )

    @property
    def acknowledged(self) -> frozenset[str]:
        """The ids that must be stored."""
        with self._lock:
            return frozenset(self._acknowledged)

    @property
    def withdrawn(self) -> frozenset[str]:
        """The ids that must not be readable."""
        with self._lock:
            return frozenset(self._withdrawn)

    @property
    def failures(self) -> Counter[str]:
        """Number of failed attempts by the class name of the error."""
        with self._lock:
            return Counter(self._failures)
