"""Find Java and fetch the Apache RocketMQ jars, once per version and machine.

This module owns the cache folder. A version's jars are copied by Maven into a scratch folder next
to the final one and renamed when the copy is whole: a folder under its final name is complete, and
is used without Maven and without a network. Anything missing raises `ApacheUnavailable` with a
reason that says what to install or fix.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

VERSIONS = ("5.5.0", "4.9.4")
"""The releases that the test bed can configure, newest first."""

JAVA_MINIMUM = 11
"""`--add-opens` needs Java 9, the driver's `var` needs Java 10; 11 is the first LTS release."""

# Pinned, so that the same command line means the same thing on every machine.
_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_PARTS = ("rocketmq-namesrv", "rocketmq-broker", "rocketmq-tools", "rocketmq-client")
_PROXY_PARTS = (*_PARTS, "rocketmq-proxy")
_OUTPUT_TAIL_CHARACTERS = 2000


class ApacheUnavailable(Exception):
    """The Apache servers cannot run here; `reason` says what is missing."""

    def __init__(self, reason: str) -> None:
        """Set the reason, which is also the text of the exception."""
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Artifacts:
    """One RocketMQ release that is ready to run.

    Attributes:
        version: The release, for example "5.5.0".
        java: The `java` executable.
        home: The cache folder of this release; `home / "jars"` holds the jars.
        classpath: Value for `java -cp`.
    """

    version: str
    java: Path
    home: Path
    classpath: str

    @property
    def javac(self) -> Path:
        """Return the compiler that belongs to `java`.

        Raises:
            ApacheUnavailable: Only a runtime is installed.
        """
        beside = self.java.resolve().with_name("javac")
        found = str(beside) if beside.exists() else shutil.which("javac")
        if found is None:
            raise ApacheUnavailable(f"no Java compiler: {beside} is missing (a JDK is needed)")
        return Path(found)


def cache_root() -> Path:
    """Return the folder that holds one folder per release; it need not exist yet."""
    if explicit := os.environ.get("DOWNRANGE_APACHE_CACHE"):
        return Path(explicit).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    base = Path(xdg) if xdg else Path.home() / ".cache"
    return base / "downrange" / "apache"


def resolve(version: str, *, with_proxy: bool = False, timeout: float = 900.0) -> Artifacts:
    """Return the jars of a release, fetching them with Maven when the cache has none.

    Args:
        version: One of `VERSIONS`.
        with_proxy: Also those of the gRPC proxy of 5.x, which have a folder of their own.
        timeout: Seconds in total for waiting on another process and for Maven.

    Raises:
        ApacheUnavailable: Java or Maven is missing, or the jars could not be fetched.
    """
    if version not in VERSIONS:
        raise ApacheUnavailable(f"unknown RocketMQ version {version!r}, known: {VERSIONS}")
    java = find_java()
    home = cache_root() / (f"{version}-proxy" if with_proxy else version)
    parts = _PROXY_PARTS if with_proxy else _PARTS
    if not (home / "jars").is_dir():
        deadline = time.monotonic() + timeout
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ApacheUnavailable(f"cannot make the cache folder {home}: {error}") from error
        with exclusive(home / "fetch.lock", deadline):
            # Another process may have fetched the jars while this one waited for the lock.
            if not (home / "jars").is_dir():
                _fetch(version, parts, home, deadline)
    return Artifacts(version=version, java=java, home=home, classpath=str(home / "jars" / "*"))


def find_java() -> Path:
    """Return a `java` that is new enough, from JAVA_HOME or PATH.

    Raises:
        ApacheUnavailable: None was found, or it is too old.
    """
    java_home = os.environ.get("JAVA_HOME")
    search = str(Path(java_home) / "bin") if java_home else None
    found = shutil.which("java", path=search)
    if found is None:
        raise ApacheUnavailable(f"no java in {'JAVA_HOME ' + java_home if java_home else 'PATH'}")
    try:
        printed = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ApacheUnavailable(f"{found} -version does not work: {error}") from error
    text = printed.stderr + printed.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    if match is None:
        raise ApacheUnavailable(f"cannot read the Java version from: {_tail(text)}")
    if int(match[1]) < JAVA_MINIMUM:
        raise ApacheUnavailable(f"{found} is Java {match[1]}, {JAVA_MINIMUM} or later is needed")
    return Path(found)


@contextlib.contextmanager
def exclusive(path: Path, deadline: float) -> Generator[None, None, None]:
    """Hold an advisory lock on a file, so that concurrent test runs fetch or compile only once.

    Raises:
        ApacheUnavailable: Another process kept the lock past the deadline.
    """
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ApacheUnavailable(f"another process holds {path} too long") from None
                time.sleep(0.2)
        yield


def _fetch(version: str, parts: tuple[str, ...], home: Path, deadline: float) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ApacheUnavailable(
            f"no jars of RocketMQ {version} in {home} and no mvn in PATH to fetch them"
        )
    with tempfile.TemporaryDirectory(dir=home, prefix="fetch-") as scratch_name:
        scratch = Path(scratch_name)
        pom = scratch / "pom.xml"
        pom.write_text(_pom(version, parts), encoding="utf-8")
        command = [maven, "-B", "-q", "-f", str(pom), _COPY_DEPENDENCIES]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={scratch / 'jars'}"]
        try:
            run = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=max(1.0, deadline - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            output = error.output or b""
            text = output.decode(errors="replace") if isinstance(output, bytes) else str(output)
            raise ApacheUnavailable(f"mvn took too long for {version}: {_tail(text)}") from error
        except OSError as error:
            raise ApacheUnavailable(f"mvn does not start: {error}") from error
        if run.returncode != 0:
            raise ApacheUnavailable(
                f"mvn could not fetch RocketMQ {version} (exit {run.returncode}): "
                + _tail(run.stdout)
            )
        for part in parts:
            if not (scratch / "jars" / f"{part}-{version}.jar").is_file():
                raise ApacheUnavailable(f"mvn left no {part}-{version}.jar: {_tail(run.stdout)}")
        (scratch / "jars").rename(home / "jars")


def _pom(version: str, parts: tuple[str, ...]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{part}</artifactId>"
        f"<version>{version}</version></dependency>"
        for part in parts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>downrange</groupId><artifactId>apache-test-bed</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>\n"
    )


def _tail(text: str) -> str:
    return text.strip()[-_OUTPUT_TAIL_CHARACTERS:] or "(no output)"
