"""Downrange's client for threads as a client of the matrix: a `Drive` per work."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from benchmarks.matrix import push_works
from benchmarks.matrix.cells import (
    BATCH,
    BATCHES_IN_FLIGHT,
    ONE_WAY_FENCE,
    PUSHES,
    SENDERS,
    WINDOW,
)
from benchmarks.matrix.tasks import Meter
from downrange import ClientOptions, Message, Outcome, Producer, PullConsumer, TransactionProducer
from downrange.model import QueueOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from benchmarks.matrix.cells import WorkName
    from benchmarks.matrix.tasks import Measured, Task
    from downrange import BatchReceipt, SendReceipt

Drive: TypeAlias = "Callable[[float, list[float]], int]"
"""Works until a time, records the durations of calls, and returns the number of messages."""

GROUP: Final = "bench-threads"
#: One message in this many is timed, where timing is not free.
_NOTED_EACH: Final = 16
_NOTES_TIMEOUT: Final = 10.0
_POLL: Final = 500
#: How long a busy-polling thread polls for a reply, in seconds.
_AWAKE: Final = 0.0005


def run(task: Task) -> Measured:
    """Run the task in this process."""
    if task.work in PUSHES:
        return push_works.run_threads(task)
    with _DRIVES[task.work](task) as drive:
        before = drive(time.perf_counter() + task.lead_in, [])
        meter = Meter(task.pids)
        messages = drive(meter.started + task.seconds, meter.spans)
        return meter.end(messages, before)


@contextlib.contextmanager
def _sync(task: Task) -> Generator[Drive]:
    with _producer(task) as producer:
        yield _calls(producer.send, task)


@contextlib.contextmanager
def _sync_threads(task: Task) -> Generator[Drive]:
    with _producer(task) as producer:
        yield _in_threads(_calls(producer.send, task))


@contextlib.contextmanager
def _transactions(task: Task) -> Generator[Drive]:
    with TransactionProducer(
        task.name_server,
        group=GROUP,
        check=lambda _message: Outcome.COMMIT,
        options=task.producer_options,
    ) as producer:

        def send(message: Message) -> None:
            done = producer.send_in_transaction(message, lambda _message, _receipt: Outcome.COMMIT)
            assert done.outcome is Outcome.COMMIT

        yield _in_threads(_calls(send, task))


@contextlib.contextmanager
def _submit(task: Task) -> Generator[Drive]:
    message = _maker(task)
    with _producer(task) as producer:

        def drive(until: float, spans: list[float]) -> int:
            sent = noted = 0
            waiting: deque[Future[SendReceipt]] = deque()
            while (now := time.perf_counter()) < until:
                future = producer.submit(message())
                if not sent % _NOTED_EACH:
                    future.add_done_callback(_note(spans, now))
                    noted += 1
                waiting.append(future)
                sent += 1
                if len(waiting) >= WINDOW:
                    waiting.popleft().result()
            for future in waiting:
                future.result()
            _await_notes(spans, noted)
            return sent

        yield drive


@contextlib.contextmanager
def _batches(task: Task) -> Generator[Drive]:
    message = _maker(task)
    with _producer(task) as producer:

        def drive(until: float, spans: list[float]) -> int:
            count = noted = 0
            waiting: deque[Future[BatchReceipt]] = deque()
            while (now := time.perf_counter()) < until:
                future = producer.submit_batch([message() for _ in range(BATCH)])
                future.add_done_callback(_note(spans, now))
                noted += 1
                waiting.append(future)
                if len(waiting) >= BATCHES_IN_FLIGHT:
                    count += len(waiting.popleft().result())
            count += sum(len(future.result()) for future in waiting)
            _await_notes(spans, noted)
            return count

        yield drive


@contextlib.contextmanager
def _one_way(task: Task) -> Generator[Drive]:
    message = _maker(task)
    with _producer(task) as producer:

        def drive(until: float, _spans: list[float]) -> int:
            count = 0
            while time.perf_counter() < until:
                for _ in range(ONE_WAY_FENCE - 1):
                    producer.send_oneway(message())
                producer.send(message())
                count += ONE_WAY_FENCE
            return count

        yield drive


@contextlib.contextmanager
def _pull(task: Task) -> Generator[Drive]:
    left = task.stored
    with PullConsumer(task.name_server, group=GROUP) as consumer:
        consumer.assign(task.topic, start="earliest")
        queues = consumer.queues()

        def drive(until: float, _spans: list[float]) -> int:
            nonlocal left
            count = 0
            while time.perf_counter() < until:
                found = len(consumer.poll(10.0, max_count=_POLL))
                if not 0 < found <= left:
                    raise RuntimeError(f"read {found} messages, but {left} were left")
                count += found
                left -= found
                if not left:
                    for queue in queues:
                        consumer.seek(queue, QueueOffset(0))
                    left = task.stored
            return count

        yield drive


def _producer(task: Task) -> Producer:
    return Producer(
        task.name_server,
        group=GROUP,
        options=task.producer_options,
        client_options=ClientOptions(busy_poll=_AWAKE if task.client == "awake" else 0.0),
    )


def _maker(task: Task) -> Callable[[], Message]:
    body, topic = os.urandom(task.body_bytes), task.topic
    return lambda: Message(topic, body)


def _calls(call: Callable[[Message], object], task: Task) -> Drive:
    """Return a drive that makes one call after the other."""
    message = _maker(task)

    def drive(until: float, spans: list[float]) -> int:
        count = 0
        now = time.perf_counter()
        while now < until:
            call(message())
            after = time.perf_counter()
            spans.append(after - now)
            now = after
            count += 1
        return count

    return drive


def _in_threads(drive: Drive) -> Drive:
    """Return a drive that runs another one in many threads."""

    def drive_all(until: float, spans: list[float]) -> int:
        counts: list[int] = []
        failures: list[Exception] = []

        def work() -> None:
            try:
                counts.append(drive(until, spans))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(SENDERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return sum(counts)

    return drive_all


def _await_notes(spans: list[float], count: int) -> None:
    """Wait for the callbacks of futures: they run in the client's pool, after the result is set."""
    deadline = time.perf_counter() + _NOTES_TIMEOUT
    while len(spans) < count and time.perf_counter() < deadline:
        time.sleep(0.0005)


def _note(spans: list[float], started: float) -> Callable[[object], None]:
    return lambda _future: spans.append(time.perf_counter() - started)


_DRIVES: Final[dict[WorkName, Callable[[Task], contextlib.AbstractContextManager[Drive]]]] = {
    "sync-1": _sync,
    "sync-64": _sync_threads,
    "async-256": _submit,
    "one-way": _one_way,
    "batch": _batches,
    "auto-batch": _submit,
    "transactions": _transactions,
    "pull": _pull,
}
