"""A Spark standalone cluster of processes on loopback, from the pyspark package, and its jobs.

Its executors use a separate Python environment with Downrange's dependencies, but without
Downrange, which is shipped with each job as a zip. So a test finds what a cluster would lack.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

from tests.apache.processes import ChildProcess
from tests.support.jvm import SHORT_LIVED
from tests.support.waiting import wait_until

SOURCE = Path(__file__).parents[2] / "src"
_SPARK_HOME = Path(pyspark.__file__).parent
_PATIENCE = 180.0
#: Packages that an executor needs; the versions are those of this environment.
_NEEDED = ("msgspec", "lz4", "zstandard", "pyarrow", "numpy")


def ship(folder: Path) -> Path:
    """Pack the package as users do for --py-files: the folders of src in one zip."""
    target = folder / "downrange.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(SOURCE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(SOURCE))
    return target


def executor_python(folder: Path) -> Path:
    """Make the Python of executors, without Downrange and pyspark, but with their dependencies.

    Its packages are links to the installed ones, so nothing is downloaded.
    """
    environment = folder / "executor-python"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=180
    )
    installed = Path(pyspark.__file__).parents[1]
    packages = next(environment.glob("lib/python3.*/site-packages"))
    for name in _NEEDED:
        for found in (*installed.glob(name), *installed.glob(f"{name}.libs")):
            (packages / found.name).symlink_to(found)
    return environment / "bin" / "python"


class StandaloneCluster:
    """A master and workers, each a process; a context manager.

    Attributes:
        master: Its address, spark://….
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        """Take a folder for logs and scratch files."""
        self.folder = folder
        self.master = ""
        self._count = workers
        self._master_process: ChildProcess | None = None
        self.workers: list[ChildProcess] = []
        self.package = ship(folder)
        self.python = executor_python(folder)

    def __enter__(self) -> StandaloneCluster:
        """Start everything, and wait until the workers are registered."""
        try:
            self._master_process = self._start("master", "org.apache.spark.deploy.master.Master")
            pattern = r"Starting Spark master at (spark://\S+)"
            self.master = self._await(self._master_process, pattern)
            for _ in range(self._count):
                self.add_worker()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Stop everything."""
        self.close()

    def close(self) -> None:
        """Kill everything, executors included: they are in their worker's process group."""
        for process in [*self.workers, self._master_process]:
            if process is not None:
                process.kill()

    def add_worker(self) -> ChildProcess:
        """Start a worker with one core."""
        name = f"worker-{len(self.workers)}"
        worker = self._start(
            name,
            "org.apache.spark.deploy.worker.Worker",
            *("--cores", "1", "--memory", "1g"),
            *("--work-dir", str(self.folder / f"{name}-work")),
            self.master,
        )
        self.workers.append(worker)
        self._await(worker, r"(Successfully registered with master)")
        return worker

    def submit(self, job: Path, *arguments: str, name: str) -> Job:
        """Run a program with spark-submit, with Downrange in --py-files."""
        command = [
            str(_SPARK_HOME / "bin" / "spark-submit"),
            *("--master", self.master, "--py-files", str(self.package)),
            *("--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", f"spark.executor.extraJavaOptions={' '.join(SHORT_LIVED)}"),
            *("--conf", "spark.python.unix.domain.socket.enabled=true"),
            *("--conf", "spark.task.maxFailures=8", "--conf", "spark.sql.shuffle.partitions=2"),
            str(job),
            *arguments,
        ]
        environment = {
            **self._environment(),
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            # The process that plans a stream on the driver does not get --py-files.
            "PYTHONPATH": str(self.package),
        }
        log = self.folder / f"{name}.log"
        process = ChildProcess(
            name, command, output=log, directory=self.folder, environment=environment
        )
        return Job(process, log)

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
        }
        flags = dict.fromkeys(
            ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"), " ".join(SHORT_LIVED)
        )
        return {**kept, **flags, "SPARK_HOME": str(_SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}

    def _start(self, name: str, java_class: str, *arguments: str) -> ChildProcess:
        return ChildProcess(
            name,
            [
                str(_SPARK_HOME / "bin" / "spark-class"),
                *(java_class, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
                *arguments,
            ],
            output=self.folder / f"{name}.log",
            directory=self.folder,
            environment={**self._environment(), "PYSPARK_PYTHON": str(self.python)},
        )

    def _await(self, process: ChildProcess, pattern: str) -> str:
        found = wait_until(
            lambda: re.search(pattern, process.output.read_text(errors="replace")), _PATIENCE
        )
        return found[1]


class Job:
    """A program that runs on a cluster."""

    def __init__(self, process: ChildProcess, log: Path) -> None:
        """Take its driver's process and log."""
        self.process = process
        self.log = log

    def finish(self, timeout: float) -> str:
        """Wait for the end, and return the log.

        Raises:
            AssertionError: It failed, or did not end in time.
        """
        has_ended = self.process.wait(timeout)
        text = self.log.read_text(errors="replace")
        assert has_ended, f"{self.process.name} has not ended after {timeout} s:\n{text[-4000:]}"
        assert self.process.exit_code == 0, text[-6000:]
        return text
