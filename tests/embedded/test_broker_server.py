"""A broker over real sockets: starts and stops, durability, and disk faults."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import CorruptStore, OptionError, StoreError, StoreLocked
from downrange.options import BrokerOptions, ListenerOptions, NameServerOptions
from downrange.server import BrokerServer, NameServer
from downrange.server.broker.broker import Broker
from downrange.server.broker.state import DISK_FULL
from downrange.server.net.interception import drop
from downrange.server.run import broker_loop
from downrange.server.run.runner import ServerThread
from downrange.store.files import OsFiles
from downrange.store.log import LogFlush
from downrange.store.message_store import StoreOptions
from downrange.store.retention import RetentionOptions, drop_old_segments
from downrange.wire.bodies import ConsumerMember, HeartbeatBody, Subscription
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import CommitOffsetRequest
from downrange.wire.records import BatchItem, decode_records, encode_batch
from tests.embedded.brokers import (
    bodies,
    connection,
    create_request,
    pull_request,
    route,
    send,
    send_request,
)
from tests.support.disks import FailingFile
from tests.support.timing import shortest
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.conversations.peers import Peer

#: How long a stop may take.
STOP_SECONDS = 2.0


@contextmanager
def serving(folder: Path, **options: Any) -> Generator[tuple[BrokerServer, ServerThread]]:
    """Run a broker on a free port of this machine."""
    server = BrokerServer(folder, BrokerOptions(**options))
    thread = ServerThread(server)
    with thread:
        yield server, thread


@contextmanager
def serving_on_failing_disk(
    folder: Path, **options: Any
) -> Generator[tuple[BrokerServer, ServerThread]]:
    """Run a broker whose disk fails, so that its store cannot be closed."""
    options = {"flush": "sync", "flush_timeout": WAIT_TIMEOUT} | options
    problem = ""
    try:
        with serving(folder, **options) as running:
            yield running
    except StoreError as error:
        problem = str(error)
    assert "the store cannot be closed" in problem


@contextmanager
def name_server() -> Generator[tuple[NameServer, ServerThread]]:
    server = NameServer(NameServerOptions(), ListenerOptions())
    thread = ServerThread(server)
    with thread:
        yield server, thread


class SlowDisk:
    """Delays flushes of the log, or makes them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.error: OSError | None = None
        run = LogFlush.run

        def run_slowly(flush: LogFlush) -> None:
            assert self.is_open.wait(WAIT_TIMEOUT)
            error = self.error
            run(flush if error is None else flush._replace(files=[FailingFile(error)]))

        monkeypatch.setattr(LogFlush, "run", run_slowly)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


def read_state(thread: ServerThread, server: BrokerServer, name: str) -> Any:
    async def read() -> Any:
        return getattr(server.state, name)

    return thread.run(read())


def set_state(thread: ServerThread, server: BrokerServer, name: str, value: Any) -> None:
    async def write() -> None:
        setattr(server.state, name, value)

    thread.run(write())


def set_flush_timeout(thread: ServerThread, server: BrokerServer, seconds: float) -> None:
    options = dataclasses.replace(server.state.options, flush_timeout=seconds)
    set_state(thread, server, "options", options)


# ---- starts and stops ----


def test_a_broker_keeps_port_and_data_over_stop_and_start(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, thread):
        address = server.address
        assert server.is_serving
        assert send(address, b"one") == 0
        thread.run(server.stop())
        thread.run(server.stop())
        assert not server.is_serving
        thread.run(server.start())
        thread.run(server.start())
        assert server.address == address
        assert send(address, b"two") == 0
        assert bodies(address) == [b"one", b"two"]


def test_a_broker_that_was_killed_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with serving(tmp_path, flush="sync") as (server, thread):
        address = server.address
        for number in range(20):
            assert send(address, b"%d" % number) == 0
        thread.run(server.kill())
        thread.run(server.start())
        assert bodies(address) == [b"%d" % number for number in range(20)]


def test_topics_groups_and_offsets_survive(tmp_path: Path) -> None:
    offset = CommitOffsetRequest(consumer_group="G", topic="T", queue_id=0, commit_offset=3)
    with serving(tmp_path) as (server, thread):
        with connection(server.address) as peer:
            assert peer.ask(create_request("Made")).code == 0
            for number in range(5):
                assert peer.ask(send_request(b"%d" % number)).code == 0
            peer.ask(pull_request(0))
            assert peer.ask(request_command(offset)).code == 0
        thread.run(server.stop())
        assert (tmp_path / "config/topics.json").is_file()
        thread.run(server.start())
        state = server.state
        assert state.topics.get("Made") is not None
        assert state.groups.get("G") is not None
        assert state.offsets.get("G", "T", 0) == 3
        assert state.store.recovery.was_clean


def test_a_topic_whose_table_was_lost_comes_back_with_its_messages(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, thread):
        assert send(server.address, b"kept", "Lost") == 0
        thread.run(server.kill())
        for name in ("topics.json", "topics.json.bak"):
            (tmp_path / "config" / name).unlink(missing_ok=True)
        thread.run(server.start())
        assert bodies(server.address, "Lost") == [b"kept"]


def test_a_deleted_topic_stays_deleted_after_a_crash(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, thread):
        assert send(server.address, b"gone", "Deleted") == 0
        with connection(server.address) as peer:
            delete = Command(int(RequestCode.DELETE_TOPIC_IN_BROKER), {"topic": "Deleted"})
            assert peer.ask(delete).code == 0
        thread.run(server.kill())
        thread.run(server.start())
        assert server.state.topics.get("Deleted") is None
        assert not (tmp_path / "consumequeue" / "Deleted").exists()


def test_start_stop_and_kill_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, thread):

        async def play() -> None:
            await asyncio.gather(
                server.stop(), server.start(), server.kill(), server.start(), server.stop()
            )
            await server.start()

        thread.run(play())
        assert send(server.address, b"x") == 0


def test_a_taken_folder_is_an_error_in_this_process_too(tmp_path: Path) -> None:
    with serving(tmp_path), pytest.raises(StoreLocked), serving(tmp_path):
        pass


def test_a_damaged_table_is_an_error_that_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "config" / name).write_text("{")
    before = set(threading.enumerate())  # some of them, of earlier tests, may be about to end
    with pytest.raises(CorruptStore, match=r"topics\.json"), serving(tmp_path):
        pass
    wait_until(lambda: set(threading.enumerate()) <= before)
    OsFiles(tmp_path).close()  # the folder is free


def test_tables_that_cannot_be_saved_end_the_start_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = OsFiles.replace

    def fail(self: OsFiles, path: str, data: bytes) -> None:
        if path.startswith("config/"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(self, path, data)

    monkeypatch.setattr(OsFiles, "replace", fail)
    before = set(threading.enumerate())
    with pytest.raises(StoreError, match="No space left"), serving(tmp_path):
        pass
    wait_until(lambda: set(threading.enumerate()) <= before)
    monkeypatch.undo()
    with serving(tmp_path):
        pass


def test_a_host_that_has_no_address_cannot_be_advertised(tmp_path: Path) -> None:
    with (
        pytest.raises(OptionError, match=r"advertised_host='no.such.host.invalid'"),
        serving(tmp_path, advertised_host="no.such.host.invalid"),
    ):
        pass


def test_a_broker_that_listens_everywhere_advertises_one_address(tmp_path: Path) -> None:
    server = BrokerServer(tmp_path, BrokerOptions(), ListenerOptions(host="0.0.0.0"))
    with ServerThread(server):
        host, _, _port = server.address.rpartition(":")
        assert host != "0.0.0.0"


def test_a_broker_on_ipv6_says_so_in_its_records(tmp_path: Path) -> None:
    server = BrokerServer(tmp_path, BrokerOptions(), ListenerOptions(host="::1"))
    with ServerThread(server):
        assert server.address.startswith("[::1]:")
        port = server.address.rpartition(":")[2]
        with connection(f"::1:{port}") as peer:
            answer = peer.ask(send_request(b"x"))
        assert answer.code == 0
        assert len(answer.fields["msgId"]) == 56


# ---- answers ----


@pytest.mark.parametrize("frame_bytes_max", [200_000, 16 * 1024 * 1024])
def test_large_answers_fit_the_largest_frame(tmp_path: Path, frame_bytes_max: int) -> None:
    listening = ListenerOptions(frame_bytes_max=frame_bytes_max)
    server = BrokerServer(tmp_path, BrokerOptions(pull_bytes_max=1000), listening)
    with ServerThread(server), connection(server.address) as peer:
        for number in range(50):
            assert peer.ask(send_request(b"%050000d" % number)).code == 0
        pull = pull_request(0)
        pull.fields |= {"maxMsgNums": "1000", "maxMsgBytes": str(100 * 1024 * 1024)}
        answer = peer.ask(pull)
    assert answer.code == 0
    found = [int(record.body[-9:]) for record in decode_records(answer.body)]
    assert found == list(range(50 if frame_bytes_max > 3_000_000 else 1))


def test_a_pull_that_waits_is_answered_within_milliseconds_of_the_message(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, _), connection(server.address) as consumer:
        send(server.address, b"first")
        consumer.ask(pull_request(0))  # this creates the group
        numbers = itertools.count(1)
        with connection(server.address) as producer:

            def answer_one() -> float:
                waiting = consumer.start(pull_request(next(numbers), suspend_ms=600_000))
                wait_until(lambda: len(server.state.held_pulls) == 1)
                begun = time.monotonic()
                producer.ask(send_request(b"next"))
                assert consumer.finish(waiting).code == 0
                return time.monotonic() - begun

            assert shortest(answer_one, 0.02) < 0.02


def test_a_send_under_sync_waits_for_the_flush(tmp_path: Path, disk: SlowDisk) -> None:
    options: dict[str, Any] = {"flush": "sync", "flush_timeout": WAIT_TIMEOUT}
    with serving(tmp_path, **options) as (server, _), connection(server.address) as peer:
        assert peer.ask(send_request(b"creates the topic")).code == 0
        disk.is_open.clear()
        waiting = peer.start(send_request(b"slow"))
        with pytest.raises(TimeoutError):
            peer.finish(waiting, seconds=0.2)
        wait_until(lambda: len(bodies(server.address)) == 2)  # readers do not wait
        disk.is_open.set()
        assert peer.finish(waiting).code == 0


def test_a_flush_that_takes_too_long_is_answered_with_10(tmp_path: Path, disk: SlowDisk) -> None:
    options: dict[str, Any] = {"flush": "sync", "flush_timeout": WAIT_TIMEOUT}
    with serving(tmp_path, **options) as (server, thread), connection(server.address) as peer:
        assert peer.ask(send_request(b"creates the topic")).code == 0
        disk.is_open.clear()
        set_flush_timeout(thread, server, 0.1)
        answer = peer.ask(send_request(b"slow"))
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.fields["queueOffset"] == "1"
        disk.is_open.set()
        set_flush_timeout(thread, server, WAIT_TIMEOUT)
        assert peer.ask(send_request(b"fast again")).code == 0


def test_a_disk_that_fails_ends_all_sends_and_reads_go_on(tmp_path: Path, disk: SlowDisk) -> None:
    with (
        serving_on_failing_disk(tmp_path) as (server, thread),
        connection(server.address) as peer,
    ):
        assert peer.ask(send_request(b"kept")).code == 0
        disk.error = OSError(errno.EIO, "Input/output error")
        set_flush_timeout(thread, server, 0.2)
        answer = peer.ask(send_request(b"uncertain"))
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        # The flush runs in a thread, and may fail after the reply.
        unwritable = wait_until(lambda: read_state(thread, server, "unwritable"))
        assert "the disk fails" in unwritable
        assert peer.ask(send_request(b"refused")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert bodies(server.address)[0] == b"kept"
        disk.error = None


def test_a_message_on_a_disk_that_failed_is_never_confirmed(tmp_path: Path, disk: SlowDisk) -> None:
    """The kernel drops what it could not write, so a later flush of the same file succeeds.

    Neither the checkpoints, which flush the log too, nor the stop may confirm the message then.
    """
    with (
        serving_on_failing_disk(tmp_path, checkpoint_interval=0.05) as (server, thread),
        connection(server.address) as peer,
    ):
        assert peer.ask(send_request(b"kept")).code == 0
        disk.error = OSError(errno.EIO, "Input/output error")
        waiting = peer.start(send_request(b"lost"))
        wait_until(lambda: read_state(thread, server, "unwritable"))
        disk.error = None
        with pytest.raises(TimeoutError):
            peer.finish(waiting, seconds=0.5)
        set_flush_timeout(thread, server, 0.1)
        assert peer.finish(waiting).code == ResponseCode.FLUSH_DISK_TIMEOUT


def test_reads_go_on_while_sends_are_refused_and_sends_when_there_is_space(tmp_path: Path) -> None:
    with serving(tmp_path, retention_interval=0.05) as (server, thread):
        assert send(server.address, b"kept") == 0
        set_state(thread, server, "unwritable", DISK_FULL)
        assert bodies(server.address) == [b"kept"]
        wait_until(lambda: send(server.address, b"more") == 0)


def test_free_space_does_not_lift_a_refusal_with_another_reason(tmp_path: Path) -> None:
    with serving(tmp_path, retention_interval=0.01) as (server, thread):
        assert send(server.address, b"kept") == 0
        set_state(thread, server, "unwritable", "the disk fails")
        time.sleep(0.1)
        assert send(server.address, b"no") == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_table_that_cannot_be_saved_is_answered_and_saved_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(tmp_path, flush_timeout=WAIT_TIMEOUT) as (server, thread),
        connection(server.address) as peer,
    ):
        replace = OsFiles.replace

        def fail(self: OsFiles, path: str, data: bytes) -> None:
            if path.startswith("config/topics"):
                raise OSError(errno.ENOSPC, "No space left on device")
            replace(self, path, data)

        assert peer.ask(send_request(b"x")).code == 0
        monkeypatch.setattr(OsFiles, "replace", fail)
        set_flush_timeout(thread, server, 0.1)
        answer = peer.ask(create_request("Unsaved"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "could not be saved" in (answer.remark or "")
        assert peer.ask(send_request(b"others go on")).code == 0
        monkeypatch.undo()
        wait_until(lambda: peer.ask(create_request("Unsaved")).code == 0)
        assert b"Unsaved" in (tmp_path / "config/topics.json").read_bytes()


# ---- the disk, over time ----


def test_old_messages_go_and_the_queue_begins_later(tmp_path: Path) -> None:
    server = BrokerServer(
        tmp_path,
        BrokerOptions(retention_interval=0.05, checkpoint_interval=0.05),
        store=StoreOptions(log_segment_bytes=65_536),
        retention=RetentionOptions(keep_hours=1e-9),
    )

    async def is_old_gone() -> bool:
        return len(server.state.store.log.segment_starts) == 1

    with ServerThread(server) as thread, connection(server.address) as peer:
        for _ in range(20):
            assert peer.ask(send_request(bytes(10_000))).code == 0
        # Not only the first segment: each one that goes moves the beginning.
        wait_until(lambda: thread.run(is_old_gone()))
        first = tmp_path / "commitlog" / f"{0:020}"
        wait_until(lambda: not first.exists())  # the next flush removes the files
        answer = peer.ask(pull_request(0))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert int(answer.fields["minOffset"]) > 0
        assert peer.ask(pull_request(int(answer.fields["nextBeginOffset"]))).code == 0


def test_a_disk_above_its_limit_refuses_sends_until_it_is_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0.1]
    monkeypatch.setattr(
        OsFiles, "space", lambda _files: (round((1 - used[0]) * 1_000_000), 1_000_000)
    )
    with serving(tmp_path, retention_interval=0.02) as (server, thread):
        assert send(server.address, b"kept") == 0
        used[0] = 0.95
        wait_until(lambda: read_state(thread, server, "unwritable") is not None)
        with connection(server.address) as peer:
            answer = peer.ask(send_request(b"no"))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark == "no message is stored: the disk is full: 95% are in use"
        assert bodies(server.address) == [b"kept"]
        used[0] = 0.1
        wait_until(lambda: send(server.address, b"more") == 0)


def test_after_a_failed_retention_run_or_tick_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_loop, "_RETRY_INTERVAL", 0.01)
    failed: list[str] = []
    tick = Broker.tick

    def fail_to_drop(*arguments: Any) -> int:
        if failed.count("drop") < 2:
            failed.append("drop")
            raise OSError(errno.EACCES, "Permission denied")
        return drop_old_segments(*arguments)

    def fail_to_tick(self: Broker, now_ms: int) -> Any:
        if failed.count("tick") < 2:
            failed.append("tick")
            raise ZeroDivisionError
        return tick(self, now_ms)

    monkeypatch.setattr(broker_loop, "drop_old_segments", fail_to_drop)
    monkeypatch.setattr(Broker, "tick", fail_to_tick)
    with serving(tmp_path, retention_interval=0.01) as (server, thread):
        send(server.address, b"x")
        with connection(server.address) as peer:
            answer = peer.ask(pull_request(1, suspend_ms=50))
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        set_state(thread, server, "unwritable", DISK_FULL)
        wait_until(lambda: read_state(thread, server, "unwritable") is None)
    assert sorted(failed) == ["drop", "drop", "tick", "tick"]


# ---- name servers ----


def test_a_broker_announces_topics_before_it_answers(tmp_path: Path) -> None:
    with (
        name_server() as (names, _),
        serving(tmp_path, name_servers=(names.address,)) as (server, thread),
    ):
        assert send(server.address, b"x", "New") == 0
        assert route(names.address, "New") == ["broker-a"]
        thread.run(server.stop())
        wait_until(lambda: route(names.address, "New") is None)
        thread.run(server.start())
        assert route(names.address, "New") == ["broker-a"]


def test_a_broker_registers_again_after_its_name_server_came_back(tmp_path: Path) -> None:
    with (
        name_server() as (names, names_thread),
        serving(tmp_path, name_servers=(names.address,)) as (server, _),
    ):
        send(server.address, b"x")
        names_thread.run(names.stop())
        assert send(server.address, b"y", "Meanwhile") == 0
        names_thread.run(names.start())
        wait_until(lambda: route(names.address, "Meanwhile") == ["broker-a"])


def test_a_new_topic_does_not_delay_other_requests_while_a_name_server_is_silent(
    tmp_path: Path,
) -> None:
    with (
        name_server() as (names, _),
        serving(tmp_path, name_servers=(names.address,)) as (server, _thread),
        connection(server.address) as creating,
        connection(server.address) as other,
    ):
        other.ask(send_request(b"x"))
        names._listener.intercept = lambda request, peer: drop()
        numbers = itertools.count()

        def send_meanwhile() -> float:
            waiting = creating.start(send_request(b"x", f"New{next(numbers)}"))
            begun = time.monotonic()
            assert other.ask(send_request(b"y")).code == 0
            took = time.monotonic() - begun
            assert creating.finish(waiting).code == 0
            return took

        assert shortest(send_meanwhile, 0.5) < 0.5
        names._listener.intercept = None


# ---- stopping ----


def time_of_stop(server: BrokerServer, thread: ServerThread) -> float:
    begun = time.monotonic()
    thread.run(server.stop())
    return time.monotonic() - begun


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_stop_is_quick_while_the_name_server_is_down(tmp_path: Path, is_silent: bool) -> None:
    with (
        name_server() as (names, names_thread),
        serving(tmp_path, name_servers=(names.address,)) as (server, thread),
    ):

        def stop() -> float:
            names._listener.intercept = None
            names_thread.run(names.start())
            thread.run(server.start())
            with connection(server.address) as peer:
                peer.ask(send_request(b"x"))
                end = int(peer.ask(pull_request(0)).fields["maxOffset"])
                waiting = peer.start(pull_request(end, suspend_ms=600_000))
                wait_until(lambda: len(server.state.held_pulls) == 1)
                if is_silent:
                    names._listener.intercept = lambda request, peer: drop()
                else:
                    names_thread.run(names.stop())
                took = time_of_stop(server, thread)
                assert peer.finish(waiting).code == ResponseCode.PULL_NOT_FOUND
            return took

        assert shortest(stop, STOP_SECONDS) < STOP_SECONDS


def test_a_stop_is_quick_while_a_client_does_not_read(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, thread):

        def stop() -> float:
            thread.run(server.start())
            with connection(server.address) as peer:
                peer.ask(send_request(bytes(1_000_000)))
                for _ in range(50):
                    peer.start(pull_request(0))
                return time_of_stop(server, thread)

        assert shortest(stop, STOP_SECONDS) < STOP_SECONDS


def test_a_stop_sends_replies_that_wait_for_the_flush(tmp_path: Path, disk: SlowDisk) -> None:
    options: dict[str, Any] = {"flush": "sync", "flush_timeout": WAIT_TIMEOUT}
    with serving(tmp_path, **options) as (server, thread):

        def stop() -> float:
            thread.run(server.start())
            with connection(server.address) as peer:
                end = int(peer.ask(send_request(b"creates the topic")).fields["queueOffset"]) + 1
                disk.is_open.clear()
                waiting = peer.start(send_request(b"slow"))
                wait_until(lambda: server.state.store.queue("T", 0).max_offset == end + 1)
                opener = threading.Timer(0.2, disk.is_open.set)
                opener.start()
                took = time_of_stop(server, thread)
                assert peer.finish(waiting).code == 0
                opener.join()
            return took

        assert shortest(stop, STOP_SECONDS) < STOP_SECONDS


def test_a_stop_on_a_disk_that_fails_ends_with_an_error_and_a_free_folder(
    tmp_path: Path, disk: SlowDisk
) -> None:
    with serving(tmp_path) as (server, thread):
        assert send(server.address, b"x") == 0
        disk.error = OSError(errno.EROFS, "Read-only file system")
        send(server.address, b"y")
        with pytest.raises(StoreError, match="Read-only"):
            thread.run(server.stop())
        assert not server.is_serving
        disk.error = None
        thread.run(server.start())
        assert bodies(server.address) == [b"x", b"y"]


# ---- SQL92 filters ----


def _subscribe(peer: Peer, expression: str) -> None:
    subscription = Subscription(
        topic="T", sub_string=expression, sub_version=7, expression_type="SQL92"
    )
    member = ConsumerMember(group_name="G", subscription_data_set=[subscription])
    body = HeartbeatBody(client_id="c", consumer_data_set=[member]).encode()
    assert peer.ask(Command(int(RequestCode.HEART_BEAT), body=body)).code == 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_filters_of_groups_survive(tmp_path: Path, is_killed: bool) -> None:
    path = tmp_path / "config" / "consumerFilter.json"
    with serving(tmp_path, checkpoint_interval=0.1) as (server, thread):
        with connection(server.address) as peer:
            _subscribe(peer, "amount > 100")
            wait_until(path.exists)
        born = json.loads(path.read_bytes())["filterDataByTopic"]["T"]["groupFilterData"]["G"]
        thread.run(server.kill() if is_killed else server.stop())
        thread.run(server.start())
        filters = read_state(thread, server, "filters")
        known = filters.get("T", "G")
        assert (known.expression, known.client_version) == ("amount > 100", 7)
        assert (known.born_time, known.is_dead) == (born["bornTime"], True)
        with connection(server.address) as peer:
            _subscribe(peer, "amount > 100")
            assert not known.is_dead


def test_a_damaged_batch_is_refused_whole_and_the_next_one_is_stored(tmp_path: Path) -> None:
    """Native code hands such a batch back to Python, which names the damage."""
    batch = encode_batch([BatchItem(0, b"1", b""), BatchItem(0, b"2", b"")])
    with serving(tmp_path) as (server, _), connection(server.address) as peer:
        for data, code in (
            (batch[:-1], ResponseCode.SYSTEM_ERROR),
            (batch, ResponseCode.SUCCESS),
        ):
            request = send_request(data, batch=True)
            request.code = int(RequestCode.SEND_BATCH_MESSAGE)
            assert peer.ask(request).code == code
        assert bodies(server.address) == [b"1", b"2"]
