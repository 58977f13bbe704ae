"""A Kafka broker of its own processes, and the jars that let Spark talk to it.

One node, broker and controller at once (KRaft), with a temporary folder and free ports, as it is
shipped but for what a single node needs. The jars are fetched by Maven, once, into the same cache
as those of Apache RocketMQ.
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
"""What the connector of `SPARK_VERSION` was built with."""
SPARK_VERSION: Final = "4.2.0"
"""The last Spark for which the connector is published."""
_SCALA: Final = "2.13"
#: The connector's part for Kerberos tokens, of which only classes are needed: nobody logs in here.
#: A repository may lack the release itself; an earlier one serves as well.
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
    """Kafka cannot be run here; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A jar by its Maven name; `is_alone` leaves out what it depends on."""

    group: str
    name: str
    version: str
    is_alone: bool = False

    def xml(self) -> str:
        """Return it as an element of a pom."""
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
    """A running broker: where it listens, and its process."""

    servers: str
    pid: int


def server_jars() -> Path:
    """Return the folder with the broker's jars.

    Raises:
        KafkaUnavailable: They are not in the cache and Maven cannot get them.
    """
    wanted = [
        Artifact("org.apache.kafka", f"kafka_{_SCALA}", KAFKA_VERSION),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    ]
    return _jars(f"kafka-{KAFKA_VERSION}", [wanted])


def connector_jars() -> Path:
    """Return the folder with the jars that Spark needs for its `kafka` source.

    Raises:
        KafkaUnavailable: They are not in the cache and Maven cannot get them.
    """
    spark = "org.apache.spark"
    # What else the connector depends on is part of pyspark.
    wanted = [
        Artifact(spark, f"spark-sql-kafka-0-10_{_SCALA}", SPARK_VERSION, is_alone=True),
        Artifact("org.apache.kafka", "kafka-clients", KAFKA_VERSION, is_alone=True),
        Artifact("org.apache.commons", "commons-pool2", "2.13.1", is_alone=True),
    ]
    tokens = f"spark-token-provider-kafka-0-10_{_SCALA}"
    choices = [
        [*wanted, Artifact(spark, tokens, version, is_alone=True)] for version in _TOKEN_VERSIONS
    ]
    return _jars(f"spark-sql-kafka-{SPARK_VERSION}", choices)


@contextlib.contextmanager
def start_kafka(*, partitions: int, heap_mib: int = 1024) -> Generator[KafkaBroker]:
    """Start a broker, wait until it listens, and end it at the end.

    Args:
        partitions: Of a topic, which is made by the first write.
        heap_mib: Its heap, which a release's start script sets to 1 GB.

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
    """Start on drawn ports, and on others if somebody took one in between."""
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
        said = child.tail(_TAIL_CHARACTERS)
        child.kill()
        if attempt + 1 == _START_ATTEMPTS:
            raise KafkaUnavailable(f"the Kafka broker does not start; it said: {said}")
    raise AssertionError("unreachable")


def _format(command: list[str], settings: Path) -> None:
    """Write the identity of the cluster into its folder, without which a node does not start."""
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
        # A single node cannot keep the three copies that these want.
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
    """Return a folder of the cache, filled with the first choice that can be had."""
    home = cache_root().parent / "kafka" / folder
    if (home / "jars").is_dir():
        return home / "jars"
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(f"no jars in {home} and no mvn in PATH to fetch them")
    home.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _FETCH_TIMEOUT
    try:
        with exclusive(home / "fetch.lock", deadline):
            said = ""
            for artifacts in choices:
                if (home / "jars").is_dir():
                    break
                said = _fetch(maven, artifacts, home, deadline)
    except ApacheUnavailable as error:
        raise KafkaUnavailable(error.reason) from error
    if not (home / "jars").is_dir():
        raise KafkaUnavailable(f"mvn could not fetch {folder}: {_tail(said)}")
    return home / "jars"


def _fetch(maven: str, artifacts: Sequence[Artifact], home: Path, deadline: float) -> str:
    """Let Maven fill a folder, and put it in place when it is whole; return what Maven said."""
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
