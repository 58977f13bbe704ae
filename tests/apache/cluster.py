"""A real Apache RocketMQ cluster in child processes.

`ApacheCluster` owns the processes and the folder they write to; closing it removes both. A cluster
is ready when each broker has logged that it booted and the name server returns its address, so a
test can send at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from tests.apache import probe, settings
from tests.apache.artifacts import Artifacts, resolve
from tests.apache.brokers import BrokerProcess
from tests.apache.ports import draw_broker_ports, draw_name_server_port
from tests.apache.processes import ChildProcess, tail_of
from tests.apache.security import Accounts, TlsFiles, make_tls_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_NAME_SERVER_CLASS = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER_CLASS = "org.apache.rocketmq.broker.BrokerStartup"
_ADMIN_CLASS = "org.apache.rocketmq.tools.command.MQAdminStartup"

_START_ATTEMPTS_MAX = 4
_POLL_INTERVAL = 0.05
# A broker waits for several of its threads in turn; 12 s were measured on an idle machine.
_STOP_TIMEOUT = 120.0
_PORT_TAKEN = ("Address already in use", "BindException")


class ClusterStartFailed(Exception):
    """The servers were started and did not become ready; the text ends with their logs."""


class _PortTaken(Exception):
    """Another process took a port first; the cluster starts again with other ports."""


class ApacheCluster:
    """One name server and its brokers; a context manager.

    Example:
        ```python
        with ApacheCluster("5.5.0", brokers=2) as cluster:
            print(cluster.name_server, [broker.address for broker in cluster.brokers])
        ```

    Attributes:
        version: The release.
        artifacts: Its jars.
        folder: Folder of this cluster; removed by `close`.
        brokers: The brokers in order of their names.
        acl: The accounts, when access control is on.
        tls: The certificate files, when TLS is on.
        started_in: Seconds from start to ready.
    """

    def __init__(
        self,
        version: str,
        *,
        brokers: int = 1,
        acl: Accounts | None = None,
        tls: TlsFiles | Literal["test"] | None = None,
        broker_options: Mapping[str, str] | None = None,
        name_server_options: Mapping[str, str] | None = None,
        more_name_servers: Sequence[str] = (),
        commit_log_bytes: int = settings.COMMIT_LOG_BYTES,
        start_timeout: float = 180.0,
        artifacts: Artifacts | None = None,
        purpose: settings.Purpose = "test",
    ) -> None:
        """Describe a cluster; `start` or `with` starts it.

        Args:
            version: "5.5.0" or "4.9.4".
            brokers: Number of masters, named broker-a, broker-b and so on.
            acl: Switch access control on, with these accounts.
            tls: Require TLS; "test" makes certificates for this cluster.
            broker_options: Lines for every broker's properties file; they override the test bed's.
            name_server_options: The same for the name server.
            more_name_servers: "host:port" of other name servers to register the brokers at.
            commit_log_bytes: Size of a commit log file; also the limit for one message.
            start_timeout: Seconds until the cluster must be ready.
            artifacts: The jars, if they are resolved already.
            purpose: "benchmark" runs the servers as they are shipped: full JVM, default options,
                default file sizes.

        Raises:
            ApacheUnavailable: The release cannot run on this machine.
        """
        self.version = version
        self._purpose: settings.Purpose = purpose
        self.artifacts = artifacts if artifacts is not None else resolve(version)
        self.acl = acl
        self.folder = Path(tempfile.mkdtemp(prefix=f"downrange-apache-{version}-"))
        try:
            self.tls = make_tls_files(self.folder / "tls") if tls == "test" else tls
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.brokers: list[BrokerProcess] = []
        self.started_in = 0.0
        self._broker_count = brokers
        self._broker_options = dict(broker_options or {})
        self._name_server_options = dict(name_server_options or {})
        self._more_name_servers = tuple(more_name_servers)
        self._commit_log_bytes = commit_log_bytes
        self._start_timeout = start_timeout
        self._home = self.folder / "home"
        self._tools_home = self.folder / "tools-home"
        self._name_server_folder = self.folder / "name-server"
        self._name_server_port = 0
        self._name_server: ChildProcess | None = None

    @property
    def name_server(self) -> str:
        """Return "127.0.0.1:port" of the name server."""
        return f"127.0.0.1:{self._name_server_port}"

    def __enter__(self) -> Self:
        """Start the cluster."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the cluster."""
        self.close()

    def start(self) -> None:
        """Start all servers at once and wait until they are ready.

        Raises:
            ClusterStartFailed: They did not become ready.
        """
        begun = time.monotonic()
        deadline = begun + self._start_timeout
        try:
            self._write_home()
            for attempt in range(1, _START_ATTEMPTS_MAX + 1):
                try:
                    self._start_once(deadline)
                    break
                except _PortTaken as error:
                    self._kill_all()
                    if attempt == _START_ATTEMPTS_MAX:
                        raise ClusterStartFailed(f"{error}\n{self.logs()}") from error
            self._create_users(self.brokers)
        except BaseException:
            self.close()
            raise
        self.started_in = time.monotonic() - begun

    def close(self) -> None:
        """Kill all servers and remove their files.

        A clean shutdown takes more than ten seconds. A test that reads the store files calls
        `stop_broker` and reads them before it closes the cluster.
        """
        self._kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop_broker(self, index: int) -> bool:
        """Shut a broker down cleanly: it closes its store and unregisters at the name server.

        Returns:
            False when it did not end in time and was killed.
        """
        broker = self.brokers[index]
        if broker.child is None:
            return True
        ended = broker.child.stop(_STOP_TIMEOUT)
        broker.child = None
        return ended

    def kill_broker(self, index: int) -> None:
        """Kill a broker without a shutdown, as a power cut would."""
        broker = self.brokers[index]
        if broker.child is not None:
            broker.child.kill()
            broker.child = None

    def start_broker(self, index: int) -> None:
        """Start a stopped broker again, with the same store and ports, and wait for it.

        Raises:
            ClusterStartFailed: It did not become ready.
        """
        broker = self.brokers[index]
        assert not broker.is_running, f"{broker.name} is running"
        # A broker that was killed while it made a file does not start with the empty file. As an
        # operator does, delete it: the broker makes it again from the log.
        for file in (broker.store / "consumequeue").glob("*/*/*"):
            if file.stat().st_size == 0:
                file.unlink()
        deadline = time.monotonic() + self._start_timeout
        while True:
            self._launch_broker(broker)
            try:
                self._wait_ready([broker], deadline)
                return
            except _PortTaken as error:
                # A restarted broker keeps its ports, so wait until the other process frees them.
                self.kill_broker(index)
                if time.monotonic() > deadline:
                    raise ClusterStartFailed(f"{error}\n{self.logs()}") from error
                time.sleep(1.0)

    def mqadmin(self, *arguments: str, timeout: float = 120.0) -> str:
        """Run Apache's command-line administration tool against this cluster.

        Args:
            *arguments: For example "topicRoute", "-t", "orders". The name server is
                added.
            timeout: Seconds.

        Returns:
            The output. The tool's exit code is 0 even when it failed, so check the text.

        Raises:
            RuntimeError: The exit code is not 0.
        """
        folder = self.folder / "mqadmin"
        properties = {"rocketmq.namesrv.addr": self.name_server, **self._client_properties()}
        command = self._java(_ADMIN_CLASS, folder, 256, properties, home=self._tools_home)
        run = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=self._environment(),
            timeout=timeout,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"mqadmin {' '.join(arguments)}: {run.returncode}\n{run.stdout}")
        return run.stdout

    def logs(self, tail: int = 4000) -> str:
        """Return the last part of each server's log, for failure reports.

        Args:
            tail: Characters per server.
        """
        files = {"name server": self._name_server_folder / "name-server.log"}
        files |= {broker.name: broker.log for broker in self.brokers}
        return "\n".join(
            f"--- {name} ({self.version}), end of its log ---\n{tail_of(path, tail)}"
            for name, path in files.items()
        )

    def processes(self) -> list[ChildProcess]:
        """Return the server processes that are still running."""
        children = [self._name_server, *(broker.child for broker in self.brokers)]
        return [child for child in children if child is not None]

    def _start_once(self, deadline: float) -> None:
        self._name_server_port = draw_name_server_port()
        self.brokers = [
            BrokerProcess(
                name=f"broker-{chr(ord('a') + index)}",
                ports=draw_broker_ports(),
                folder=self.folder / f"broker-{chr(ord('a') + index)}",
            )
            for index in range(self._broker_count)
        ]
        # All at once: the name server is ready before a broker registers. If it is not, the broker
        # registers again ten seconds later.
        self._launch_name_server()
        for broker in self.brokers:
            self._write_broker_files(broker)
            self._launch_broker(broker)
        self._wait_ready(self.brokers, deadline)

    def _write_home(self) -> None:
        settings.write_home(self._home)
        # The tools print their results to the same stream as their log.
        settings.write_home(self._tools_home, level="OFF")
        if self.acl is not None:
            accounts = self._home / "conf" / "plain_acl.yml"
            accounts.write_text(self.acl.plain_acl_yaml(), encoding="utf-8")
            admin = self.acl.admin
            keys = f"accessKey: {admin.access_key}\nsecretKey: {admin.secret_key}\n"
            (self._tools_home / "conf" / "tools.yml").write_text(keys, encoding="utf-8")

    def _write_broker_files(self, broker: BrokerProcess) -> None:
        broker.folder.mkdir(parents=True, exist_ok=True)
        options = settings.common_options()
        if self._purpose == "test":
            options |= settings.fast_options(self.version, self._commit_log_bytes)
        if self.acl is not None and self.version.startswith("4."):
            options["aclEnable"] = "true"
        elif self.acl is not None:
            options |= self.acl.auth_options()
            options["authConfigPath"] = str(broker.store / "config" / "auth")
        options |= {
            "brokerName": broker.name,
            "namesrvAddr": ";".join([self.name_server, *self._more_name_servers]),
            "listenPort": str(broker.ports.listen),
            "haListenPort": str(broker.ports.replication),
            "storePathRootDir": str(broker.store),
            "storePathCommitLog": str(broker.store / "commitlog"),
        }
        settings.write_properties(broker.configuration, options | self._broker_options)

    def _launch_name_server(self) -> None:
        folder = self._name_server_folder
        command = self._java(_NAME_SERVER_CLASS, folder, 512, self._server_properties())
        configuration = folder / "name-server.conf"
        options = {"listenPort": str(self._name_server_port)}
        settings.write_properties(configuration, options | self._name_server_options)
        self._name_server = ChildProcess(
            "name server",
            [*command, "-c", str(configuration)],
            output=folder / "name-server.log",
            directory=folder,
            environment=self._environment(),
        )

    def _launch_broker(self, broker: BrokerProcess) -> None:
        command = self._java(_BROKER_CLASS, broker.folder, 1024, self._server_properties())
        command.insert(1, "-XX:MaxDirectMemorySize=512m")
        broker.log_start = broker.log.stat().st_size if broker.log.exists() else 0
        broker.child = ChildProcess(
            broker.name,
            [*command, "-c", str(broker.configuration)],
            output=broker.log,
            directory=broker.folder,
            environment=self._environment(),
        )

    def _wait_ready(self, brokers: list[BrokerProcess], deadline: float) -> None:
        waiting = list(brokers)
        while waiting:
            self._check_processes()
            if time.monotonic() > deadline:
                names = ", ".join(broker.name for broker in waiting)
                raise ClusterStartFailed(f"not ready in time: {names}\n{self.logs()}")
            time.sleep(_POLL_INTERVAL)
            waiting = [broker for broker in waiting if not self._is_ready(broker)]

    def _is_ready(self, broker: BrokerProcess) -> bool:
        # Check the broker's log first: after a kill the name server may still return the old entry.
        if b"boot success" not in _since(broker.log, broker.log_start):
            return False
        tls = self.tls.client_context() if self.tls else None
        try:
            found = probe.route(self.name_server, broker.name, tls=tls)
        except OSError:
            return False
        return broker.address in found.get(broker.name, [])

    def _check_processes(self) -> None:
        for child in self.processes():
            if child.is_running:
                continue
            text = child.tail(20_000)
            if any(sign in text for sign in _PORT_TAKEN):
                raise _PortTaken(f"{child.name}: a port is taken")
            raise ClusterStartFailed(f"{child.name} ended with {child.exit_code}\n{self.logs()}")

    def _create_users(self, brokers: list[BrokerProcess]) -> None:
        if self.acl is not None and self.version.startswith("5."):
            tls = self.tls.client_context() if self.tls else None
            for broker in brokers:
                self.acl.create_users(broker.address, tls=tls)

    def _kill_all(self) -> None:
        for broker in self.brokers:
            if broker.child is not None:
                broker.child.kill()
                broker.child = None
        if self._name_server is not None:
            self._name_server.kill()
            self._name_server = None

    def _java(
        self,
        main_class: str,
        folder: Path,
        heap_mib: int,
        properties: Mapping[str, str],
        *,
        home: Path | None = None,
    ) -> list[str]:
        return settings.java_command(
            self.artifacts,
            main_class,
            folder=folder,
            home=home or self._home,
            heap_mib=heap_mib,
            properties=properties,
            purpose=self._purpose,
        )

    def _server_properties(self) -> dict[str, str]:
        if self.tls is not None:
            return self.tls.server_properties()
        # The default mode, "permissive", makes a temporary certificate first, which takes up to six
        # seconds per server.
        return {"tls.server.mode": "disabled"} if self._purpose == "test" else {}

    def _client_properties(self) -> dict[str, str]:
        return self.tls.client_properties() if self.tls is not None else {}

    @staticmethod
    def _environment() -> dict[str, str]:
        # Variables such as NAMESRV_ADDR or JAVA_TOOL_OPTIONS would change what is tested.
        kept = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
        return {key: os.environ[key] for key in kept if key in os.environ}


def _since(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read()
