"""Actions on dead letters: send selected ones again, export them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from downrange.console.cluster import limits
from downrange.console.cluster.actions.action import ResentLetter, result_of
from downrange.console.cluster.dead_letter_pages import export_dead_letters, read_letters
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from downrange import AsyncAdmin, DeadMessage, Resent
    from downrange.console.cluster.actions.action import ActionResult, Right


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendDeadLetters:
    """Send selected dead letters of a group again.

    Attributes:
        group: The group.
        ids: The dead letters, by `DeadLetterRow.id`; at most `limits.RESEND_MAX`.
        to: "topic" for the topic that they were sent to, where all groups get them again; "retry"
            for the retry topic of the group, where only this group does.
        rate: The most messages per second.
        again: Also those that were sent again before.
    """

    name: ClassVar[str] = "resend-dead-letters"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = False

    group: str
    ids: tuple[str, ...]
    to: Literal["topic", "retry"] = "topic"
    rate: float | None = None
    again: bool = False

    @property
    def target(self) -> str:
        """The group."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["dlq", "resend", "--yes"]
        for letter_id in self.ids:
            words += ["--id", letter_id]
        if self.to != "topic":
            words += ["--to", self.to]
        if self.rate is not None:
            words += ["--rate", repr(self.rate)]
        if self.again:
            words.append("--again")
        return (*words, "--", self.group)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Send them; `letters` of the result says what became of each."""
        self._check()
        letters: list[DeadMessage] = []
        async for part in read_letters(admin, self.group, ids=self.ids):
            letters += part
        missing = set(self.ids) - {letter.message.offset_id for letter in letters}
        if missing:
            names = ", ".join(sorted(missing)[:5])
            raise OptionError(f"group {self.group!r} has no dead letter {names}; nothing was sent")
        results = await admin.resend_dead_letters(
            letters, to=self.to, skip_resent=not self.again, rate=self.rate
        )
        outcomes: list[str] = [each.outcome for each in results]
        sent, skipped, failed = (outcomes.count(word) for word in ("sent", "skipped", "failed"))
        return result_of(
            self,
            f"{sent} sent, {skipped} sent before, {failed} failed",
            is_ok=not failed,
            letters=tuple(map(_resent, results)),
            sent=sent,
            skipped=skipped,
            failed=failed,
        )

    def _check(self) -> None:
        if not 1 <= len(self.ids) <= limits.RESEND_MAX:
            raise OptionError(
                f"{len(self.ids)} dead letters are selected; select 1 to {limits.RESEND_MAX}, or "
                "use `downrange dlq resend` for more"
            )
        if self.rate is not None and not 0 < self.rate <= limits.RESEND_RATE_MAX:
            raise OptionError(f"rate={self.rate} is not between 0 and {limits.RESEND_RATE_MAX:g}")
        if self.rate is not None and len(self.ids) > self.rate * limits.RESEND_SECONDS_MAX:
            raise OptionError(
                f"{len(self.ids)} dead letters at rate={self.rate} take "
                f"{len(self.ids) / self.rate:,.0f} s, more than {limits.RESEND_SECONDS_MAX:g} s, "
                "so nothing was sent: select fewer, give a higher rate, or use `downrange dlq "
                "resend`, which has no limit"
            )


def _resent(result: Resent) -> ResentLetter:
    return ResentLetter(
        id=result.letter.message.offset_id,
        outcome=result.outcome,
        topic=result.topic,
        message_id=result.message_id,
        problem=result.problem,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDeadLetters:
    """Write dead letters of a group as a file. It changes nothing, so it has no `run`.

    Attributes:
        group: The group.
        form: "jsonl" or "csv".
        ids: Only these dead letters, by `DeadLetterRow.id`; all if empty.
    """

    name: ClassVar[str] = "export-dead-letters"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = False

    group: str
    form: Literal["csv", "jsonl"] = "jsonl"
    ids: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The group."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["dlq", "export"]
        if self.form != "jsonl":
            words += ["--format", self.form]
        for letter_id in self.ids:
            words += ["--id", letter_id]
        return (*words, "--", self.group)

    def pieces(self, admin: AsyncAdmin) -> AsyncIterator[bytes]:
        """Yield the file, piece by piece; at most `limits.EXPORT_MAX` dead letters."""
        return export_dead_letters(admin, self.group, self.form, ids=self.ids, begin=None, end=None)
