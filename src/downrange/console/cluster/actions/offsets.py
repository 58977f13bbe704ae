"""Actions on offsets of groups: reset, skip, clone. Each has a preview."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from downrange import Shift
from downrange.console.cluster.actions.action import (
    ActionResult,
    command_line,
    result_of,
)
from downrange.console.cluster.pages.groups import ResetPreview, ResetQueue
from downrange.errors import OptionError
from downrange.options.times import parse_time

if TYPE_CHECKING:
    from downrange import AsyncAdmin, OffsetReset
    from downrange.client.flows.admin.reports import ResetTarget
    from downrange.console.cluster.actions.action import Action, ActionResult, Right


#: Seconds of each step; a topic may have many queues.
_STEP_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsets:
    """Reset where a group reads a topic.

    Attributes:
        group: The group.
        topic: The topic.
        to: "earliest", "latest", an offset, a time such as 2026-01-31T12:00+00:00, or an age such
            as 15m. A time without a zone is in UTC.
        shift: Instead of `to`: so many messages on in each queue, or back if below 0.
        queue: Only this queue, as "broker:number".
    """

    name: ClassVar[str] = "reset-offsets"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = True

    group: str
    topic: str
    to: str | None = None
    shift: int | None = None
    queue: str | None = None

    @property
    def target(self) -> str:
        """The group."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["group", "reset", "--apply", "--yes"]
        if self.to is not None:
            words += ["--to", _with_zone(self.to)]
        if self.shift is not None:
            words.append(f"--shift={self.shift}")
        if self.queue is not None:
            words += ["--queue", self.queue]
        return (*words, "--", self.group, self.topic)

    async def preview(self, admin: AsyncAdmin) -> ResetPreview:
        """Return what it would change; nothing is changed."""
        return preview_of(self, [await self._plan(admin)])

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Reset it."""
        done = await admin.apply_reset(await self._plan(admin), timeout=_STEP_SECONDS)
        return reset_result(self, [done])

    async def _plan(self, admin: AsyncAdmin) -> OffsetReset:
        target = read_target(self.to, self.shift, datetime.now(UTC))
        plan = await admin.plan_reset(self.group, self.topic, target, timeout=_STEP_SECONDS)
        return plan if self.queue is None else only_queue(plan, self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipMessages:
    """Skip all messages that a group has not consumed yet.

    Attributes:
        group: The group.
        topics: The topics; all that it has read, without retries, if empty.
    """

    name: ClassVar[str] = "skip-messages"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = True

    group: str
    topics: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The group."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        return ("group", "skip", "--apply", "--yes", "--", self.group, *self.topics)

    async def preview(self, admin: AsyncAdmin) -> ResetPreview:
        """Return what it would change; nothing is changed."""
        return preview_of(self, await self._plans(admin))

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Skip them."""
        plans = await self._plans(admin)
        done = [await admin.apply_reset(plan, timeout=_STEP_SECONDS) for plan in plans]
        return reset_result(self, done)

    async def _plans(self, admin: AsyncAdmin) -> list[OffsetReset]:
        topics = await _topics_of(admin, self.group, self.topics)
        return [
            await admin.plan_reset(self.group, topic, "latest", timeout=_STEP_SECONDS)
            for topic in topics
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOffsets:
    """Give a group the offsets of another.

    Attributes:
        source: The group whose offsets are copied.
        group: The group that gets them; it must exist.
        topics: The topics; all that the source has read, without retries, if empty.
    """

    name: ClassVar[str] = "clone-offsets"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = True

    source: str
    group: str
    topics: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The group that gets the offsets."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ("group", "clone", "--apply", "--yes")
        return (*words, "--", self.source, self.group, *self.topics)

    async def preview(self, admin: AsyncAdmin) -> ResetPreview:
        """Return what it would change; nothing is changed."""
        return preview_of(self, await self._plans(admin))

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Copy them."""
        plans = await self._plans(admin)
        done = [await admin.apply_reset(plan, timeout=_STEP_SECONDS) for plan in plans]
        return reset_result(self, done)

    async def _plans(self, admin: AsyncAdmin) -> list[OffsetReset]:
        await admin.group_settings(self.group)  # an unknown group is an error
        topics = await _topics_of(admin, self.source, self.topics)
        return [
            await admin.plan_clone(self.source, self.group, topic, timeout=_STEP_SECONDS)
            for topic in topics
        ]


# ---- plans ---------------------------------------------------------------------------------------


def read_target(to: str | None, shift: int | None, now: datetime) -> ResetTarget:
    """Return where to reset to, as `downrange group reset` reads it; but a time is in UTC.

    Raises:
        OptionError: It is neither a word, an offset, a time nor an age.
    """
    if (to is None) == (shift is None):
        raise OptionError("give one of to and shift")
    if shift is not None:
        return Shift(shift)
    word = (to or "").strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    if word.isascii() and word.isdecimal():
        return int(word)
    return parse_time("to", to or "", now, "earliest, latest, an offset, ", zone=UTC)


def _with_zone(to: str) -> str:
    """Return a target for a command line, which takes a time without a zone for a local one."""
    word = to.strip()
    try:
        found = None if word.isdecimal() else datetime.fromisoformat(word)
    except ValueError:
        return to  # a word or an age
    if found is None or found.tzinfo is not None:
        return to
    return found.replace(tzinfo=UTC).isoformat()


def only_queue(plan: OffsetReset, place: str) -> OffsetReset:
    """Return a plan for one of its queues; a time would reset all of them on a 4.9 broker.

    Raises:
        OptionError: The topic has no such queue.
    """
    kept = tuple(
        each for each in plan.queues if f"{each.queue.broker}:{each.queue.number}" == place
    )
    if not kept:
        known = ", ".join(f"{each.queue.broker}:{each.queue.number}" for each in plan.queues)
        raise OptionError(f"queue={place!r} is not a queue of {plan.topic!r}; it has {known}")
    return msgspec.structs.replace(plan, queues=kept, at=None)


async def _topics_of(admin: AsyncAdmin, group: str, topics: tuple[str, ...]) -> list[str]:
    found = list(topics) or await admin.group_topics(group)
    if not found:
        await admin.group_settings(group)  # an unknown group is an error
        raise OptionError(f"group {group!r} has not read any topic yet")
    return found


def preview_of(action: Action, plans: list[OffsetReset]) -> ResetPreview:
    """Return plans, or what was done, as one preview."""
    return ResetPreview(
        group=action.target,
        queues=tuple(
            ResetQueue(
                topic=plan.topic,
                broker=each.queue.broker,
                queue=each.queue.number,
                old=each.old,
                new=each.new,
                first=each.first,
                end=each.end,
                change=each.change,
                is_cut=each.is_cut,
            )
            for plan in plans
            for each in plan.queues
        ),
        repeated=sum(plan.repeated for plan in plans),
        skipped=sum(plan.skipped for plan in plans),
        is_done=all(plan.is_done for plan in plans),
        command=command_line(action),
    )


def reset_result(action: Action, done: list[OffsetReset]) -> ActionResult:
    """Return the result of a reset."""
    preview = preview_of(action, done)
    text = (
        f"group {preview.group!r}: {preview.repeated} messages are consumed again, "
        f"{preview.skipped} are skipped"
    )
    return result_of(
        action, text, reset=preview, repeated=preview.repeated, skipped=preview.skipped
    )
