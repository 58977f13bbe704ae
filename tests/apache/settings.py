"""Configuration of the test bed's servers: JVM flags, server options, logging files.

For tests, everything here trades realism that no test looks at for speed: small files, serial
garbage collection, no just-in-time optimiser, short background intervals. What a client can observe
on the wire stays at the server's defaults, unless a line below says why not. For benchmarks, all of
this is undone: what is measured is the server as it is shipped, but for the size of its heap.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TypeAlias

from downrange.store.message_store import StoreOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.apache.artifacts import Artifacts

Purpose: TypeAlias = Literal["test", "benchmark"]
"""What a JVM is started for."""

COMMIT_LOG_BYTES = 16 * 1024 * 1024
#: The same sizes of files, for our own store.
STORE_SIZES = StoreOptions(
    log_segment_bytes=COMMIT_LOG_BYTES,
    queue_segment_units=3000,
    key_slots=5000,
    key_entries=20_000,
)

_TEST_FLAGS = ("-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# Both releases reach into JDK internals to unmap files.
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
        folder: The process's own folder; stands in for the user's home and for /tmp.
        home: RocketMQ home; its `conf` folder comes first on the class path.
        heap_mib: Largest heap.
        properties: More system properties.
        first_on_classpath: Folder of classes.
        purpose: "benchmark" gives the whole just-in-time compiler, G1, and the heap at once, as the
            start scripts of a release do.
    """
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    merged = {
        "user.home": str(folder),
        # Native libraries are unpacked here and would stay behind in /tmp after a kill.
        "java.io.tmpdir": str(scratch),
        "rocketmq.home.dir": str(home),
        "rocketmq.broker.diskSpaceWarningLevelRatio": "0.99",
        "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.98",
        # Without this a server looks for the machine's own TLS settings.
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
    """Write a RocketMQ home whose logging goes to standard output."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    # 4.9.4 insists on one file per server and its client takes the plain name from the class
    # path; 5.5.0 takes its own name from there first.
    for name in ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml", "logback.xml"):
        text = _LOGBACK.format(package="ch.qos.logback", level=level)
        (conf / name).write_text(text, encoding="utf-8")
    package = "org.apache.rocketmq.logging.ch.qos.logback"
    text = _LOGBACK.format(package=package, level=level)
    (conf / "rmq.logback.xml").write_text(text, encoding="utf-8")


def common_options() -> dict[str, str]:
    """Return the options that every broker gets, whatever it is started for."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "diskMaxUsedSpaceRatio": "95",
        # The default of 200 ms refuses sends when the machine is busy.
        "waitTimeMillsInSendQueue": "5000",
    }


def brisk_options(version: str, commit_log_bytes: int) -> dict[str, str]:
    """Return the options that every broker of a release gets in a test."""
    options = {
        # Small files: a fresh store costs a few kilobytes, and rolling over is easy to reach.
        "mappedFileSizeCommitLog": str(commit_log_bytes),
        "mappedFileSizeConsumeQueue": str(20 * 3000),
        "maxHashSlotNum": "5000",
        "maxIndexNum": "20000",
        "enablePropertyFilter": "true",
        "traceTopicEnable": "true",
        "transactionTimeOut": "3000",
        "transactionCheckInterval": "2000",
        "registerNameServerPeriod": "10000",
        "flushConsumerOffsetInterval": "1000",
        "flushDelayOffsetInterval": "1000",
    }
    if version.startswith("5."):
        options |= {
            "recallMessageEnable": "true",
            "timerWheelEnable": "true",
            # From one interval after the last transaction on, the thread that writes the records
            # of finished transactions spins and takes a whole core. So it gets an endless interval
            # and writes each record at once, which also keeps the short check interval honest.
            # Only the records' layout shows it: one offset each instead of a list.
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
