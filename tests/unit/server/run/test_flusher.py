"""The two loops of the flusher, with a disk that is slow, full or fails."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import DiskFull
from downrange.server.run import flusher
from downrange.server.run.flusher import Flusher, finish_in_thread
from downrange.server.run.saved_tables import progress_tables
from downrange.store.files import MemoryFiles
from downrange.wire.records import Record
from tests.support.disks import FailingFile
from tests.support.waiting import wait_until_async
from tests.unit.server.broker.broker_stage import NOW_MS, a_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from downrange.store.files import Write

DEADLINE = 60.0


class Disk(MemoryFiles):
    """A disk whose flushes wait, or fail, as the test says.

    Attributes:
        error: Raised by every flush.
        is_open: Flushes of the log wait until this is set.
        flushes: How many flushes of the log began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.is_open = threading.Event()
        self.is_open.set()
        self.flushes = 0

    def write_durably(self, writes: Sequence[Write]) -> None:
        if self.error is not None:
            raise self.error
        super().write_durably(writes)


class World:
    """A broker's state with a flusher, and the positions that it reported."""

    def __init__(self, disk: Disk, executor: ThreadPoolExecutor, **options: Any) -> None:
        self.disk = disk
        self.state = a_state(disk, **options)
        self.store = self.state.store
        self.flushed: list[int] = []
        self.is_awaited = False
        self.progress = progress_tables(disk, self.state)
        self.flusher = Flusher(
            self.state,
            self.progress,
            executor,
            on_flushed=self.flushed.append,
            is_awaited=lambda: self.is_awaited,
        )
        begin = self.store.begin_log_flush

        def begin_slowly() -> Any:
            flush = begin()
            disk.flushes += 1

            class Slow:
                end = flush.end

                @staticmethod
                def run() -> None:
                    assert disk.is_open.wait(DEADLINE)
                    error = disk.error
                    if error is None:
                        flush.run()
                    else:
                        flush._replace(files=[FailingFile(error)]).run()

            return Slow

        self.store.begin_log_flush = begin_slowly  # type: ignore[method-assign]

    def append(self) -> int:
        """Store a message; return the end of the log."""
        record = Record(topic_bytes=b"T", body=b"x", store_ip=self.state.host.ip, store_port=1)
        self.store.append([record], NOW_MS)
        self.flusher.on_append()
        return self.store.log.end


@asynccontextmanager
async def a_world(**options: Any) -> AsyncGenerator[World]:
    settings = {"flush_interval": 3600.0, "checkpoint_interval": 3600.0} | options
    with ThreadPoolExecutor(2) as executor:
        world = World(Disk(), executor, **settings)
        world.flusher.start()
        try:
            yield world
        finally:
            world.disk.is_open.set()
            await world.flusher.stop()


def run(play: Any) -> None:
    asyncio.run(play())


def test_the_log_is_flushed_at_once_when_a_reply_waits() -> None:
    async def play() -> None:
        async with a_world() as world:
            world.is_awaited = True
            end = world.append()
            await wait_until_async(lambda: world.flushed == [end])
            assert world.flusher.longest_flush > 0

    run(play)


def test_one_flush_covers_all_records_appended_during_the_previous_one() -> None:
    async def play() -> None:
        async with a_world() as world:
            world.disk.is_open.clear()
            world.is_awaited = True
            first = world.append()
            await wait_until_async(lambda: world.disk.flushes == 1)
            last = [world.append() for _ in range(10)][-1]
            world.disk.is_open.set()
            await wait_until_async(lambda: world.flushed[-1:] == [last])
            assert world.flushed == [first, last]
            assert world.disk.flushes == 2

    run(play)


def test_the_log_is_flushed_when_much_is_new() -> None:
    async def play() -> None:
        async with a_world(flush_bytes=300) as world:
            world.append()
            assert not world.flusher._flush_due.is_set()
            while world.store.log.end < 300:
                world.append()
            await wait_until_async(lambda: bool(world.flushed))

    run(play)


def test_the_log_is_flushed_at_every_interval() -> None:
    async def play() -> None:
        async with a_world(flush_interval=0.01) as world:
            end = world.append()
            await wait_until_async(lambda: world.flushed == [end])

    run(play)


def test_a_changed_interval_is_used_for_the_next_flush() -> None:
    async def play() -> None:
        async with a_world() as world:
            world.state.change_options(a_state(flush_bytes=1).options)
            end = world.append()
            await wait_until_async(lambda: world.flushed == [end])

    run(play)


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), AttributeError("a fault of ours")]
)
def test_a_failed_flush_is_repeated(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(flusher, "_RETRY_INTERVAL", 0.001)

    async def play() -> None:
        async with a_world() as world:
            world.disk.error = error
            world.is_awaited = True
            end = world.append()
            await wait_until_async(lambda: world.disk.flushes >= 3)
            assert world.flushed == []
            world.disk.error = None
            await wait_until_async(lambda: world.flushed == [end])
            assert world.state.unwritable is None

    run(play)


def test_after_an_io_error_of_the_disk_nothing_is_flushed_again() -> None:
    async def play() -> None:
        async with a_world() as world:
            world.disk.error = OSError(errno.EIO, "Input/output error")
            world.is_awaited = True
            world.append()
            await wait_until_async(lambda: world.state.unwritable is not None)
            world.disk.error = None
            world.append()
            assert "the disk fails" in (world.state.unwritable or "")
            await asyncio.wait_for(asyncio.shield(world.flusher._tasks[0]), DEADLINE)
            assert (world.disk.flushes, world.flushed) == (1, [])

    run(play)


@pytest.mark.parametrize("is_first", ["log", "indexes"])
def test_nothing_counts_as_durable_after_an_io_error_of_the_other_flush(is_first: str) -> None:
    async def play() -> None:
        is_log = is_first == "log"
        async with a_world(checkpoint_interval=3600.0 if is_log else 0.01) as world:
            world.disk.error = OSError(errno.EIO, "Input/output error")
            world.is_awaited = is_log
            world.append()
            await wait_until_async(lambda: world.state.unwritable is not None)
            world.disk.error = None
            world.flushed.clear()  # the log was flushed before its index failed
            world.is_awaited = True
            world.append()
            with pytest.raises(OSError, match="written data may be lost"):
                world.store.begin_flush().run()
            with pytest.raises(OSError, match="written data may be lost"):
                world.store.begin_log_flush().run()
            await asyncio.wait(world.flusher._tasks, timeout=0.2)
            assert world.flushed == []

    run(play)


def test_indexes_and_progress_are_saved_at_every_interval() -> None:
    async def play() -> None:
        async with a_world(checkpoint_interval=0.01) as world:
            world.state.offsets.commit("G", "T", 0, 5)
            end = world.append()
            await wait_until_async(lambda: end in world.flushed)
            await wait_until_async(
                lambda: world.disk.read_all("config/consumerOffset.json") is not None
            )
            assert world.disk.names("consumequeue") == ["T"]

    run(play)


def test_progress_is_not_saved_before_what_a_killed_process_left_is_durable() -> None:
    """Readers see what that process wrote, but it may exist only in the page cache.

    Recovery makes it durable, unless the disk is full.
    """

    async def play() -> None:
        disk = Disk()
        killed = a_state(disk)
        killed.store.append([Record(topic_bytes=b"T", body=b"x", store_ip=killed.host.ip)], NOW_MS)
        with ThreadPoolExecutor(2) as executor:
            capacity, disk.capacity = disk.capacity, 0
            world = World(disk, executor, flush_interval=3600.0, checkpoint_interval=0.01)
            disk.capacity = capacity
            assert world.store.recovery.unsaved_reason is not None
            assert world.store.log.flushed < world.store.log.end
            world.state.offsets.commit("G", "T", 0, 1)
            world.flusher.start()
            await wait_until_async(lambda: disk.read_all("config/consumerOffset.json") is not None)
            await world.flusher.stop()
        assert world.store.log.flushed == world.store.log.end

    run(play)


@pytest.mark.parametrize(
    ("error", "is_traced"),
    [(DiskFull("consumequeue"), False), (AttributeError("a fault of ours"), True)],
)
def test_an_error_does_not_end_the_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    is_traced: bool,
) -> None:
    monkeypatch.setattr(flusher, "_RETRY_INTERVAL", 0.001)

    async def play() -> None:
        async with a_world(checkpoint_interval=0.01) as world:
            world.disk.error = error
            world.state.offsets.commit("G", "T", 0, 5)
            end = world.append()
            world.state.is_checkpoint_due = True
            with pytest.raises(type(error)):
                await world.flusher.persist_deletions()
            await wait_until_async(lambda: "the checkpoint cannot be written" in caplog.text)
            world.disk.error = None
            await wait_until_async(lambda: end in world.flushed)
            await wait_until_async(
                lambda: world.disk.read_all("config/consumerOffset.json") is not None
            )

    run(play)
    assert ("Traceback" in caplog.text) is is_traced


def test_deletions_are_durable_when_persist_deletions_returns() -> None:
    async def play() -> None:
        async with a_world() as world:
            world.append()
            world.state.is_checkpoint_due = True
            await world.flusher.persist_deletions()
            assert world.disk.names("consumequeue") == ["T"]
            world.store.drop_topic("T")
            world.state.is_checkpoint_due = True
            await world.flusher.persist_deletions()
            assert world.disk.names("consumequeue") == []
            assert not world.state.is_checkpoint_due
            await world.flusher.persist_deletions()

    run(play)


def test_a_cancelled_wait_still_waits_for_the_running_call() -> None:
    async def play() -> None:
        begun, go_on, is_done = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            assert go_on.wait(DEADLINE)
            is_done.set()

        with ThreadPoolExecutor(1) as executor:
            task = asyncio.create_task(finish_in_thread(executor, work))
            await asyncio.to_thread(begun.wait, DEADLINE)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert is_done.is_set()

    run(play)
