"""Look on while messages are sent, measure, and forbid some.

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
    """Refuse a message: whatever is raised here stops the send."""
    if context.message.properties.get("class") == "secret":
        raise PermissionError("secret messages stay in the house")


def begin(context: mq.SendContext) -> None:
    """Keep something from before to after."""
    context.notes["began"] = time.perf_counter()


def end(context: mq.SendContext) -> None:
    """Tell what became of an attempt."""
    milliseconds = (time.perf_counter() - context.notes["began"]) * 1000
    result = context.receipt.status.name if context.receipt else repr(context.error)
    took = "a moment" if milliseconds < 1000 else f"{milliseconds:.0f} ms"
    print(f"  {context.mode} {context.queue.topic} -> {context.address}: {result} in {took}")


def broken(context: mq.SendContext) -> None:
    """Fail: that is logged, and the message is sent all the same."""
    raise ValueError("a mistake in a hook")


def count_calls(address: str, request: Command, reply: Command | None) -> None:
    """See every request to every server, heartbeats and routes included."""
    print(f"  request {request.code} to {address}: code {reply.code if reply else None}")


def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="  log: %(message)s", level=logging.WARNING)
    hooks = mq.Hooks(
        forbid_send=(no_secrets,),
        before_send=(begin, broken),
        after_send=(end,),
        after_call=(count_calls,),
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
