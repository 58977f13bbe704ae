"""Builders of receipts and failed attempts."""

from __future__ import annotations

from downrange.errors import ConnectFailed, ConnectionLost
from downrange.model import Attempt, BatchReceipt, QueueId, QueueOffset, SendReceipt


def receipt(message_id: str, *, failures: tuple[Attempt, ...] = ()) -> SendReceipt:
    return SendReceipt(
        message_id=message_id,
        queue=QueueId("orders", "broker-a", 0),
        offset=QueueOffset(7),
        offset_id="",
        failures=failures,
    )


def batch(*ids: str) -> BatchReceipt:
    return BatchReceipt((receipt(",".join(ids)),), (len(ids),))


def refused() -> Attempt:
    error = ConnectFailed("127.0.0.1:1", "refused")
    return Attempt("broker-b", "127.0.0.1:1", 0, error, 0.1)


def answer_lost() -> Attempt:
    error = ConnectionLost("127.0.0.1:1", "reset")
    return Attempt("broker-b", "127.0.0.1:1", 0, error, 0.1)
