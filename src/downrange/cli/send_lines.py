"""Sends the messages of many lines, several in a request, and counts them.

An error names the number of its line.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from downrange.cli.exit_codes import FAILED, INTERRUPTED, exit_code_of, print_error
from downrange.cli.output import batch_facts, print_json
from downrange.errors import BatchFailed, OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from downrange import Producer
    from downrange.cli.message_input import InputLine
    from downrange.cli.send_progress import OnProgress, RateLimit
    from downrange.model import Message, SendReceipt


class LineSender:
    """Sends the messages of lines and counts them.

    Args:
        producer: Sends the messages.
        is_oneway: Whether to send one-way, without receipts.
        as_json: Whether to print a line of JSON for each receipt.
        on_progress: Called with the number of messages that were sent, and of bytes of input.

    Attributes:
        sent: Number of messages that were sent.
        failed: Number of messages that failed.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        is_oneway: bool = False,
        as_json: bool = False,
        on_progress: OnProgress = lambda count, byte_count: None,
    ) -> None:
        self._producer = producer
        self._is_oneway = is_oneway
        self._as_json = as_json
        self._on_progress = on_progress
        self.sent = 0
        self.failed = 0

    def send_all(
        self, lines: Iterable[InputLine], batch: int, rate: RateLimit, *, stops_on_error: bool
    ) -> int:
        """Send the messages of all lines; return the exit code.

        Args:
            lines: The input.
            batch: Maximum number of messages in one request.
            rate: Limits the messages per second.
            stops_on_error: Whether to stop after a line that fails, or to continue.
        """
        code, started = 0, time.monotonic()
        try:
            for group in group_lines(lines, batch):
                rate.wait(len(group))
                error = self._send_group(group)
                self._on_progress(len(group), sum(line.byte_count for line in group))
                if error is not None:
                    code = FAILED
                    if stops_on_error:
                        # An invalid line is a failure, not a wrong option.
                        code = FAILED if isinstance(error, OptionError) else exit_code_of(error)
                        break
        except KeyboardInterrupt:
            code = INTERRUPTED
        self._print_summary(time.monotonic() - started)
        return code

    def _send_group(self, group: list[InputLine]) -> RocketMQError | None:
        first = group[0]
        place = f"line {first.number}" + (f"-{group[-1].number}" if len(group) > 1 else "")
        messages = [line.outcome for line in group if not isinstance(line.outcome, RocketMQError)]
        try:
            if isinstance(first.outcome, RocketMQError):
                raise first.outcome
            self._print_receipts(group, self._send_messages(messages))
            self.sent += len(messages)
        except RocketMQError as error:
            count = self._print_receipts(
                group, error.stored if isinstance(error, BatchFailed) else ()
            )
            self.sent += count
            self.failed += len(group) - count
            print_error(f"{place}: {error}")
            return error
        return None

    def _send_messages(self, messages: list[Message]) -> Iterable[SendReceipt]:
        if self._is_oneway:
            self._producer.send_oneway(messages[0])
            return ()
        if len(messages) == 1:
            return (self._producer.send(messages[0]),)
        return self._producer.send_batch(messages)

    def _print_receipts(self, group: list[InputLine], receipts: Iterable[SendReceipt]) -> int:
        """Print the receipts as JSON if that is enabled; return the number of stored messages."""
        facts = [each for receipt in receipts for each in batch_facts(receipt)]
        if self._as_json:
            for line, each in zip(group, facts, strict=False):  # the last ones may have failed
                print_json({"line": line.number, **each})
        return len(facts)

    def _print_summary(self, elapsed: float) -> None:
        speed = f"{self.sent / elapsed:,.0f}/s" if elapsed > 0 else "at once"
        failed = f", {self.failed:,} failed" if self.failed else ""
        text = f"sent {self.sent:,} messages in {elapsed:.1f} s ({speed}){failed}"
        click.echo(text, err=self._as_json)


def group_lines(lines: Iterable[InputLine], size: int) -> Iterator[list[InputLine]]:
    """Group consecutive lines that can go into one request.

    A group has at most `size` messages, all with the same sharding key. An invalid line and a
    delayed message are groups of their own.
    """
    group: list[InputLine] = []
    for line in lines:
        if group and not _can_share_request(group[0], line):
            yield group
            group = []
        group.append(line)
        if len(group) >= size:  # at once: in a pipe, the next line may come much later
            yield group
            group = []
    if group:
        yield group


def _can_share_request(one: InputLine, other: InputLine) -> bool:
    first, second = one.outcome, other.outcome
    if isinstance(first, RocketMQError) or isinstance(second, RocketMQError):
        return False
    if first.sharding_key != second.sharding_key:
        return False
    return not any(
        each.delay_level or each.deliver_at or each.deliver_in for each in (first, second)
    )
