"""Configuration of the test bed's servers: JVM flags, server options, logging files.

For tests, the settings favour speed: small files, serial garbage collection, only the first
just-in-time compiler, short background intervals. Behaviour that a client can observe on the wire
stays at the server's defaults, unless a comment below says why not. For benchmarks, the server runs
as it is shipped, except for the size of its heap.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TypeAlias

from downrange.store.message_store import StoreOptions
from tests.support.jvm import SHORT_LIVED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.apache.artifacts import Artifacts

Purpose: TypeAlias = Literal["test", "benchmark"]
"""The use of a JVM, which selects its settings."""

COMMIT_LOG_BYTES = 16 * 1024 * 1024
#: The same file sizes, for our own store.
STORE_SIZES = StoreOptions(
    log_segment_bytes=COMMIT_LOG_BYTES,
    queue_segment_units=3000,
    key_slots=5000,
    key_entries=20_000,
)

_TEST_FLAGS = ("-Xms64m", *SHORT_LIVED)

# Both releases use JDK internals to unmap files.
_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "jdk.internal.ref")

_LOGBACK = """<configuration>
  <appender name="console" class="{package}.core.ConsoleAppender">
    <encoder class="{package}.classic.encoder.PatternLayoutEncoder">
      <pattern>%d{{HH:mm:ss.SSS}} %-5p %t %c{{0}} - %m%n</pattern>
    </encoder>
  </appender>
  <logger name="RocketmqWaterMark" level="WARN"/>
  <logger name="RocketmqNamesrvWaterMark" level="WARN"/>
  <logger name="RocketmqCommercial" level="WARN"/>
  <logger name="RocketmqPop" level="WARN"/>
  <logger name="RocketmqRemoting" level="WARN"/>
  <logger name="RocketmqTraffic" level="WARN"/>
  <logger name="RocketmqTransaction" level="ERROR"/>
  <root level="{level}"><appender-ref ref="console"/></root>
</configuration>
"""


def java_command(
    artifacts: Artifacts,
    main_class: str,
    *,
    folder: Path,
    home: Path,
    heap_mib: int,
    properties: Mapping[str, str],
    first_on_classpath: Path | None = None,
    purpose: Purpose = "test",
) -> list[str]:
    """Return the command line up to and including the main class.

    Args:
        artifacts: Release to run.
        main_class: Full class name.
        folder: The process's own folder; replaces the user's home and the temporary folder.
        home: RocketMQ home; its `conf` folder comes first on the class path.
        heap_mib: Largest heap.
        properties: More system properties.
        first_on_classpath: Folder of classes.
        purpose: "benchmark" enables all just-in-time compilers, G1 and the whole heap from the
            start, as the start scripts of a release do.
    """
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    merged = {
        "user.home": str(folder),
        # Native libraries are unpacked here and would remain in the system's folder after a kill.
        "java.io.tmpdir": str(scratch),
        "rocketmq.home.dir": str(home),
        "rocketmq.broker.diskSpaceWarningLevelRatio": "0.99",
        "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.98",
        # Without this a server reads the TLS settings of the machine.
        "tls.config.file": str(home / "conf" / "no-tls.properties"),
        **properties,
    }
    flags = _TEST_FLAGS if purpose == "test" else (f"-Xms{heap_mib}m", "-XX:+UseG1GC")
    classes = [] if first_on_classpath is None else [first_on_classpath]
    return [
        str(artifacts.java),
        f"-Xmx{heap_mib}m",
        *flags,
        "-XX:-UsePerfData",
        "-Xshare:auto",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
        *(f"-D{key}={value}" for key, value in merged.items()),
        "-cp",
        os.pathsep.join(map(str, [*classes, home / "conf", artifacts.classpath])),
        main_class,
    ]


def write_home(home: Path, *, level: str = "INFO") -> None:
    """Write a RocketMQ home folder that logs to standard output."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    # 4.9.4 requires one file per server, and its client loads logback.xml from the class path;
    # 5.5.0 looks there for a name of its own first.
    for name in ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml", "logback.xml"):
        text = _LOGBACK.format(package="ch.qos.logback", level=level)
        (conf / name).write_text(text, encoding="utf-8")
    package = "org.apache.rocketmq.logging.ch.qos.logback"
    text = _LOGBACK.format(package=package, level=level)
    (conf / "rmq.logback.xml").write_text(text, encoding="utf-8")


def common_options() -> dict[str, str]:
    """Return the options of every broker, for tests and benchmarks."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "diskMaxUsedSpaceRatio": "95",
        # With the default of 200 ms a busy machine refuses sends.
        "waitTimeMillsInSendQueue": "5000",
    }


def fast_options(version: str, commit_log_bytes: int) -> dict[str, str]:
    """Return the further options of every broker of a release in tests."""
    options = {
        # Small files: a new store takes a few kilobytes, and a test reaches the next file quickly.
        "mappedFileSizeCommitLog": str(commit_log_bytes),
        "mappedFileSizeConsumeQueue": str(20 * 3000),
        "maxHashSlotNum": "5000",
        "maxIndexNum": "20000",
        "enablePropertyFilter": "true",
        "traceTopicEnable": "true",
        "transactionTimeOut": "3000",
        "transactionCheckInterval": "2000",
        # A busy machine may pause a broker for seconds. It would then refuse what waited in a queue
        # (sends, ends of transactions, acknowledgements), and sends while its log was locked.
        "brokerFastFailureEnable": "false",
        "osPageCacheBusyTimeOutMills": "60000",
        "registerNameServerPeriod": "10000",
        "flushConsumerOffsetInterval": "1000",
        "flushDelayOffsetInterval": "1000",
    }
    if version.startswith("5."):
        options |= {
            "recallMessageEnable": "true",
            "timerWheelEnable": "true",
            # One interval after the last transaction, the thread that writes the records of
            # finished transactions starts to spin and uses a whole core. So the interval is very
            # long and each record is written at once, which also makes the short check interval
            # effective. The only visible difference is the record: one offset instead of a list.
            "transactionOpBatchInterval": "2000000000",
            "transactionOpMsgMaxSize": "1",
            # Before its first run this thread spins instead of sleeping, ten seconds by default.
            "transactionMetricFlushInterval": "500",
            # Each flush compares 38 MB of timer wheel; every second, that is a third of a core.
            "timerFlushIntervalMs": "10000",
            "diskSpaceWarningLevelRatio": "99",
            "diskSpaceCleanForciblyRatio": "98",
        }
    return options


def write_properties(path: Path, options: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    lines = (f"{key}={value.replace(chr(92), chr(92) * 2)}\n" for key, value in options.items())
    path.write_text("".join(lines), encoding="utf-8")
