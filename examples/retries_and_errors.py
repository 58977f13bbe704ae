"""Failures of a send: which are retried, and what the errors contain.

python examples/retries_and_errors.py
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import downrange as mq
from downrange.embedded import Interception, lose_reply, refuse
from downrange.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

SEND = RequestCode.SEND_MESSAGE_V2
ORDER = mq.Message("orders", b"1")


def once(interception: Interception) -> Callable[[Command, Peer], Interception | None]:
    """Apply an interception to the first request only."""
    left = [interception]
    return lambda request, peer: left.pop() if left else None


def attempt(title: str, producer: mq.Producer, message: mq.Message, timeout: float = 3.0) -> None:
    """Send a message and print the receipt or the error."""
    print(f"\n--- {title}")
    try:
        receipt = producer.send(message, timeout=timeout)
    except mq.RocketMQError as error:
        print(f"{type(error).__name__}, retryable={error.retryable}, code={error.code}: {error}")
    else:
        print(f"{receipt.status.name} in attempt {receipt.attempts}", end="")
        print(", may be stored twice" if receipt.may_be_stored_twice else "")
        for failure in receipt.failures:
            print("  before:", failure)


def main() -> None:
    logging.getLogger("downrange.client").setLevel(logging.ERROR)  # no lines on failed attempts
    with mq.Cluster() as cluster, mq.Producer(cluster.name_server, group="shop") as producer:
        attempt("success", producer, ORDER)

        cluster.intercept(SEND, once(refuse(ResponseCode.SYSTEM_BUSY, "too many requests")))
        attempt("the broker is busy, once", producer, ORDER)

        cluster.intercept(SEND, once(lose_reply()))
        short_attempts = mq.ProducerOptions(attempt_timeout=0.3)
        with mq.Producer(
            cluster.name_server, group="short_attempts", options=short_attempts
        ) as other:
            attempt("a reply is lost; attempt_timeout=0.3", other, ORDER)

        cluster.intercept(SEND, refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "disk full"))
        attempt("the broker cannot store", producer, ORDER)

        cluster.intercept(SEND, refuse(ResponseCode.MESSAGE_ILLEGAL, "illegal message"))
        attempt("an error that is not retryable", producer, ORDER)

        cluster.intercept(SEND, lose_reply())
        attempt("no reply, timeout=0.5", producer, ORDER, timeout=0.5)
        cluster.intercept(SEND, None)

        attempt("an invalid message", producer, mq.Message("orders", b""))

        cluster.kill_broker(0)
        attempt("the only broker is down", producer, ORDER)
        name_server = cluster.name_server

    print("\n--- the name server is down")
    try:
        mq.Producer(name_server, group="shop").start()
    except mq.ConnectFailed as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
