"""Exceptions of the user's code in a program that has not set up logging."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading
import time

import downrange as mq


def broken_hook(context):
    raise LookupError("in the hook")


def broken_selector(queues, message):
    raise LookupError("in the selector")


def broken_callback(future):
    try:
        raise LookupError("in the callback")
    finally:
        is_called.set()


def broken_check(message):
    raise LookupError("in the check")


is_called = threading.Event()
with mq.Cluster(brokers=2) as cluster:
    hooks = mq.Hooks(after_send=(broken_hook,))
    producer = mq.TransactionProducer(
        cluster.name_server, group="g", check=broken_check, hooks=hooks
    ).start()
    producer.send(mq.Message("orders", b"1"))
    producer.submit(mq.Message("orders", b"2")).add_done_callback(broken_callback)
    try:
        producer.send(mq.Message("orders", b"3"), queue=broken_selector)
    except mq.OptionError:
        pass
    producer.send_in_transaction(mq.Message("orders", b"4"), lambda message, receipt: 1 / 0)
    is_called.wait(30)
    until = time.monotonic() + 30  # the error of the callback is counted a moment later
    while producer.client.stats().user_errors < 6 and time.monotonic() < until:
        time.sleep(0.01)
    cluster.kill_broker(1)  # warnings of servers are not printed
    print(producer.client.stats().user_errors, producer.client.stats().producers["g"].user_errors)
    producer.close()
"""


def test_exceptions_of_the_users_code_are_printed_with_their_tracebacks() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    # Three sends with a hook; a callback, a selector, and local work.
    assert ended.stdout.split() == ["6", "5"]
    printed = ended.stderr
    for what in ("hook", "selector", "callback"):
        assert f"LookupError: in the {what}\n" in printed
    assert "hook __main__.broken_hook failed: LookupError('in the hook')\nTraceback" in printed
    assert "selector broken_selector failed: " in printed
    assert "callback __main__.broken_callback of a future failed: " in printed
    assert "the local work failed: ZeroDivisionError" in printed
    heads = [line for line in printed.splitlines() if " failed: " in line]
    assert len(heads) == 6
    assert printed.count("Traceback (most recent call last)") == 6
    assert "broker-b" not in printed
