"""`send`: one message, or as many as a file or a pipe has lines.

Messages go out one after the other, so those with the same sharding key keep their order; `--batch`
puts several into a request. What fails is told with the number of its line.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import click

from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG, FAILED, INTERRUPTED, complain, exit_code_of
from downrange.cli.parameters import READABLE_FILE, argument, command
from downrange.errors import BatchFailed, OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    from downrange.cli.message_input import Line, Pattern
    from downrange.client.producer import Producer
    from downrange.model import Message, SendReceipt

GROUP: Final = "downrange-command"
#: Seconds between two lines about the progress, where there is no terminal.
_TELL_INTERVAL: Final = 5.0


class OnError(StrEnum):
    """What to do when a line fails."""

    STOP = "stop"
    SKIP = "skip"


def _pairs(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise OptionError(f"--property {text!r} is not NAME=VALUE")
        yield name, value


@command(epilog=EPILOG)
@argument("topic", help="Where it goes.")
@argument("body", required=False, help="The message; standard input if nothing is given.")
@click.option("--file", "-f", type=READABLE_FILE, metavar="FILE", help="Send what it holds.")
@click.option("--lines", "-l", is_flag=True, help="Each line is a message: of FILE, or of stdin.")
@click.option(
    "--json-lines", "-j", is_flag=True, help='Each line is one such as {"body": "…", "tags": "…"}.'
)
@click.option("--tags", "-t", help="A word to filter by.")
@click.option("--key", "-k", "keys", multiple=True, help="A word to look it up by; repeatable.")
@click.option(
    "--property", "-p", "properties", multiple=True, metavar="NAME=VALUE", help="Repeatable."
)
@click.option("--sharding-key", help="Messages with the same one go to one queue, in order.")
@click.option(
    "--delay-level",
    type=click.IntRange(min=1),
    help="Deliver after the broker's delay of this level.",
)
@click.option(
    "--deliver-in",
    type=float,
    metavar="SECONDS",
    help="Deliver after so many seconds (5.x brokers).",
)
@click.option("--rate", type=float, metavar="N", help="Send so many messages a second at most.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Put up to N lines into one request.",
)
@click.option("--oneway", is_flag=True, help="Do not wait for the broker; messages may be lost.")
@click.option(
    "--on-error",
    type=click.Choice([each.value for each in OnError]),
    default=OnError.STOP.value,
    help="Stop at a line that fails, or skip it.",
)
@click.option(
    "--progress/--no-progress",
    default=None,
    show_default="on a terminal",
    help="Tell how far it is, on standard error.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per receipt.")
@with_connection
def send(
    connection: Connection,
    topic: str,
    body: str | None,
    file: Path | None,
    lines: bool,
    json_lines: bool,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    sharding_key: str | None,
    delay_level: int | None,
    deliver_in: float | None,
    rate: float | None,
    batch: int | None,
    oneway: bool,
    on_error: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Send a message, or each line of a file or pipe.

    downrange send orders "42 apples" --tags new --key o-1

    downrange send orders --lines --batch 100 --file orders.txt

    downrange tail old --from earliest --no-follow --json | downrange send new --json-lines
    """
    from downrange.cli.message_input import Pattern

    pattern = Pattern(
        topic=topic,
        tags=tags,
        keys=keys,
        properties=tuple(_pairs(properties)),
        sharding_key=sharding_key,
        delay_level=delay_level,
        deliver_in=deliver_in,
    )
    is_many = lines or json_lines
    _check(body, file, lines, json_lines, rate, batch, oneway)
    if not is_many:
        _send_one(connection, pattern, _single_body(body, file), oneway, as_json)
        return
    from downrange.cli.message_input import messages_of

    with ExitStack() as stack:
        source = stack.enter_context(file.open("rb")) if file else sys.stdin.buffer
        total = file.stat().st_size if file else None
        producer = stack.enter_context(_producer(connection))
        bar = stack.enter_context(_progress(progress, total))
        run = Run(producer, is_oneway=oneway, as_json=as_json, tell=bar)
        messages = messages_of(source, pattern, "json" if json_lines else "text")
        code = run.send_all(messages, batch or 1, Pace(rate), OnError(on_error))
    raise click.exceptions.Exit(code)


def _check(
    body: str | None,
    file: Path | None,
    lines: bool,
    json_lines: bool,
    rate: float | None,
    batch: int | None,
    oneway: bool,
) -> None:
    if lines and json_lines:
        raise OptionError("--lines and --json-lines exclude each other")
    if body is not None and (file is not None or lines or json_lines):
        raise OptionError("BODY and --file, --lines or --json-lines exclude each other")
    if batch is not None and oneway:
        raise OptionError("--batch and --oneway exclude each other")
    if rate is not None and rate <= 0:
        raise OptionError(f"--rate {rate:g} sends nothing")
    if not (lines or json_lines) and (batch is not None or rate is not None):
        raise OptionError("--batch and --rate are for --lines and --json-lines")


def _single_body(body: str | None, file: Path | None) -> bytes:
    if body is not None:
        return body.encode()
    if file is not None:
        return file.read_bytes()
    if sys.stdin.isatty():
        raise OptionError("nothing to send: give a BODY, --file, or something on standard input")
    return sys.stdin.buffer.read()


@contextmanager
def _producer(connection: Connection) -> Generator[Producer]:
    from downrange.client.producer import Producer
    from downrange.options import ProducerOptions

    options = ProducerOptions(timeout=connection.timeout)
    with connection.client() as client, Producer(client, group=GROUP, options=options) as producer:
        yield producer


def _send_one(
    connection: Connection, pattern: Pattern, body: bytes, is_oneway: bool, as_json: bool
) -> None:
    from downrange.cli.output import print_facts, print_json

    message = pattern.message(body)
    with _producer(connection) as producer:
        if is_oneway:
            producer.send_oneway(message)
            return
        facts = receipt_facts(producer.send(message))
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


def receipt_facts(receipt: SendReceipt) -> dict[str, Any]:
    """Return what a receipt says, without what is not there."""
    facts = {
        "message_id": receipt.message_id,
        "topic": receipt.queue.topic,
        "broker": receipt.queue.broker,
        "queue": receipt.queue.number,
        "offset": receipt.offset,
        "offset_id": receipt.offset_id,
        "status": receipt.status.name.lower(),
        "attempts": receipt.attempts,
        "recall_handle": receipt.recall_handle,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def facts_of_batch(receipt: SendReceipt) -> Iterator[dict[str, Any]]:
    """Return what a receipt says of each message in a request, in order."""
    facts = receipt_facts(receipt)
    ids = receipt.message_id.split(",")
    offset_ids = receipt.offset_id.split(",")
    for index, message_id in enumerate(ids):
        own = {"message_id": message_id, "offset": receipt.offset + index}
        if len(offset_ids) == len(ids):
            own["offset_id"] = offset_ids[index]
        yield {**facts, **own}


# ---- many ----------------------------------------------------------------------------------------


class Pace:
    """Holds back whoever is faster than a rate.

    Args:
        rate: Messages per second; None for as fast as it goes.
        now: The time in seconds.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        rate: float | None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._now = now
        self._sleep = sleep
        self._next = now()

    def wait(self, count: int) -> None:
        """Wait until so many more messages may go."""
        if self._rate is None:
            return
        now = self._now()
        if now < self._next:
            self._sleep(self._next - now)
        # Who was slow for a while does not make up for it with a burst.
        self._next = max(self._next, now) + count / self._rate


class Run:
    """Sends many messages and keeps count.

    Args:
        producer: Sends them.
        is_oneway: Whether not to wait for the broker.
        as_json: Whether to print a line of JSON for each receipt.
        tell: Called with the number of messages that are done, and of bytes of input.

    Attributes:
        sent: How many messages were sent.
        failed: How many were not.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        is_oneway: bool = False,
        as_json: bool = False,
        tell: Callable[[int, int], None] = lambda count, byte_count: None,
    ) -> None:
        self._producer = producer
        self._is_oneway = is_oneway
        self._as_json = as_json
        self._tell = tell
        self.sent = 0
        self.failed = 0

    def send_all(self, lines: Iterable[Line], batch: int, pace: Pace, on_error: OnError) -> int:
        """Send the messages of all lines; return the exit code."""
        code, started = 0, time.monotonic()
        try:
            for group in grouped(lines, batch):
                pace.wait(len(group))
                error = self._send_group(group)
                self._tell(len(group), sum(line.byte_count for line in group))
                if error is not None:
                    code = FAILED
                    if on_error is OnError.STOP:
                        # A line that makes no message is no wrong use of the command.
                        code = FAILED if isinstance(error, OptionError) else exit_code_of(error)
                        break
        except KeyboardInterrupt:
            code = INTERRUPTED
        self._sum_up(time.monotonic() - started)
        return code

    def _send_group(self, group: list[Line]) -> RocketMQError | None:
        first = group[0]
        where = f"line {first.number}" + (f"-{group[-1].number}" if len(group) > 1 else "")
        messages = [line.outcome for line in group if not isinstance(line.outcome, RocketMQError)]
        try:
            if isinstance(first.outcome, RocketMQError):
                raise first.outcome
            self._note(group, self._send_messages(messages))
            self.sent += len(messages)
        except RocketMQError as error:
            count = self._note(group, error.stored if isinstance(error, BatchFailed) else ())
            self.sent += count
            self.failed += len(group) - count
            complain(f"{where}: {error}")
            return error
        return None

    def _send_messages(self, messages: list[Message]) -> Iterable[SendReceipt]:
        if self._is_oneway:
            self._producer.send_oneway(messages[0])
            return ()
        if len(messages) == 1:
            return (self._producer.send(messages[0]),)
        return self._producer.send_batch(messages)

    def _note(self, group: list[Line], receipts: Iterable[SendReceipt]) -> int:
        """Print what is asked for of messages that are stored; return how many they are."""
        facts = [each for receipt in receipts for each in facts_of_batch(receipt)]
        if self._as_json:
            from downrange.cli.output import print_json

            for line, each in zip(group, facts, strict=False):  # the last ones may have failed
                print_json({"line": line.number, **each})
        return len(facts)

    def _sum_up(self, elapsed: float) -> None:
        speed = f"{self.sent / elapsed:,.0f}/s" if elapsed > 0 else "at once"
        failed = f", {self.failed:,} failed" if self.failed else ""
        text = f"sent {self.sent:,} messages in {elapsed:.1f} s ({speed}){failed}"
        click.echo(text, err=self._as_json)


def grouped(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Put lines together that can go in one request.

    That is so many at most, with one sharding key, and without a delay. A line that makes no
    message is alone.
    """
    group: list[Line] = []
    for line in lines:
        if group and not _fit(group[0], line):
            yield group
            group = []
        group.append(line)
        if len(group) >= size:  # not when the next one comes: that may take a while in a pipe
            yield group
            group = []
    if group:
        yield group


def _fit(one: Line, other: Line) -> bool:
    first, second = one.outcome, other.outcome
    if isinstance(first, RocketMQError) or isinstance(second, RocketMQError):
        return False
    if first.sharding_key != second.sharding_key:
        return False
    return not any(
        each.delay_level or each.deliver_at or each.deliver_in for each in (first, second)
    )


# ---- progress ------------------------------------------------------------------------------------


@contextmanager
def _progress(is_wanted: bool | None, total: int | None) -> Generator[Callable[[int, int], None]]:
    """Give a function that tells how far it is: as a bar on a terminal, else in lines."""
    is_terminal = sys.stderr.isatty()
    if is_wanted is False or (is_wanted is None and not is_terminal):
        yield lambda count, byte_count: None
    elif is_terminal:
        with _bar(total) as tell:
            yield tell
    else:
        yield ProgressLines(total)


@contextmanager
def _bar(total: int | None) -> Generator[Callable[[int, int], None]]:
    from rich import progress

    from downrange.cli.output import console

    columns = (
        progress.TextColumn("{task.fields[count]:,} messages"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("send", total=total, count=0)
        done = 0

        def tell(count: int, byte_count: int) -> None:
            nonlocal done
            done += count
            bar.update(task, advance=byte_count, count=done)

        yield tell


class ProgressLines:
    """Tells how far it is in a line every few seconds.

    Args:
        total: Bytes of the input, where they are known.
        now: The time in seconds.
    """

    def __init__(self, total: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._now = now
        self._count = self._bytes = 0
        self._next = now() + _TELL_INTERVAL

    def __call__(self, count: int, byte_count: int) -> None:
        """Take note of messages that are done, and of the bytes of input that they were."""
        self._count += count
        self._bytes += byte_count
        if self._now() >= self._next:
            self._next = self._now() + _TELL_INTERVAL
            share = f" ({100 * self._bytes / self._total:.0f} %)" if self._total else ""
            click.echo(f"{self._count:,} messages{share}", err=True)
