"""What `group` prints: rows for people, and the same figures as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.cli.output import local_time, span_text, table_of, utc_time

if TYPE_CHECKING:
    from rich.table import Table

    from downrange.client.flows.admin.reports import (
        GroupLag,
        GroupList,
        GroupMembers,
        GroupSettings,
        GroupSummary,
        OffsetReset,
        QueueLag,
        RunningState,
        TopicFilter,
    )

LAG_NUMBERS: Final = ("queue", "committed", "end", "lag", "in flight")
LIST_NUMBERS: Final = ("members", "lag", "per second")
RESET_NUMBERS: Final = ("queue", "first", "end", "old", "new", "change")


# ---- settings and lists --------------------------------------------------------------------------


def settings_facts(settings: GroupSettings) -> dict[str, Any]:
    """Return the settings of a group for JSON."""
    facts: dict[str, Any] = msgspec.to_builtins(settings)
    return facts


def settings_row(settings: GroupSettings) -> tuple[object, ...]:
    """Return the settings of a group as a row."""
    return (
        settings.group,
        ", ".join(settings.brokers),
        "yes" if settings.is_enabled else "no",
        "yes" if settings.can_broadcast else "no",
        settings.retries,
        settings.retry_queues,
        "yes" if settings.is_ordered else "no",
    )


SETTINGS_COLUMNS: Final = (
    *("group", "broker", "enabled", "broadcast", "retries", "retry queues", "ordered"),
)


def summary_facts(summary: GroupSummary) -> dict[str, Any]:
    """Return a group of a list for JSON."""
    facts: dict[str, Any] = msgspec.to_builtins(summary)
    return facts


def summary_row(summary: GroupSummary) -> tuple[object, ...]:
    """Return a group of a list as a row."""
    return (
        summary.group,
        summary.kind,
        summary.members,
        summary.lag,
        None if summary.rate is None else f"{summary.rate:.1f}",
        summary.mode,
        summary.model,
    )


SUMMARY_COLUMNS: Final = ("group", "kind", "members", "lag", "per second", "mode", "model")


def missing_lines(groups: GroupList) -> list[str]:
    """Return a line for each broker that did not answer."""
    return [
        f"broker {each.broker} at {each.address} did not answer ({each.problem}): groups that only "
        "it has, and its part of the figures, are missing"
        for each in groups.unanswered
    ]


def draw_summaries(groups: GroupList) -> Table:
    """Return a list of groups for a terminal."""
    title = "\n".join(missing_lines(groups)) or None
    rows = map(summary_row, groups)
    return table_of(SUMMARY_COLUMNS, rows, title=title, numbers=LIST_NUMBERS)


# ---- lag -----------------------------------------------------------------------------------------


def lag_facts(lag: GroupLag) -> dict[str, Any]:
    """Return the lag of a group for JSON."""
    return {
        "group": lag.group,
        "lag": lag.messages,
        "age_seconds": None if lag.age is None else lag.age.total_seconds(),
        "rate": lag.rate,
        "queues": [_queue_facts(queue) for queue in lag.queues],
        "unanswered": [msgspec.to_builtins(each) for each in lag.unanswered],
    }


def _queue_facts(queue: QueueLag) -> dict[str, Any]:
    return {
        "topic": queue.queue.topic,
        "broker": queue.queue.broker,
        "queue": queue.queue.number,
        "committed": queue.committed,
        "end": queue.end,
        "lag": queue.messages,
        "in_flight": queue.in_flight,
        "age_seconds": None if queue.age is None else queue.age.total_seconds(),
        "consumed_at": utc_time(queue.consumed_at),
        "owner": queue.owner,
    }


LAG_COLUMNS: Final = (
    *("topic", "broker", "queue", "committed", "end", "lag", "in flight", "age"),
    *("last consumed", "owner"),
)


def lag_rows(lag: GroupLag) -> list[tuple[object, ...]]:
    """Return the lag of a group, one row per queue."""
    return [
        (
            queue.queue.topic,
            queue.queue.broker,
            queue.queue.number,
            queue.committed,
            queue.end,
            queue.messages,
            queue.in_flight,
            span_text(queue.age),
            local_time(queue.consumed_at),
            queue.owner,
        )
        for queue in lag.queues
    ]


def lag_title(lag: GroupLag) -> str:
    """Return the lag of a group in one line."""
    age = f", oldest {span_text(lag.age)}" if lag.age is not None else ""
    missing = "".join(
        f"; {each.broker} at {each.address} did not answer" for each in lag.unanswered
    )
    return f"{lag.group}: {lag.messages:,} messages behind{age}, {lag.rate:.1f} per second{missing}"


def draw_lag(lag: GroupLag) -> Table:
    """Return the lag of a group for a terminal."""
    return table_of(LAG_COLUMNS, lag_rows(lag), title=lag_title(lag), numbers=LAG_NUMBERS)


# ---- members -------------------------------------------------------------------------------------


def members_facts(found: GroupMembers) -> dict[str, Any]:
    """Return the members of a group for JSON."""
    facts: dict[str, Any] = msgspec.to_builtins(found)
    differences = [msgspec.to_builtins(each) for each in found.differences]
    return {**facts, "differences": differences}


def filters_text(filters: tuple[TopicFilter, ...] | None) -> str | None:
    """Return what a member reads in one line."""
    if filters is None:
        return None
    return ", ".join(f"{each.topic}: {each.expression}" for each in filters)


def running_facts(state: RunningState) -> dict[str, Any]:
    """Return the state of a member for JSON."""
    facts: dict[str, Any] = msgspec.to_builtins(state)
    facts["queues"] = [
        {
            **{name: value for name, value in msgspec.to_builtins(each).items() if name != "queue"},
            "topic": each.queue.topic,
            "broker": each.queue.broker,
            "queue": each.queue.number,
            "pulled_at": utc_time(each.pulled_at),
            "consumed_at": utc_time(each.consumed_at),
        }
        for each in state.queues
    ]
    return facts


# ---- resets --------------------------------------------------------------------------------------


def reset_facts(reset: OffsetReset) -> dict[str, Any]:
    """Return a reset for JSON."""
    return {
        "group": reset.group,
        "topic": reset.topic,
        "is_done": reset.is_done,
        "repeated": reset.repeated,
        "skipped": reset.skipped,
        "queues": [
            {
                "broker": each.queue.broker,
                "queue": each.queue.number,
                "first": each.first,
                "end": each.end,
                "old": each.old,
                "new": each.new,
                "change": each.change,
                "is_cut": each.is_cut,
            }
            for each in reset.queues
        ],
    }


RESET_COLUMNS: Final = ("broker", *RESET_NUMBERS, "")


def reset_rows(reset: OffsetReset) -> list[tuple[object, ...]]:
    """Return a reset, one row per queue."""
    return [
        (
            each.queue.broker,
            each.queue.number,
            each.first,
            each.end,
            each.old,
            each.new,
            f"{each.change:+d}",
            "cut to what the queue holds" if each.is_cut else None,
        )
        for each in reset.queues
    ]


def reset_title(reset: OffsetReset) -> str:
    """Return a reset in one line."""
    verb = "is reset" if reset.is_done else "would be reset"
    return (
        f"group {reset.group} {verb} in topic {reset.topic}: {reset.repeated:,} messages again, "
        f"{reset.skipped:,} skipped"
    )
