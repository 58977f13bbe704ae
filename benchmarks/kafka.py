"""Runs a Kafka broker, and fetches the jars of Spark's Kafka connector.

The broker is one node that is also its controller (KRaft), with a temporary folder and free ports.
Its settings are the defaults, except those that a single node needs. Maven downloads the jars once,
into the same cache as those of Apache RocketMQ.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.apache.artifacts import ApacheUnavailable, cache_root, exclusive, find_java
from tests.apache.ports import draw_name_server_port
from tests.apache.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

KAFKA_VERSION: Final = "3.9.2"
"""The Kafka release that the connector of `SPARK_VERSION` was built with."""
SPARK_VERSION: Final = "4.2.0"
"""The last Spark for which the connector is published."""
_SCALA: Final = "2.13"
#: The connector's module for Kerberos tokens: its classes must exist, but are not used.
#: A repository may not have the release itself; an earlier one works, too.
_TOKEN_VERSIONS: Final = (SPARK_VERSION, "4.1.0-preview1")

_COPY_DEPENDENCIES: Final = (
    "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
)
_FETCH_TIMEOUT: Final = 900.0
_START_TIMEOUT: Final = 60.0
_STOP_TIMEOUT: Final = 20.0
_START_ATTEMPTS: Final = 3
_POLL_INTERVAL: Final = 0.1
_TAIL_CHARACTERS: Final = 2000
_CLUSTER_ID: Final = "ZG93bnJhbmdlLWJlbmNoMQ"


class KafkaUnavailable(Exception):
    """Kafka cannot run here; the text names what is missing."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A jar by its Maven name; `is_alone` excludes its dependencies."""

    group: str
    name: str
    version: str
    is_alone: bool = False

    def xml(self) -> str:
        """Return the XML element for a pom file."""
        nothing_else = (
            "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
            "</exclusions>"
        )
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version>{nothing_else if self.is_alone else ''}"
            "</dependency>"
        )


@dataclass(frozen=True, slots=True)
class KafkaBroker:
    """A running broker: its address and its process."""

    servers: str
    pid: int


def server_jars() -> Path:
    """Return the folder with the broker's jars.

    Raises:
        KafkaUnavailable: They are not in the cache, and Maven cannot download them.
    """
    artifacts = [
        Artifact("org.apache.kafka", f"kafka_{_SCALA}", KAFKA_VERSION),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    ]
    return _jars(f"kafka-{KAFKA_VERSION}", [artifacts])


def connector_jars() -> Path:
    """Return the folder with the jars that Spark needs for its `kafka` source.

    Raises:
        KafkaUnavailable: They are not in the cache, and Maven cannot download them.
    """
    spark = "org.apache.spark"
    # The other dependencies of the connector are part of pyspark.
    artifacts = [
        Artifact(spark, f"spark-sql-kafka-0-10_{_SCALA}", SPARK_VERSION, is_alone=True),
        Artifact("org.apache.kafka", "kafka-clients", KAFKA_VERSION, is_alone=True),
        Artifact("org.apache.commons", "commons-pool2", "2.13.1", is_alone=True),
    ]
    tokens = f"spark-token-provider-kafka-0-10_{_SCALA}"
    choices = [
        [*artifacts, Artifact(spark, tokens, version, is_alone=True)] for version in _TOKEN_VERSIONS
    ]
    return _jars(f"spark-sql-kafka-{SPARK_VERSION}", choices)


@contextlib.contextmanager
def start_kafka(*, partitions: int, heap_mib: int = 1024) -> Generator[KafkaBroker]:
    """Start a broker and wait until it listens; it ends with the block.

    Args:
        partitions: Partitions of a topic; the first write creates the topic.
        heap_mib: Heap size; the start script of a release sets 1 GB.

    Raises:
        KafkaUnavailable: Java or the jars are missing, or the broker does not start.
    """
    try:
        java = find_java()
    except ApacheUnavailable as error:
        raise KafkaUnavailable(error.reason) from error
    jars = server_jars()
    with tempfile.TemporaryDirectory(prefix="downrange-kafka-") as name:
        child, port = _start(java, jars, Path(name), partitions, heap_mib)
        try:
            yield KafkaBroker(servers=f"127.0.0.1:{port}", pid=child.pid)
        finally:
            child.stop(_STOP_TIMEOUT)


def _start(
    java: Path, jars: Path, folder: Path, partitions: int, heap_mib: int
) -> tuple[ChildProcess, int]:
    """Start on random ports; try other ports if one is in use by then."""
    for attempt in range(_START_ATTEMPTS):
        home = folder / str(attempt)
        home.mkdir()
        port, controller = draw_name_server_port(), draw_name_server_port()
        settings = home / "server.properties"
        settings.write_text(_settings(home / "data", port, controller, partitions))
        command = [str(java), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
        _format(command, settings)
        heap = [f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m", "-XX:+UseG1GC"]
        child = ChildProcess(
            "kafka",
            [command[0], *heap, *command[1:], "kafka.Kafka", str(settings)],
            output=home / "log",
            directory=home,
        )
        deadline = time.monotonic() + _START_TIMEOUT
        while child.is_running and time.monotonic() < deadline:
            if _listens(port):
                return child, port
            time.sleep(_POLL_INTERVAL)
        output = child.tail(_TAIL_CHARACTERS)
        child.kill()
        if attempt + 1 == _START_ATTEMPTS:
            raise KafkaUnavailable(f"the Kafka broker does not start; its output: {output}")
    raise AssertionError("unreachable")


def _format(command: list[str], settings: Path) -> None:
    """Write the cluster id into the folder; a node does not start without it."""
    format_it = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
    done = subprocess.run(
        [*command, *format_it],
        capture_output=True,
        text=True,
        timeout=_START_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise KafkaUnavailable(f"kafka.tools.StorageTool failed: {_tail(done.stderr)}")


def _settings(data: Path, port: int, controller: int, partitions: int) -> str:
    options = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "num.partitions": str(partitions),
        # A single node cannot keep the three replicas of the defaults.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in options.items())


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _jars(folder: str, choices: Sequence[Sequence[Artifact]]) -> Path:
    """Return a folder of the cache, filled with the first choice that Maven can download."""
    home = cache_root().parent / "kafka" / folder
    if (home / "jars").is_dir():
        return home / "jars"
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(f"no jars in {home}, and no mvn in PATH to download them")
    home.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _FETCH_TIMEOUT
    try:
        with exclusive(home / "fetch.lock", deadline):
            output = ""
            for artifacts in choices:
                if (home / "jars").is_dir():
                    break
                output = _fetch(maven, artifacts, home, deadline)
    except ApacheUnavailable as error:
        raise KafkaUnavailable(error.reason) from error
    if not (home / "jars").is_dir():
        raise KafkaUnavailable(f"mvn could not download {folder}: {_tail(output)}")
    return home / "jars"


def _fetch(maven: str, artifacts: Sequence[Artifact], home: Path, deadline: float) -> str:
    """Download with Maven and move the complete folder into place; return Maven's output."""
    with tempfile.TemporaryDirectory(dir=home, prefix="fetch-") as scratch_name:
        scratch = Path(scratch_name)
        pom = scratch / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>downrange</groupId><artifactId>benchmarks</artifactId><version>1</version>"
            f"<dependencies>{''.join(each.xml() for each in artifacts)}</dependencies></project>\n",
            encoding="utf-8",
        )
        command = [maven, "-B", "-q", "-f", str(pom), _COPY_DEPENDENCIES]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={scratch / 'jars'}"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=max(1.0, deadline - time.monotonic()),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        names = [f"{each.name}-{each.version}.jar" for each in artifacts]
        if done.returncode == 0 and all((scratch / "jars" / name).is_file() for name in names):
            (scratch / "jars").rename(home / "jars")
        return done.stdout


def _tail(text: str) -> str:
    return text.strip()[-_TAIL_CHARACTERS:] or "(no output)"
