"""Hooks: observe and measure sends, and forbid some of them.

python examples/hooks.py
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

import downrange as mq

if TYPE_CHECKING:
    from downrange.wire.command import Command


def no_secrets(context: mq.SendContext) -> None:
    """Forbid a message: an exception here stops the send."""
    if context.message.properties.get("class") == "secret":
        raise PermissionError("secret messages must not be sent")


def begin(context: mq.SendContext) -> None:
    """Store a value for the hook after the send."""
    context.notes["started"] = time.perf_counter()


def end(context: mq.SendContext) -> None:
    """Print the result of an attempt."""
    milliseconds = (time.perf_counter() - context.notes["started"]) * 1000
    result = context.receipt.status.name if context.receipt else repr(context.error)
    took = "less than 1 s" if milliseconds < 1000 else f"{milliseconds:.0f} ms"
    print(f"  {context.mode} {context.queue.topic} -> {context.address}: {result} in {took}")


def broken(context: mq.SendContext) -> None:
    """Raise an error: it is logged, and the message is sent nevertheless."""
    raise ValueError("a bug in a hook")


def print_call(address: str, request: Command, reply: Command | None) -> None:
    """Print every request to every server, including heartbeats and route lookups."""
    print(f"  request {request.code} to {address}: code {reply.code if reply else None}")


def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="  log: %(message)s", level=logging.WARNING)
    hooks = mq.Hooks(
        forbid_send=(no_secrets,),
        before_send=(begin, broken),
        after_send=(end,),
        after_call=(print_call,),
    )
    with (
        mq.Cluster() as cluster,
        mq.Producer(cluster.name_server, group="shop", hooks=hooks) as producer,
    ):
        print("send")
        producer.send(mq.Message("orders", b"1"))
        print("send a secret")
        try:
            producer.send(mq.Message("orders", b"2", properties={"class": "secret"}))
        except mq.SendForbidden as error:
            print(f"  {type(error).__name__}: {error}")
        print("close")


if __name__ == "__main__":
    main()
