"""Spark sessions for pipelines: the Java that runs them, and quiet, predictable settings.

Nothing here connects to RocketMQ. A missing or old Java raises an error that names the command to
install one on this platform, before Spark fails with a stack trace.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.extras import require
from downrange.pipelines.jvm import start_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

#: Spark 4 is compiled for it.
JAVA_VERSION_MIN: Final = 17
_VERSION_TIMEOUT: Final = 20.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
#: Where package managers install Java without adding `java` to the path.
_JAVA_HOMES: Final = (
    "/usr/lib/jvm/*",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
#: Package manager -> command; the first installed one is used.
_INSTALL: Final = {
    "apt-get": "apt-get install openjdk-{version}-jre-headless",
    "dnf": "dnf install java-{version}-openjdk-headless",
    "yum": "yum install java-{version}-openjdk-headless",
    "apk": "apk add openjdk{version}-jre-headless",
    "pacman": "pacman -S jre{version}-openjdk-headless",
    "zypper": "zypper install java-{version}-openjdk-headless",
}


class JavaMissing(RocketMQError):
    """Spark needs Java, and none that is new enough was found; the text names the command."""


@dataclass(frozen=True, slots=True)
class JavaFound:
    """A Java on this machine.

    Attributes:
        program: The `java` executable.
        version: The feature release, such as 17.
    """

    program: Path
    version: int

    @property
    def home(self) -> Path:
        """The value of JAVA_HOME for Spark to use it."""
        return self.program.resolve().parent.parent


def find_java() -> JavaFound | None:
    """Return a Java that Spark can use, preferably the one Spark takes itself; None without one."""
    usable = (java for java in _javas() if java.version >= JAVA_VERSION_MIN)
    return next(usable, None)


def java_hint() -> str:
    """Return a text: what is wrong with Java on this machine, and how to install one."""
    old = next(_javas(), None)
    seen = f"Java {old.version} ({old.program}) is too old for Spark" if old else "no Java found"
    return f"{seen}; install Java {JAVA_VERSION_MIN} or newer: {install_command()}"


def install_command() -> str:
    """Return the command that installs Java on this platform."""
    if sys.platform == "darwin":
        return (
            f"brew install openjdk@{JAVA_VERSION_MIN}  (without Homebrew: https://adoptium.net), "
            "then set JAVA_HOME to its folder"
        )
    if sys.platform == "win32":
        return f"winget install EclipseAdoptium.Temurin.{JAVA_VERSION_MIN}.JRE"
    for manager, command in _INSTALL.items():
        if shutil.which(manager):
            sudo = "" if os.geteuid() == 0 else "sudo "
            return sudo + command.format(version=JAVA_VERSION_MIN)
    return (
        f"a package such as openjdk-{JAVA_VERSION_MIN}-jre-headless for {platform.system()}, or "
        "one of https://adoptium.net, and set JAVA_HOME to its folder"
    )


def make_session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session, or return the active one of this process.

    The session logs errors only, has no web UI and no progress bars, uses ANSI SQL and UTC, and on
    Linux Unix sockets between Java and Python.

    Args:
        name: The application's name.
        master: Where to run; if None: SPARK_MASTER, the choice of spark-submit, or `local[*]`.
        settings: More `spark.…` settings, which override those here.

    Raises:
        MissingExtra: pyspark is not installed.
        JavaMissing: There is no Java for Spark.
    """
    require("a pipeline", "spark")
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    java = find_java()
    if java is None:
        raise JavaMissing(java_hint())
    if not _is_first_choice(java):
        os.environ["JAVA_HOME"] = str(java.home)
    chosen = master or os.environ.get("SPARK_MASTER")
    chosen_settings = {"spark.app.name": name, **_settings(), **(settings or {})}
    if chosen or not _is_submitted():
        chosen_settings["spark.master"] = chosen or "local[*]"
    if (chosen or "local").startswith("local"):
        # Workers use this Python, which has the packages, not some `python3` on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not _is_submitted():
        start_context(chosen_settings)
    builder = SparkSession.builder
    for key, value in chosen_settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _settings() -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # With speculation two attempts of a task would send, and one of them only duplicates.
        "spark.speculation": "false",
        # A query plan shows the options of a source, but must not show the account.
        "spark.sql.redaction.options.regex": "(?i)url|secret|token|access[.]?key|password",
    }
    if sys.platform == "linux":
        settings["spark.python.unix.domain.socket.enabled"] = "true"
    return settings


def _is_submitted() -> bool:
    """Whether spark-submit started this process and chose the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _is_first_choice(java: JavaFound) -> bool:
    """Whether Spark's scripts find this Java without JAVA_HOME set by us."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return java.program == Path(home, "bin", "java")
    return java.program == _on_path()


def _on_path() -> Path | None:
    found = shutil.which("java")
    return Path(found) if found else None


def _javas() -> Iterator[JavaFound]:
    """Find Javas: first the one that Spark's scripts take, then others."""
    if home := os.environ.get("JAVA_HOME"):
        yield from _java(Path(home, "bin", "java"))
    if found := _on_path():
        yield from _java(found)
    for pattern in _JAVA_HOMES:
        root = Path(pattern[: pattern.index("*")]).parent
        for home_found in sorted(root.glob(Path(pattern).relative_to(root).as_posix())):
            yield from _java(home_found / "bin" / "java")


def _java(program: Path) -> Iterator[JavaFound]:
    """Run a program for its version; macOS has a `java` stub that only prints an error."""
    if not os.access(program, os.X_OK):
        return
    try:
        answer = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return
    if match := _VERSION.search(answer.stderr + answer.stdout):
        yield JavaFound(program, int(match[1]))
