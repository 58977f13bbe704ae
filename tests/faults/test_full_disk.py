"""A full disk: sends are refused until there is space again, reads continue."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from downrange.errors import StoreError
from downrange.options import BrokerOptions
from downrange.server.run.broker_server import BrokerServer
from downrange.server.run.runner import ServerThread
from downrange.store.retention import RetentionOptions
from downrange.wire.codes import ResponseCode
from tests.embedded.brokers import bodies, send
from tests.faults.load import Acknowledged, Sender, check_found, check_kept
from tests.faults.processes import DEADLINE, ServerProcess, served
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

REFUSED = int(ResponseCode.SERVICE_NOT_AVAILABLE)
#: Retention starts only when the disk is full.
TO_THE_LAST_BYTE = """
[retention]
disk_used_max = 1.0
disk_used_full = 1.0
[broker]
retention_interval = 0.2
checkpoint_interval = 0.5
"""
DISK_BYTES = 12 * 1024 * 1024


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def _on_a_small_disk(folder: Path) -> list[str]:
    """Return a prefix that runs a command with a small disk at a folder, one third of it used."""
    mount = f"mount -t tmpfs -o size={DISK_BYTES} none {folder}"
    fill = f"mkdir {folder}/store && head -c {DISK_BYTES // 3} /dev/zero > {folder}/ballast"
    return ["unshare", "-Urm", "sh", "-c", f'{mount} && {fill} && exec "$@"', "-"]


def test_a_real_disk_runs_full_and_gets_space_again(tmp_path: Path) -> None:
    if not _can_mount():
        pytest.skip("no user namespaces here: a small disk cannot be mounted")
    disk, config = tmp_path / "disk", tmp_path / "config.toml"
    disk.mkdir()
    config.write_text(TO_THE_LAST_BYTE)
    # The log file of the process is beside its store, and so outside the small disk.
    (tmp_path / "store").symlink_to(disk / "store")
    options = ("--config", str(config), "--flush", "sync")
    with served(tmp_path / "store", *options, prefix=_on_a_small_disk(disk)) as server:
        promised = _send_until_refused(server)
        check_kept(server.broker, promised)
        assert send(server.broker, bytes(100_000), "shared") == REFUSED
        inside = Path(f"/proc/{server.process.pid}/root")
        (inside / str(disk / "ballast").lstrip("/")).unlink()
        wait_until(lambda: send(server.broker, b"yes", "shared") == 0, DEADLINE)
        promised += _send_until_refused(server)
        check_kept(server.broker, promised)
        check_found(server.broker, Random(1).sample(promised, 5))
        assert "sends are refused: the disk is full" in server.log()
        assert "sends are accepted again: the disk has space" in server.log()


def _send_until_refused(server: ServerProcess) -> list[Acknowledged]:
    senders = [
        Sender(server.broker, "shared", f"{number}-{os.urandom(4).hex()}", Random(number), window=8)
        for number in range(3)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(DEADLINE)
        assert sender.refusal is not None
        assert sender.refusal.code in (REFUSED, ResponseCode.FLUSH_DISK_TIMEOUT)
    promised = [message for sender in senders for message in sender.acknowledged]
    assert promised
    return promised


class FullDisk:
    """Makes system calls that write fail with ENOSPC."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        pwritev, pwrite = os.pwritev, os.pwrite

        def refuse() -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def pwritev_or_not(handle: int, parts: Sequence[bytes], at: int) -> int:
            refuse()
            return pwritev(handle, parts, at)

        def pwrite_or_not(handle: int, data: bytes, at: int) -> int:
            if data != b"lock":  # the lock file has its block already
                refuse()
            return pwrite(handle, data, at)

        monkeypatch.setattr(os, "pwritev", pwritev_or_not)
        monkeypatch.setattr(os, "pwrite", pwrite_or_not)


def test_a_send_is_refused_with_the_code_of_a_full_disk_until_a_check_finds_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    options = BrokerOptions(retention_interval=0.05, checkpoint_interval=0.05)
    server = BrokerServer(tmp_path, options)
    with ServerThread(server):
        assert send(server.address, b"before") == 0
        disk.is_full = True
        for _ in range(20):
            assert send(server.address, b"refused") == REFUSED
        assert bodies(server.address) == [b"before"]
        disk.is_full = False
        wait_until(lambda: send(server.address, b"after") == 0)
    server = BrokerServer(tmp_path)
    with ServerThread(server):
        assert bodies(server.address) == [b"before", b"after"]


def test_a_broker_that_crashed_is_started_on_a_full_disk_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = BrokerServer(tmp_path)
    with ServerThread(server) as thread:
        assert send(server.address, b"before") == 0
        thread.run(server.kill())
    disk = FullDisk(monkeypatch)
    disk.is_full = True
    server = BrokerServer(tmp_path)
    with ServerThread(server):
        assert bodies(server.address) == [b"before"]
        assert "no checkpoint at the end of recovery: no space left" in caplog.text
        disk.is_full = False


def test_a_broker_that_crashed_is_not_started_on_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync, the kernel may drop what recovery has read from its cache."""
    server = BrokerServer(tmp_path)
    with ServerThread(server) as thread:
        assert send(server.address, b"before") == 0
        thread.run(server.kill())

    def fail(_handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patches:
        patches.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreError, match=r"cannot be opened: .*Input/output error"):
            ServerThread(BrokerServer(tmp_path)).start()
    server = BrokerServer(tmp_path)
    with ServerThread(server):
        assert bodies(server.address) == [b"before"]


def test_a_disk_above_its_limit_refuses_messages_with_the_reason(tmp_path: Path) -> None:
    """The limit is below what is in use on the disk of this machine."""
    retention = RetentionOptions(disk_used_max=1e-9, disk_used_full=1e-9)
    server = BrokerServer(tmp_path, BrokerOptions(retention_interval=0.05), retention=retention)
    with ServerThread(server):
        wait_until(lambda: send(server.address, b"refused") == REFUSED)
        assert bodies(server.address) == []
