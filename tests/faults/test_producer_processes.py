"""Producers and consumers in processes that fork, exit without `close`, or are interrupted.

Each test runs a small program and checks its output.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from downrange.server.net.interception import lose_reply
from downrange.wire.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.server.net.interception import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

#: How long a program may take to start on a busy machine.
START_SECONDS = 90.0
#: How long it may take from its last line to its end; less than the time-outs of its calls.
END_SECONDS = 20.0

_HEAD = """
import asyncio, atexit, multiprocessing, os, signal, sys, threading, time
from downrange import (
    AsyncProducer, ClientOptions, Message, Producer, ProducerOptions, SimpleConsumer
)
from downrange.errors import ForkedClient

SERVERS = sys.argv[1]
#: Whoever waits for a time-out does not end soon.
PATIENT = {
    "options": ProducerOptions(timeout=60),
    "client_options": ClientOptions(connect_timeout=60, call_timeout=60),
}

def say(*words):
    print(*words, flush=True)

def forked(call):
    begun = time.monotonic()
    try:
        call()
    except ForkedClient:
        return time.monotonic() - begun < 20
    return False
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


class Program:
    """A running program, and the lines that it prints."""

    def __init__(self, cluster: Cluster, text: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HEAD + text, cluster.name_server],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, seconds: float = END_SECONDS) -> tuple[list[str], str, int]:
        """Wait for its end; return its other lines, its standard error, and its exit code."""
        try:
            out, problems = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, problems = self.process.communicate()
            pytest.fail(f"it hangs: {out}{problems}")
        return out.splitlines(), problems, self.process.returncode


def _run(cluster: Cluster, text: str) -> list[str]:
    """Run a program, which must exit with 0, and return its lines."""
    lines, problems, code = Program(cluster, text).end(START_SECONDS)
    assert (code, problems) == (0, "")
    return lines


# ---- fork ----------------------------------------------------------------------------------------


def test_child_gets_a_clear_error_from_the_producer_of_its_parent_and_can_make_its_own(
    cluster: Cluster,
) -> None:
    lines = _run(
        cluster,
        """
producer = Producer(SERVERS, group="fork", **PATIENT).start()
producer.send(Message("fork", b"parent"))
child = os.fork()
if child == 0:
    say(all(forked(call) for call in (
        lambda: producer.send(Message("fork", b"x")),
        lambda: producer.submit(Message("fork", b"x")),
        lambda: producer.send_oneway(Message("fork", b"x")),
        lambda: producer.send_batch([Message("fork", b"x")]),
        producer.client.stats,
        producer.start,
    )))
    with Producer(SERVERS, group="fork", **PATIENT) as own:
        say(own.send(Message("fork", b"child")).status.name, own.client.stats().client_id)
    os._exit(0)
os.waitpid(child, 0)
say(producer.send(Message("fork", b"parent again")).attempts, producer.client.stats().client_id)
producer.close()
""",
    )
    assert lines[0] == "True"
    (status, child_id), (attempts, parent_id) = lines[1].split(), lines[2].split()
    assert (status, attempts) == ("STORED", "1")
    assert child_id != parent_id


def test_child_gets_a_clear_error_from_the_simple_consumer_of_its_parent(
    cluster: Cluster,
) -> None:
    lines = _run(
        cluster,
        """
with Producer(SERVERS, group="fork", **PATIENT) as producer:
    producer.send(Message("forked", b"1"))
patient = PATIENT["client_options"]
jobs = SimpleConsumer(
    SERVERS, group="jobs", subscribe=["forked"], client_options=patient
).start()
message = jobs.receive()[0]
child = os.fork()
if child == 0:
    say(all(forked(call) for call in (jobs.receive, jobs.stats, message.ack, jobs.start)))
    jobs.close()
    os._exit(0)
os.waitpid(child, 0)
message.ack()
jobs.close()
say(message.is_settled)
""",
    )
    assert lines == ["True", "True"]


def test_child_of_an_asyncio_program_gets_a_clear_error_as_well(cluster: Cluster) -> None:
    lines = _run(
        cluster,
        """
async def main():
    async with AsyncProducer(SERVERS, group="fork", **PATIENT) as producer:
        await producer.send(Message("fork", b"parent"))
        child = os.fork()
        if child == 0:
            try:
                await producer.send(Message("fork", b"x"))
            except ForkedClient:
                say("forked")
            os._exit(0)
        os.waitpid(child, 0)
        say((await producer.send(Message("fork", b"parent again"))).attempts)
asyncio.run(main())
""",
    )
    assert lines == ["forked", "1"]


def test_child_can_close_and_exit_whatever_state_the_threads_of_its_parent_were_in(
    cluster: Cluster,
) -> None:
    """A lock that a thread of the parent held at the fork is never released in the child."""
    lines = _run(
        cluster,
        """
producer = Producer(SERVERS, group="fork", **PATIENT).start()
is_over = threading.Event()
def work():
    while not is_over.is_set():
        producer.send(Message("fork", b"busy"))
        producer.submit(Message("fork", b"busy"))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
good = 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        import logging
        logging.disable()
        is_good = forked(lambda: producer.send(Message("fork", b"x")))
        producer.close()
        del producer
        os._exit(0 if is_good else 1)
    good += os.waitpid(child, 0)[1] == 0
is_over.set()
for thread in threads:
    thread.join()
producer.close()
say(good)
""",
    )
    assert lines == ["20"]


def test_pool_of_forked_workers_and_a_pre_forking_server_send_side_by_side(
    cluster: Cluster,
) -> None:
    """Each worker makes its producer after the fork, as a post-fork hook does."""
    lines = _run(
        cluster,
        """
parent = Producer(SERVERS, group="pool", **PATIENT).start()
parent.send(Message("pool", b"before"))

own = None
def begin():
    global own
    own = Producer(SERVERS, group="pool", **PATIENT).start()
def work(number):
    return own.send(Message("pool", f"{number}")).message_id
with multiprocessing.get_context("fork").Pool(3, begin) as pool:
    ids = pool.map(work, range(30), chunksize=1)
say(len(set(ids)))

workers = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        with Producer(SERVERS, group="pool", **PATIENT) as mine:
            for number in range(20):
                mine.send(Message("pool", f"{number}"))
        sys.exit(0)
    workers.append(child)
say([os.waitpid(child, 0)[1] for child in workers])
say(parent.send(Message("pool", b"after")).attempts)
parent.close()
""",
    )
    assert lines == ["30", "[0, 0, 0]", "1"]


# ---- the end -------------------------------------------------------------------------------------

_ENDS = {
    "submits-in-flight": """
producer = Producer(SERVERS, group="end", **PATIENT).start()
futures = [producer.submit(Message("end", b"x" * 1000)) for _ in range(2000)]
say("last")
""",
    "callbacks-waiting": """
producer = Producer(SERVERS, group="end", **PATIENT).start()
for _ in range(500):
    producer.submit(Message("end", b"x")).add_done_callback(lambda future: time.sleep(0.001))
say("last")
""",
    "asyncio-tasks-in-flight": """
async def main():
    producer = await AsyncProducer(SERVERS, group="end", **PATIENT).start()
    tasks = [asyncio.ensure_future(producer.send(Message("end", b"x"))) for _ in range(500)]
    await asyncio.sleep(0)
    say("last")
asyncio.run(main())
""",
    "a-daemon-thread-sends": """
def work():
    producer = Producer(SERVERS, group="end", **PATIENT).start()
    say("last")
    while True:
        producer.send(Message("end", b"x"))
        is_sending.set()
is_sending = threading.Event()
threading.Thread(target=work, daemon=True).start()
is_sending.wait(60)
time.sleep(0.2)
""",
    "another-thread-left-it-open": """
def work():
    producer = Producer(SERVERS, group="end", **PATIENT).start()
    for _ in range(50):
        producer.send(Message("end", b"x"))
        producer.submit(Message("end", b"x"))
    say("last")
threading.Thread(target=work).start()
""",
    "a-closed-event-loop": """
loop = asyncio.new_event_loop()
producer = loop.run_until_complete(AsyncProducer(SERVERS, group="end", **PATIENT).start())
loop.run_until_complete(producer.send(Message("end", b"x")))
loop.close()
say("last")
""",
}


@pytest.mark.parametrize("text", _ENDS.values(), ids=_ENDS)
def test_process_ends_soon_without_a_close(cluster: Cluster, text: str) -> None:
    program = Program(cluster, text)
    assert program.line() == "last"
    lines, problems, code = program.end()
    assert (lines, code) == ([], 0)
    assert "Traceback" not in problems


def test_producer_can_still_be_used_and_closed_by_an_exit_function(cluster: Cluster) -> None:
    lines = _run(
        cluster,
        """
producer = Producer(SERVERS, group="atexit", **PATIENT).start()
def leave():
    say(producer.send(Message("atexit", b"x")).attempts)
    producer.close()
atexit.register(leave)
""",
    )
    assert lines == ["1"]


def test_process_ends_soon_while_the_broker_does_not_answer(cluster: Cluster) -> None:
    cluster.intercept(RequestCode.SEND_MESSAGE_V2, lose_reply())
    try:
        program = Program(
            cluster,
            """
producer = Producer(SERVERS, group="end", **PATIENT).start()
futures = [producer.submit(Message("end", b"x")) for _ in range(20)]
threading.Thread(target=producer.send, args=(Message("end", b"x"),), daemon=True).start()
time.sleep(0.2)
say("last")
""",
        )
        assert program.line() == "last"
        assert program.end()[2] == 0
    finally:
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, None)


# ---- Ctrl-C --------------------------------------------------------------------------------------

_BLOCKED = {
    "sync": """
with Producer(SERVERS, group="interrupt", **PATIENT) as producer:
    try:
        say("sending")
        producer.send(Message("interrupt", b"x"))
    except KeyboardInterrupt:
        say("interrupted")
    producer.send_oneway(Message("interrupt", b"goes on"))
    say("closing")
""",
    "sync-future": """
with Producer(SERVERS, group="interrupt", **PATIENT) as producer:
    future = producer.submit(Message("interrupt", b"x"))
    try:
        say("sending")
        future.result()
    except KeyboardInterrupt:
        say("interrupted")
    future.cancel()
    say("closing")
""",
    "async": """
async def main():
    async with AsyncProducer(SERVERS, group="interrupt", **PATIENT) as producer:
        try:
            say("sending")
            await producer.send(Message("interrupt", b"x"))
        finally:
            say("interrupted")
            say("closing")
try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
""",
}


@pytest.mark.parametrize("text", _BLOCKED.values(), ids=_BLOCKED)
def test_interrupt_ends_a_waiting_send_and_nothing_else(cluster: Cluster, text: str) -> None:
    is_asked = threading.Event()

    def swallow(request: Command, peer: Peer) -> Interception:
        is_asked.set()
        return lose_reply()

    cluster.intercept(RequestCode.SEND_MESSAGE_V2, swallow)
    try:
        program = Program(cluster, text)
        assert program.line() == "sending"
        assert is_asked.wait(START_SECONDS)
        time.sleep(0.1)  # now the client waits for the reply
        begun = time.monotonic()
        program.process.send_signal(signal.SIGINT)
        assert program.line() == "interrupted"
        assert time.monotonic() - begun < END_SECONDS
        assert program.line() == "closing"
        lines, problems, code = program.end(2 * END_SECONDS)
        assert (lines, problems, code) == ([], "", 0)
    finally:
        cluster.intercept(RequestCode.SEND_MESSAGE_V2, None)
