"""The real Java client, driven from Python.

`JavaClient` owns one JVM that runs `java/Driver.java`; requests and replies are lines of JSON. The
JVM holds any number of producers, consumers and administration clients under names chosen here.
Every call has a deadline, and calls from several threads run concurrently.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.apache import settings
from tests.apache.artifacts import resolve
from tests.apache.driver import compile_driver
from tests.apache.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from tests.apache.artifacts import Artifacts
    from tests.apache.security import Account, TlsFiles

Json: TypeAlias = Any
"""A parsed JSON value. Tests index into it, so a precise union would only add casts."""

_MAIN_CLASS = "downrange.driver.Driver"
_EXIT_TIMEOUT = 5.0
# A consumer notices a new topic or member after one route refresh and one rebalance. With the
# default intervals of 30 and 20 seconds most tests would wait that long.
_SHORT_INTERVALS = {
    "rocketmq.client.rebalance.waitInterval": "1000",
    "rocketmq.client.rebalance.minInterval": "50",
    "rocketmq.client.rebalance.lockInterval": "1000",
    "rocketmq.client.unlockDelayTimeMills": "100",
}
_ROUTE_POLL_MS = 1000
# The default of three seconds is too short for a first send on a busy machine.
_SEND_TIMEOUT_MS = 10_000
# With the default of three seconds a consumer does not start on a busy machine: it fails if the
# name server is slow to answer its first request.
_API_TIMEOUT_MS = 15_000
_PATIENT = {"com.rocketmq.remoting.client.connect.timeout": str(_API_TIMEOUT_MS)}
# Seconds that an answer may arrive after the deadline inside the driver.
_GRACE = 15.0


class JavaError(Exception):
    """A Java exception, as the driver reports it.

    Attributes:
        java_class: Full class name, for example
            "org.apache.rocketmq.client.exception.MQBrokerException".
        message: Its message.
        code: Response code, for RocketMQ's own exceptions.
        cause: Text of its cause.
    """

    def __init__(self, report: Mapping[str, Json]) -> None:
        """Copy the fields of the driver's report."""
        self.java_class: str = report["class"]
        self.message: str = report["message"] or ""
        self.code: int | None = report["code"]
        self.cause: str | None = report["cause"]
        super().__init__(f"{self.java_class}: {self.message}")


class JavaClientDied(Exception):
    """The JVM ended while a call waited; the text ends with its log."""


class JavaClient:
    """A JVM with the Java client of one release; a context manager.

    Example:
        ```python
        with JavaClient("5.5.0") as java:
            producer = java.start_producer(cluster.name_server, "group")
            java.send(producer, [message("orders", b"1", tags="new")])
        ```
    """

    def __init__(
        self,
        version: str,
        artifacts: Artifacts | None = None,
        *,
        tls: TlsFiles | None = None,
        properties: Mapping[str, str] | None = None,
        call_timeout: float = 90.0,
        purpose: settings.Purpose = "test",
    ) -> None:
        """Describe a JVM; `start` or `with` starts it.

        Args:
            version: "5.5.0" or "4.9.4".
            artifacts: The jars, if they are resolved already.
            tls: Use TLS on every connection and trust only this authority.
            properties: System properties, for example {"rocketmq.serialize.type": "ROCKETMQ"}.
            call_timeout: Seconds for a call without a timeout of its own.
            purpose: "benchmark" runs a JVM that starts slowly and becomes fast.

        Raises:
            ApacheUnavailable: The release cannot run on this machine.
        """
        self.version = version
        self.artifacts = artifacts if artifacts is not None else resolve(version)
        self.call_timeout = call_timeout
        self._purpose: settings.Purpose = purpose
        secured = tls.client_properties() if tls else {}
        self._properties = {**_SHORT_INTERVALS, **_PATIENT, **secured, **(properties or {})}
        self._folder: Path | None = None
        self._child: ChildProcess | None = None
        self._ids = itertools.count(1)
        self._names = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Json]] = {}

    def __enter__(self) -> JavaClient:
        """Start the JVM."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the JVM."""
        self.close()

    @property
    def pid(self) -> int:
        """Return the JVM's process id."""
        assert self._child is not None, "not started"
        return self._child.pid

    def start(self) -> None:
        """Compile the driver if needed, start the JVM and wait until it answers.

        Raises:
            ApacheUnavailable: There is no Java compiler.
            JavaClientDied: The JVM ended at once.
        """
        classes = compile_driver(self.artifacts)
        self._folder = Path(tempfile.mkdtemp(prefix=f"downrange-java-client-{self.version}-"))
        settings.write_home(self._folder / "home", level="WARN")
        command = settings.java_command(
            self.artifacts,
            _MAIN_CLASS,
            folder=self._folder,
            home=self._folder / "home",
            heap_mib=512,
            properties={"file.encoding": "UTF-8", **self._properties},
            first_on_classpath=classes,
            purpose=self._purpose,
        )
        kept = ("PATH", "LANG", "LC_ALL", "TZ")
        self._child = ChildProcess(
            "java client",
            command,
            output=self._folder / "driver.log",
            directory=self._folder,
            environment={key: os.environ[key] for key in kept if key in os.environ},
            piped=True,
        )
        reader = threading.Thread(
            target=self._read, args=(self._child,), name="java-client-reader", daemon=True
        )
        reader.start()
        try:
            self.call("version", timeout=120.0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the JVM, and with it everything that was started in it."""
        child, self._child = self._child, None
        if child is not None:
            if child.is_running:
                # The driver ends when its input ends. Clients are not shut down one by one; a test
                # of the shutdown calls `stop`.
                with contextlib.suppress(OSError):
                    child.stdin.close()
                child.wait(_EXIT_TIMEOUT)
            child.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def call(self, op: str, /, *, timeout: float | None = None, **arguments: Json) -> Json:
        """Run one operation of the driver.

        Args:
            op: Name of the operation; README.md lists them.
            timeout: Seconds to wait for the answer.
            **arguments: Arguments of the operation; None means absent.

        Returns:
            The operation's result.

        Raises:
            JavaError: The operation threw.
            TimeoutError: No answer in time.
            JavaClientDied: The JVM ended.
        """
        child = self._child
        assert child is not None, "not started"
        number = next(self._ids)
        given = {key: value for key, value in arguments.items() if value is not None}
        line = json.dumps({"id": number, "op": op, "args": given}).encode() + b"\n"
        answer: Future[Json] = Future()
        with self._lock:
            self._waiting[number] = answer
            try:
                child.stdin.write(line)
                child.stdin.flush()
            except (OSError, ValueError) as error:
                del self._waiting[number]
                raise JavaClientDied(f"cannot reach the driver: {error}\n{self.log()}") from error
        try:
            reply = answer.result(self.call_timeout if timeout is None else timeout)
        except TimeoutError:
            raise TimeoutError(f"no answer to {op} in time\n{self.log()}") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if not reply["ok"]:
            raise JavaError(reply["error"])
        return reply["result"]

    def log(self, tail: int = 4000) -> str:
        """Return the end of the JVM's output, including stack traces."""
        return self._child.tail(tail) if self._child is not None else ""

    def start_producer(
        self,
        name_servers: str,
        group: str,
        *,
        name: str | None = None,
        transaction: bool = False,
        commits: bool = False,
        account: Account | None = None,
        options: Mapping[str, Json] | None = None,
    ) -> str:
        """Start a producer and return its name.

        Args:
            name_servers: "host:port;host:port".
            group: Producer group.
            name: Name for later calls; generated when absent.
            transaction: Start a transaction producer.
            commits: Commit each of its transactions, whatever a message's `local` says.
            account: Sign requests for this account.
            options: Bean properties by name, for example {"retryTimesWhenSendFailed": 0}.
        """
        defaults = {"sendMsgTimeout": _SEND_TIMEOUT_MS, "mqClientApiTimeout": _API_TIMEOUT_MS}
        return self._start(
            "producer.start",
            name,
            account,
            nameServers=name_servers,
            group=group,
            transaction=transaction,
            commits=commits,
            options={**defaults, **(options or {})},
        )

    def send(
        self,
        producer: str,
        messages: Sequence[Mapping[str, Json]],
        *,
        mode: str = "sync",
        queue: Mapping[str, Json] | None = None,
        collect_errors: bool = False,
        timeout: float | None = None,
    ) -> list[Json]:
        """Send messages and return the send results.

        Args:
            producer: Name of a started producer.
            messages: Made by `message`.
            mode: "sync", "async", "oneway", "batch", "ordered" (by each message's `shardingKey`),
                "queue" or "transaction" (each message's `local` and `checks` are its outcomes).
            queue: Target of mode "queue": topic, brokerName, queueId.
            collect_errors: Put {"error": ...} into the list instead of raising the first one.
            timeout: Seconds for all messages together.

        Returns:
            One result per message; one for the whole batch; None for each one-way message.
        """
        results: list[Json] = self.call(
            "producer.send",
            timeout=timeout,
            name=producer,
            messages=list(messages),
            mode=mode,
            queue=queue,
            collectErrors=collect_errors,
        )
        return results

    def start_consumer(
        self,
        name_servers: str,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        name: str | None = None,
        account: Account | None = None,
        options: Mapping[str, Json] | None = None,
        **behaviour: Json,
    ) -> str:
        """Start a push consumer from the beginning of each queue and return its name.

        Args:
            name_servers: "host:port;host:port".
            group: Consumer group.
            subscriptions: Tag expression by topic, or SQL92 with `sql=True`.
            name: Name for later calls; generated when absent.
            account: Sign requests for this account.
            options: Bean properties by name, for example {"messageModel": "BROADCASTING"}.
            **behaviour: `sql`, `orderly`, `failures` (refusals per message), `retryDelayLevel`,
                `pauseMs`, `replyProducer` (name of the producer that answers requests), `pop` (the
                broker shares the queues out; 5.x), `popRetrySeconds` (a refused message is popped
                again after this time), `strategy` (the name of one of ours, and its settings).
        """
        defaults = {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "pollNameServerInterval": _ROUTE_POLL_MS,
            "mqClientApiTimeout": _API_TIMEOUT_MS,
        }
        return self._start(
            "consumer.start",
            name,
            account,
            nameServers=name_servers,
            group=group,
            subscriptions=dict(subscriptions),
            options={**defaults, **(options or {})},
            **behaviour,
        )

    def received(
        self, consumer: str, count: int, *, timeout: float = 60.0, clear: bool = False
    ) -> list[Json]:
        """Return all deliveries to a push consumer, after waiting until there are `count`."""
        messages: list[Json] = self.call(
            "consumer.received",
            timeout=timeout + _GRACE,
            name=consumer,
            count=count,
            timeoutMs=int(timeout * 1000),
            clear=clear,
        )
        return messages

    def start_admin(
        self, name_servers: str, *, name: str | None = None, account: Account | None = None
    ) -> str:
        """Start an administration client and return its name; use it through `invoke`."""
        return self._start("admin.start", name, account, nameServers=name_servers)

    def invoke(self, name: str, method: str, /, *arguments: Json) -> Json:
        """Call any public method of a started client, for example "examineTopicStats".

        Numbers, texts, booleans and enum names are converted to the parameter types; a mapping
        becomes a bean such as MessageQueue or TopicConfig. A returned object is
        {"class", "json": its text as Java writes it, "value": the same as standard JSON}.
        """
        return self.call("call", name=name, method=method, arguments=list(arguments))

    def mqadmin(self, name_servers: str, *arguments: str, account: Account | None = None) -> str:
        """Run a command of Apache's administration tool in this JVM and return its output.

        Args:
            name_servers: "host:port;host:port".
            *arguments: For example "topicRoute", "-t", "orders". If a required argument is
                missing, the tool ends its process, which is this JVM.
            account: Sign requests for this account.
        """
        keys = {}
        if account is not None:
            keys = {"accessKey": account.access_key, "secretKey": account.secret_key}
        printed: str = self.call(
            "mqadmin", nameServers=name_servers, arguments=list(arguments), timeout=120.0, **keys
        )
        return printed

    def stop(self, name: str) -> None:
        """Shut one client down cleanly."""
        self.call("stop", name=name, timeout=120.0)

    def _start(self, op: str, name: str | None, account: Account | None, **rest: Json) -> str:
        chosen = name or f"{op.partition('.')[0]}-{next(self._names)}"
        if account is not None:
            rest |= {"accessKey": account.access_key, "secretKey": account.secret_key}
        self.call(op, name=chosen, **rest)
        return chosen

    def _read(self, child: ChildProcess) -> None:
        try:
            for line in child.stdout:
                reply = json.loads(line)
                with self._lock:
                    waiting = self._waiting.get(reply["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        except ValueError:
            # Either the pipe was closed while reading, or the driver wrote something other than
            # JSON. Both end the reader.
            pass
        with self._lock:
            left = list(self._waiting.values())
        for waiting in left:
            if not waiting.done():
                text = child.tail(4000)
                waiting.set_exception(JavaClientDied(f"the driver ended\n{text}"))


def message(topic: str, body: bytes, **fields: Json) -> dict[str, Json]:
    """Describe a message for `JavaClient.send`.

    Args:
        topic: Topic.
        body: Body.
        **fields: `tags`, `keys`, `flag`, `delayTimeLevel`, `waitStoreMsgOK`, `properties` (of the
            user), `systemProperties` (unchecked), `options` (other bean properties, such as
            {"delayTimeSec": 3} on 5.x), `shardingKey`, and for transactions `local` and `checks`:
            "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW" or "THROW".
    """
    return {"topic": topic, "body": base64.b64encode(body).decode(), **fields}


def body_of(received: Mapping[str, Json]) -> bytes:
    """Return the body of a message that the driver reported."""
    return base64.b64decode(received["body"] or "")
